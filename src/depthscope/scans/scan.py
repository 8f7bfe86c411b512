"""ds.scan: a model runs once, and a Scan tells what happens to its tokens from block to block."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import BlocksNotFoundError, said_by
from depthscope.registry import lookup
from depthscope.scans.across import Tallies, tallied
from depthscope.scans.assemble import assemble
from depthscope.scans.attention_reader import AttentionReader
from depthscope.scans.chosen_metrics import check_sample, chosen_metrics
from depthscope.scans.direction import causal_in
from depthscope.scans.gaps import gap_notes
from depthscope.scans.padded import is_same_mask, padding_seen
from depthscope.scans.positions import check_positions
from depthscope.scans.precision import in_full_precision
from depthscope.scans.probing import probe
from depthscope.scans.reading import Reading
from depthscope.scans.record import JUDGED, Scan
from depthscope.scans.sequences import Place
from depthscope.scans.state_reader import StateReader
from depthscope.scans.tally import tally_of
from depthscope.scans.unseen import NOT_MEASURED, settled
from depthscope.scans.weight_gradients import check_at_hand, weight_gradients
from depthscope.traces.blocks import Found, blocks_in, candidates, find_blocks, none_found
from depthscope.traces.cut_weights import IN_ONE, computes_in_parts, let_go_, shared_with
from depthscope.traces.eagerly import eagerly
from depthscope.traces.entry import enter, repeated_calls, run_model
from depthscope.traces.head import vanished
from depthscope.traces.inputs import Batch
from depthscope.traces.installed import fixes_in, prepare_fixes
from depthscope.traces.log import Log
from depthscope.traces.modules import held
from depthscope.traces.recorder import Recorder
from depthscope.traces.spans import spans_of
from depthscope.traces.steps import dissect, final_norm
from depthscope.traces.streams import Stream, frames_of, of_several_tokens, stream_called, streams_of
from depthscope.traces.token_axis import Frames, axis_of_shorter
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watcher
from depthscope.traces.whole_weights import whole_weights
from depthscope.traces.whose_padding import Padding


@said_by("scan")
def scan(
    model: nn.Module,
    inputs: Any,
    *,
    metrics: Iterable[str] | None = None,
    mask: Any = None,
    blocks: str | Iterable[str] | None = None,
    stream: str | None = None,
    attention: bool = True,
    gradients: Callable[[Any], Tensor] | None = None,
    on_block: Callable[[int], None] | None = None,
    across: Any = None,
    sample: int | None = None,
) -> Scan:
    """Measure how alike the tokens are after every block of a model, and what makes them so.

    Args:
        model: Any torch module. It runs as it is (train or eval), and is left as it was.
        inputs: A tensor, a tuple (positional arguments), a mapping (keyword arguments), or an iterable of such batches.
        metrics: Names from ds.metrics; by default all fast ones; "t_sim[0:16]" and "t_sim[1/4]" take some positions.
        mask: (B, n), 1 for tokens and 0 for padding; by default the attention_mask among the inputs.
        blocks: A pattern such as "encoder.layers.*", or scan.blocks; by default the blocks are found automatically.
        stream: The stream to return, if there are several ("encoder", "decoder"); scan.streams has all of them.
        attention: False leaves out the attention heads, which cost most.
        gradients: A function of the model's output that returns a scalar loss; adds gradient norms.
        on_block: Is called with the number of blocks seen so far.
        across: A torch.distributed group, or "world": each process scans its own batches, and all get the same scan.
        sample: Measure mu_2 in this many random channels instead of all; scan.residuals has the error.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> X = torch.randn(2, 4, 8, generator=torch.manual_seed(0))  # (batch, n, d)
        >>> ds.scan(model, X)["t_sim"].shape  # depth + 1
        torch.Size([3])
    """
    entry = enter(model, inputs, blocks, mask)
    chosen = chosen_metrics(metrics, attention=attention)
    check_sample(sample)
    if gradients is not None:
        check_at_hand(entry.model)
    settings = Settings(chosen, entry.blocks, attention, gradients, on_block, sample)
    notes = [*entry.notes]
    with ExitStack() as stack:
        stack.callback(let_go_, entry.model)  # else a training step after it would run on these weights
        with held(entry.model):
            if computes_in_parts(entry.model):
                notes.append(IN_ONE)
                stack.enter_context(whole_weights(entry.model))
            cut_over = shared_with(entry.model)
        tallies = tallied(entry.batches(), partial(settings.tallies, entry.model), across, cut_over)
    main = stream_called(stream, list(tallies)) or next(iter(tallies))
    scans = {name: assemble(tally, notes) for name, tally in tallies.items()}
    others = {name: found for name, found in scans.items() if name != main}
    return replace(scans[main], stream=main, others=others)


class Settings:
    """What to measure in each batch."""

    def __init__(
        self, metrics: list[Any], blocks: Any, attention: bool, gradients: Any, on_block: Any, sample: int | None = None
    ) -> None:
        self.metrics, self.blocks, self.attention = metrics, blocks, attention
        self.gradients, self.on_block, self.sample = gradients, on_block, sample

    def of_kind(self, kind: str) -> list[Any]:
        return [f for f in self.metrics if f.facts.kind == kind]

    def read(self, model: nn.Module, batch: Batch) -> list[Reading]:
        """Everything about one batch, stream by stream; a second pass only where the first one cannot answer."""
        prepare_fixes(model, batch.args, batch.kwargs)
        readings = self._run(model, batch, Frames())
        if not readings[0].mixers():
            readings = self._of_moved_tokens(model, batch, readings)
        else:
            readings = self._of_sure_axis(model, batch, readings)
        for number, reading in enumerate(readings):
            masked = replace(batch, mask=reading.mask, said="attention")
            if self.attention and any(numbers is None for numbers in reading.attentions()):
                told = probe(model, masked, reading, self.of_kind("attention"))
                reading.notes += told or ([NOT_MEASURED] if reading.unseen else [])
            if reading.log.dropout:
                self._add_without_dropout(model, masked, number, reading)
            reading.causal = causal_in(model, masked, reading)
        return readings

    def tallies(self, model: nn.Module, batch: Batch, place: Place) -> Tallies:
        """The tally of one batch, stream by stream."""
        found = {}
        for reading in self.read(model, batch):
            check_positions(self.metrics, reading.states())
            found[reading.stream] = tally_of(model, reading, place)
        return found

    def _of_moved_tokens(self, model: nn.Module, batch: Batch, readings: list[Reading]) -> list[Reading]:
        """No attention was seen: who moves whom tells the token axis."""
        frames = settled(model, batch, readings[0], needed=self.attention)
        readings = readings if frames is None else self._run(model, batch, frames)
        for reading in readings:
            reading.unseen = self.attention
        return readings

    def _of_sure_axis(self, model: nn.Module, batch: Batch, readings: list[Reading]) -> list[Reading]:
        """The same readings, or others, where shapes leave the token axis in doubt."""
        main = readings[0]
        square = any(main.log.frames.is_ambiguous(b.source.shape) for b in main.blocks)
        if square or main.blocks[0].source.axis == 0:
            axis = axis_of_shorter(
                batch.args, batch.kwargs, lambda args, kwargs: self._axis_in(model, Batch(args, kwargs, None))
            )
            if square and axis is None:
                main.notes.append("as many sequences as tokens: the first axis was taken for the batch")
            elif square and axis == 0:
                return self._run(model, batch, Frames(square_axis=0))
            elif not square and axis not in (0, None):  # windows as long as the batch look like time-first sequences
                return self._run(model, batch, Frames(batch_first=True))
        return readings

    def _axis_in(self, model: nn.Module, batch: Batch) -> int | None:
        """The token axis that a quiet pass shows; None when no attention over whole sequences is seen."""
        recorder, _ = self._recorded(model, batch, Frames(), states=[], quiet=True)
        log = recorder.log
        streams = self._streams(model, log)
        frames = frames_of(log.flow, streams[:1], Frames()) if streams else log.frames
        shapes = [log.flow.nodes[block.source].shape for stream in streams[:1] for block in stream.blocks]
        if not streams:
            shapes = [call.source.shape for call in log.calls if call.source and len(call.source.shape) == 3]
        if streams and frames.assumed:
            return 1  # windows: no attention works on whole sequences
        if frames.assumed or not frames or any(map(frames.is_ambiguous, shapes)):  # not these tokens were cut
            return None
        axes = {frames.axis_of(shape) for shape in shapes}
        return axes.pop() if len(axes) == 1 else None

    def _add_without_dropout(self, model: nn.Module, batch: Batch, number: int, reading: Reading) -> None:
        """Once more with dropout silent: its noise counts as diversity, and hides a vector that has vanished."""
        before = reading.log.frames
        frames = Frames(square_axis=before.square_axis, batch_first=before.batch_first)
        states = [lookup("metric", name) for name in JUDGED]
        log, found, _ = self._found(model, batch, frames, states=states, quiet=True)
        blocks = found[number].blocks
        reading.without_dropout = [state.numbers for state in (blocks[0].source, *(b.result for b in blocks))]
        reading.vanished = vanished(log, blocks[-1])

    def _run(self, model: nn.Module, batch: Batch, frames: Frames) -> list[Reading]:
        """The readings of all streams, each with the padding that its attention shows."""
        log, found, gradients = self._measured(model, batch, frames)
        readings = []
        for number, one in enumerate(found):
            tokens, given = one.blocks[0].source.tokens, batch.mask if batch.said == "mask=" else None
            elsewhere = given is not None and len(found) > 1 and given.shape[-1] != tokens
            padding = Padding(None) if elsewhere else padding_seen(model, log, one.blocks, batch)
            if is_same_mask(padding.mask, batch.mask):
                reading = self._read(log, one, batch, gradients)
            else:
                masked = replace(batch, mask=padding.mask, said="attention")
                own, blocks, _ = self._measured(model, masked, frames)
                reading = self._read(own, blocks[number], masked, gradients)
            reading.notes += [padding.note] if padding.note else []
            readings.append(reading)
        return readings

    def _measured(self, model: nn.Module, batch: Batch, frames: Frames) -> tuple[Log, list[Found], dict[str, float]]:
        return self._found(model, batch, frames, states=self.of_kind("state"), quiet=False)

    def _read(self, log: Log, found: Found, batch: Batch, gradients: dict[str, float]) -> Reading:
        anatomies = [dissect(log, block) for block in found.blocks]
        ending = final_norm(log, found.blocks[-1])
        reading = Reading(log, found, anatomies, ending, batch.mask, gradients, self.of_kind("step"))
        reading.notes += gap_notes(found, named=self.blocks is not None, remedied=bool(log.remedies))
        return reading

    def _streams(self, model: nn.Module, log: Log) -> list[Stream]:
        return streams_of(log.flow, model, None if self.blocks is None else candidates(model, self.blocks))

    def _found(
        self, model: nn.Module, batch: Batch, frames: Frames, *, states: list[Any], quiet: bool
    ) -> tuple[Log, list[Found], dict[str, float]]:
        """The blocks of every stream, measured. Where ends of blocks were not known while the model ran, it runs again.

        Where no stream can be followed, blocks are modules that take tokens and give tokens.
        """
        choices: dict[str, Any] = {"states": states, "quiet": quiet}
        recorder, gradients = self._recorded(model, batch, frames.again(), **choices)
        log = recorder.log
        streams = self._streams(model, log)
        if streams:
            seen, log.frames = log.frames, frames_of(log.flow, streams, frames)
            streams = of_several_tokens(log.flow, streams, log.frames)
            found = [blocks_in(log, stream, recorder.states.by_node) for stream in streams]
            if None in found:
                wanted = set().union(*(stream.nodes() for stream in streams))
                recorder, gradients = self._recorded(model, batch, log.frames, wanted=wanted, **choices)
                log = recorder.log
                streams = of_several_tokens(log.flow, self._streams(model, log), log.frames)
                found = [blocks_in(log, stream, recorder.states.by_node) for stream in streams]
            if found and None not in found:
                for stream in reversed(streams):  # where two run through the same modules, the first is remembered
                    spans_of(log.flow, model, stream.blocks)  # trials of the blocks must know where their tokens are
                return log, found, gradients  # type: ignore[return-value]
            log.frames = seen
        try:
            return log, [find_blocks(log, model, named=self.blocks is not None)], gradients
        except BlocksNotFoundError:
            raise BlocksNotFoundError(none_found(model, repeated_calls(model, batch))) from None

    def _recorded(
        self,
        model: nn.Module,
        batch: Batch,
        frames: Frames,
        *,
        states: list[Any],
        quiet: bool,
        wanted: Iterable[int] = (),
    ) -> tuple[Recorder, dict[str, float]]:
        """One forward pass, recorded; quiet: dropout silenced, no heads, no gradients."""
        heads, loss = ([], None) if quiet else (self.of_kind("attention"), self.gradients)
        readers = StateReader(states, batch.mask), AttentionReader(heads, batch.mask, self.sample)
        with ExitStack() as stack, ExitStack() as walked:
            walked.enter_context(held(model))
            recorder = Recorder(
                model,
                candidates(model, self.blocks),
                *(partial(in_full_precision, reader) for reader in readers),
                frames=frames,
                silence_dropout=quiet,
                wanted=wanted,
                on_call=None if quiet else self.on_block,
            )
            for fix in fixes_in(model):
                fix.on_change = recorder.remedied
                stack.callback(setattr, fix, "on_change", None)
            stack.enter_context(untouched(model))
            stack.enter_context(eagerly())
            stack.enter_context(torch.inference_mode(False))  # inference tensors do not tell when they are written into
            stack.callback(recorder.states.remove_hooks)
            stack.enter_context(torch.set_grad_enabled(loss is not None))

            def run() -> dict[str, float]:
                with Watcher(recorder):
                    walked.close()  # the model may change its modules while it runs
                    output = batch.run(model)
                for reader in readers:
                    in_full_precision(reader.finish)
                return {} if loss is None else weight_gradients(model, loss(output))

            return recorder, run_model(model, run)
