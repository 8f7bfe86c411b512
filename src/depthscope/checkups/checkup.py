"""checkup(): look at a model as scan does, say what was recognised, and try what fix_ and forecast can do with it."""

from typing import Any

from torch import nn

from depthscope.checkups.record import MODEL, Checkup, Recognised, literal
from depthscope.checkups.seen import attentions_in, called_again, families_in, in_words
from depthscope.checkups.tried import fixes_tried, forecast_tried, one_line, told_of
from depthscope.errors import AttentionNotSeenError, BlocksNotFoundError, DepthscopeError, UnknownNameError
from depthscope.scans.assemble import assemble
from depthscope.scans.chosen_metrics import chosen_metrics
from depthscope.scans.reading import Reading
from depthscope.scans.record import Scan
from depthscope.scans.scan import Settings
from depthscope.scans.tally import tally_of
from depthscope.traces.entry import Entry, enter
from depthscope.traces.inputs import Batch
from depthscope.traces.installed import fixes_in
from depthscope.traces.log import State
from depthscope.traces.streams import ALONE, stream_called
from depthscope.traces.whose_padding import HANDED, READ_OFF

MOST_TRIES = 6
AGAIN = "one module called again and again"
AROUND = "sums in the code around modules"
CALLED = "modules that are called"
ALONE_FOUND = "modules that take tokens and return tokens; no residual stream was seen in them"


def checkup(
    model: nn.Module, inputs: Any, blocks: str | None = None, stream: str | None = None, target: str = MODEL
) -> Checkup:
    """What is recognised in a model on its inputs (the first batch). target: the model on the command line.

    It never fails for what the model is: an error of the scan is the finding, and other blocks are tried.
    """
    entry = enter(model, inputs, blocks)
    said: dict[str, Any] = {} if blocks is None else {"blocks": blocks}
    told: dict[str, Any] = {"model": type(entry.model).__name__, "target": target}
    told["remedies"] = [repr(fix) for fix in fixes_in(entry.model)]
    try:
        batch = next(iter(entry.batches()))
    except DepthscopeError as error:
        return Checkup(streams=[], problem=str(error), seen=in_words(families_in(entry.model)), **told)
    problem = None
    try:
        return Checkup(streams=_streams(entry, batch, said, stream), settings=said, **told)
    except UnknownNameError:  # a stream that is not there
        raise
    except Exception as error:  # whatever it is, it is the finding
        problem = error
    told |= {"problem": told_of(problem), "seen": _seen(entry, batch)}
    tried: dict[str, str] = {}
    for more in _ways(problem, said, entry, batch):
        line = "ds.scan(model, inputs" + "".join(f", {name}={literal(value)}" for name, value in more.items()) + ")"
        try:
            found = _streams(enter(model, inputs, more.get("blocks")), batch, more, stream)
            return Checkup(streams=found, settings=more, tried=tried | {line: "works"}, **told)
        except DepthscopeError as error:
            tried[line] = one_line(error)
    return Checkup(streams=[], tried=tried, **told)


def _seen(entry: Entry, batch: Batch) -> list[str]:
    """What there is beside blocks; of a model that does not run, its names alone."""
    families = families_in(entry.model)
    try:
        return in_words(families, called_again(entry.model, batch), attentions_in(entry.model, batch))
    except DepthscopeError:
        return in_words(families)


def _ways(problem: Exception, said: dict[str, Any], entry: Entry, batch: Batch) -> list[dict[str, Any]]:
    """What to try after a problem: without the heads where none was seen; other blocks where none were found, and both.

    Nothing where other blocks would not help: the model does not run, or a mask does not fit.
    """
    bare = {"attention": False}
    if isinstance(problem, AttentionNotSeenError):
        return [said | bare]
    if not isinstance(problem, BlocksNotFoundError):
        return []
    patterns = dict.fromkeys([*called_again(entry.model, batch), *families_in(entry.model)])
    others = [{"blocks": pattern} for pattern in patterns if pattern != said.get("blocks")][:MOST_TRIES]
    return [*others, *(other | bare for other in others)]


def _streams(entry: Entry, batch: Batch, said: dict[str, Any], only: str | None) -> list[Recognised]:
    """All streams that a scan with these settings reads, or one."""
    attention = said.get("attention", True)
    settings = Settings(chosen_metrics(None, attention=attention), entry.blocks, attention, None, None)
    readings = settings.read(entry.model, batch)
    chosen = stream_called(only, [reading.stream for reading in readings])
    wanted = [reading for reading in readings if chosen in (None, reading.stream)]
    where = {name: value for name, value in said.items() if name == "blocks"}
    return [_recognised(entry, batch, reading, where) for reading in wanted]


def _recognised(entry: Entry, batch: Batch, reading: Reading, where: dict[str, Any]) -> Recognised:
    model, scan = entry.model, assemble(tally_of(entry.model, reading), entry.notes)
    where = where | ({} if scan.stream == ALONE else {"stream": scan.stream})
    sizes = scan.sizes or [[scan.tokens, scan.width]]
    return Recognised(
        name=scan.stream,
        depth=scan.depth,
        blocks=scan.blocks,
        how=_how(model, reading),
        stages=[size for i, size in enumerate(sizes) if not i or size != sizes[i - 1]],
        layout=_layout(reading.blocks[0].source),
        attention=_attention(reading, scan),
        kinds=sorted({one.kind for one in reading.mixers()}),
        heads=max(scan.head_counts),
        causal=scan.causal,
        norms=scan.placement + (f", residual x {scan.residual_scale:.3g}" if scan.residual_scale != 1 else ""),
        final_norm=bool(scan.final_norm),
        steps=scan.step_names,
        padding=_padding(reading),
        fixes=fixes_tried(model, batch, where),
        forecast=forecast_tried(model, batch, scan, where),
        notes=scan.notes,
    )


def _how(model: nn.Module, reading: Reading) -> str:
    """How the blocks were found."""
    names = [block.name for block in reading.blocks]
    if any(block.attentions is None for block in reading.blocks):
        return ALONE_FOUND
    if len(set(names)) < len(names):
        return AGAIN
    around = any(
        len(block.paths) != 1 or isinstance(model.get_submodule(block.paths[0]), nn.ModuleList | nn.ModuleDict)
        for block in reading.blocks
    )
    return AROUND if around else CALLED


def _layout(state: State) -> str:
    """The axes of a state: (B, n, d), time-first (n, B, d), images (B, H, W, d)."""
    if state.layout is None:
        return f"{state.shape}, not told"
    names = ["B"] * len(state.shape)
    for axis, name in zip(state.layout.tokens, "HW" if len(state.layout.tokens) == 2 else "n" * 9, strict=False):
        names[axis] = name
    names[state.layout.channels] = "d"
    return f"({', '.join(names)}), token axis {', '.join(map(str, state.layout.tokens))}"


def _attention(reading: Reading, scan: Scan) -> str:
    mixers = reading.mixers()
    if not mixers:
        return "none was seen in the blocks"
    counts = {kind: sum(one.kind == kind for one in mixers) for kind in sorted({one.kind for one in mixers})}
    kinds = ", ".join(f"{kind} ({count} times)" for kind, count in counts.items())
    seen, heads = sum(count > 0 for count in scan.head_counts), max(scan.head_counts)
    way = {True: "causal", False: "not causal", None: "in part causal"}[scan.causal]
    return f"{kinds}; seen in {seen} of {scan.depth} blocks, {heads} heads, {way}"


def _padding(reading: Reading) -> str:
    if reading.mask is None or bool(reading.mask.all()):
        return "none found: all tokens count"
    left_out, all_of_them = int((~reading.mask.bool()).sum()), reading.mask.numel()
    told = next((note for note in reading.notes if note.startswith((READ_OFF, HANDED))), "the mask among the inputs")
    return f"{left_out} of {all_of_them} tokens; {told}"
