"""One quiet forward pass before a change: the streams of a model, their blocks, and where their tokens lie."""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from depthscope.errors import ForwardError, HookError, UsageError
from depthscope.traces.blocks import candidates, find_blocks
from depthscope.traces.caches import is_cache
from depthscope.traces.cut_weights import forward_of
from depthscope.traces.flow import Flow
from depthscope.traces.inputs import fresh
from depthscope.traces.log import Log
from depthscope.traces.nodes import ModuleCall
from depthscope.traces.recorder import Recorder
from depthscope.traces.spans import Span, spans_of
from depthscope.traces.streams import Stream, frames_of, of_several_tokens, stream_called, streams_of
from depthscope.traces.token_axis import Frames, axis_of_shorter, first_size
from depthscope.traces.tokens import Layout
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watcher

WORKING = (
    "torch.distributed",
    "transformers",
    "accelerate",
    "depthscope.traces.whole_weights",
)  # a model works by them
GUARD = -1  # torch counts hooks from 0
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class Surveyed:
    """One stream: its blocks as they will run again, and where its tensors have tokens and channels."""

    name: str
    spans: list[Span]
    layouts: dict[str, Layout]  # by block
    paths: list[str]  # of all modules that its blocks are made of
    widths: dict[str, int] = field(default_factory=dict)  # channels, by block

    @property
    def axis(self) -> int:
        """Along which axis the tokens of the first block lie."""
        return self.layouts[self.spans[0].block].tokens[0]


@dataclass(frozen=True)
class Survey:
    """The streams of a model, the one with most blocks first.

    guessed: the shape (a, b, d) of tokens of which nothing tells whether they lie along a or b; else None.
    """

    streams: list[Surveyed]
    guessed: tuple[int, ...] | None = None

    @property
    def spans(self) -> list[Span]:
        """The blocks of all streams."""
        return [span for stream in self.streams for span in stream.spans]

    @property
    def axis(self) -> int:
        """Along which axis the tokens of the first stream lie."""
        return self.streams[0].axis

    def joined(self) -> Surveyed:
        """All streams as one."""
        layouts = {block: layout for one in self.streams for block, layout in one.layouts.items()}
        widths = {block: width for one in self.streams for block, width in one.widths.items()}
        paths = [path for one in self.streams for path in one.paths]
        return Surveyed(self.streams[0].name, self.spans, layouts, paths, widths)

    def only(self, name: str | None) -> "Survey":
        """The stream of this name alone; all of them where it is None."""
        chosen = stream_called(name, [one.name for one in self.streams])
        return self if chosen is None else replace(self, streams=[s for s in self.streams if s.name == chosen])


def survey(
    model: nn.Module,
    chosen: set[str] | None,
    args: tuple,
    kwargs: dict[str, Any],
    stream: str | None = None,
    known: Frames | None = None,
) -> Survey:
    """Run the model once without gradients and leave no trace of it; twice where shapes do not tell the token axis.

    chosen: paths of the blocks that the user names. stream: the one that is meant, where there are several. known: what
    is known of token axes.
    """
    log, streams = _pass(model, chosen, args, kwargs)
    flow = log.flow
    if not streams:
        return _by_modules(log, model, named=chosen is not None)
    streams = _apart(flow, streams, stream)
    frames = frames_of(flow, streams, Frames() if known is None else known)
    shapes = _shapes(flow, streams[0])
    if (
        known is None
        and not frames.assumed
        and (frames.axis_of(shapes[0]) == 0 or any(map(frames.is_ambiguous, shapes)))
    ):
        frames = _settled(model, chosen, args, kwargs, flow, streams)
    several = of_several_tokens(flow, streams, frames)
    in_doubt = frames.assumed and len(shapes[0]) == 3 and frames.layout_of(shapes[0]) == Layout((1,), 2)
    return Survey([_surveyed(flow, model, one, frames) for one in several], shapes[0] if in_doubt else None)


def _apart(flow: Flow, streams: list[Stream], meant: str | None) -> list[Stream]:
    """The streams, each with modules of its own: a change is made at modules.

    Where a block takes and gives the tokens of two streams (patches, and the pixels of each; a text and an image), the
    first of them can be changed by itself: it is the one that everybody takes for the tokens of these modules.
    """
    owners: dict[str, tuple[Stream, ModuleCall | None]] = {}
    for stream in streams:
        for path, call in {path: block.call for block in stream.blocks for path in block.paths}.items():
            owner, its_call = owners.setdefault(path, (stream, call))
            if owner is stream:
                continue
            at_once = owner is streams[0] and call is not None and its_call is call
            if at_once and stream_called(meant, [one.name for one in streams]) == owner.name:
                return [owner]
            raise HookError(
                f"every block must be of one stream; {_shown(flow, owner)} and {_shown(flow, stream)} both run through "
                f"{path}. A scan measures both; "
                + (f'pass stream="{owner.name}" for the first, and ' if at_once else "")
                + f"to change {'the other' if at_once else 'one'}, put its blocks into modules of their own."
            )
    return streams


def _shown(flow: Flow, stream: Stream) -> str:
    return f"{stream.name} {flow.nodes[stream.blocks[0].source].shape}"


def _surveyed(flow: Flow, model: nn.Module, stream: Stream, frames: Frames) -> Surveyed:
    spans = spans_of(flow, model, stream.blocks)
    layouts = {}
    for span, block in zip(spans, stream.blocks, strict=True):
        layout = frames.layout_of(flow.nodes[block.result].shape)
        assert layout is not None  # frames_of guesses where attention does not tell
        layouts[span.block] = layout
    shapes = [flow.nodes[block.result].shape for block in stream.blocks]
    widths = {span.block: s[layouts[span.block].channels] for span, s in zip(spans, shapes, strict=True)}
    paths = [path for block in stream.blocks for path in block.paths]
    return Surveyed(stream.name, spans, layouts, paths, widths)


def _by_modules(log: Log, model: nn.Module, *, named: bool) -> Survey:
    """Where there is no stream (nothing is added to anything), blocks are modules that take tokens and give tokens."""
    found = find_blocks(log, model, named=named)
    spans = [
        Span(b.paths[0], b.paths[0], b.paths[-1], sum(b.holds(a.order) for a in log.attentions)) for b in found.blocks
    ]
    layouts = {b.paths[0]: b.result.layout or Layout((1,), 2) for b in found.blocks}
    return Survey([Surveyed(found.stream, spans, layouts, [path for b in found.blocks for path in b.paths])])


def _shapes(flow: Flow, stream: Stream) -> list[tuple[int, ...]]:
    return [flow.nodes[block.source].shape for block in stream.blocks]


def _settled(
    model: nn.Module, chosen: set[str] | None, args: tuple, kwargs: dict, flow: Flow, streams: list[Stream]
) -> Frames:
    """The token axis, told by a shorter pass where batch and tokens may be taken for each other."""
    square = any(map(frames_of(flow, streams, Frames()).is_ambiguous, _shapes(flow, streams[0])))
    rows = first_size(args, kwargs) or 0
    short = axis_of_shorter(args, kwargs, lambda *cut: _axis_in(model, chosen, *cut)) if rows > 1 else None
    if short is None and square and rows > 1:
        raise UsageError(
            "there are as many sequences as tokens, so their axes cannot be told apart, and the model cannot run "
            "on one row less. Give a batch of another size."
        )
    batch_first = short not in (0, None)
    return frames_of(flow, streams, Frames(square_axis=1 if short is None else short, batch_first=batch_first))


def _axis_in(model: nn.Module, chosen: set[str] | None, args: tuple, kwargs: dict[str, Any]) -> int | None:
    """The token axis in a pass that the model may refuse; 1 where no attention over whole sequences is seen."""
    try:
        log, streams = _pass(model, chosen, args, kwargs)
    except Exception as error:
        raise ForwardError(str(error)) from error
    if not streams:
        return None
    frames, shapes = frames_of(log.flow, streams, Frames()), _shapes(log.flow, streams[0])
    if any(map(frames.is_ambiguous, shapes)):  # not these tokens were cut
        return None
    return 1 if frames.assumed else frames.axis_of(shapes[0])


def _pass(model: nn.Module, chosen: set[str] | None, args: tuple, kwargs: dict) -> tuple[Log, list[Stream]]:
    seen = Recorder(model, candidates(model, chosen), lambda *_: _Nothing(), lambda *_: None, silence_dropout=True)
    # a key-value cache would be filled by this pass
    kwargs = {k: copy.deepcopy(v) if is_cache(v) else v for k, v in kwargs.items()}
    with ExitStack() as quiet:
        for one in (untouched(model), evaluated(model), hooks_away(model), torch.no_grad(), Watcher(seen)):
            quiet.enter_context(one)
        args, kwargs = fresh(args, kwargs)
        # the forward function itself: hooks of the model around it are running already, or nobody's business
        seen.before("")(model, args, kwargs)
        seen.after("")(model, args, kwargs, forward_of(model)(*args, **kwargs))
    return seen.log, streams_of(seen.log.flow, model, chosen)


class _Nothing:
    """Numbers of a state that nobody asks for."""

    followed = True
    whole = True


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, so that no block is dropped by chance."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def hooks_away(model: nn.Module, keep: Callable[[Any], bool] | None = None) -> Iterator[None]:
    """Take hooks off the modules for a while, but those a model works by: this pass is nobody else's business.

    keep: says of a hook whether it stays too.
    """
    refuse = _to_other_threads()
    # through vars, as the wrapper of torch.compile sets attributes of the module inside instead of its own
    kept = [(vars(module), {name: getattr(module, name) for name in HOOKS}) for module in model.modules()]
    try:
        for own, hooks in kept:
            own |= {name: OrderedDict(pair for pair in hooks[name].items() if _stays(pair[1], keep)) for name in HOOKS}
            if any(getattr(hook, "depthscope_fix", None) is not None for hook in hooks["_forward_pre_hooks"].values()):
                own["_forward_pre_hooks"][GUARD] = refuse
        yield
    finally:
        for own, hooks in kept:
            for name, known in hooks.items():  # those that the model has given itself meanwhile, once for all, stay
                known.update((key, hook) for key, hook in own[name].items() if key not in known and key != GUARD)
            own |= hooks


def _to_other_threads() -> Callable[..., None]:
    """A hook in the place of those of a change: without it another thread would run the model as it is not."""
    mine = threading.get_ident()

    def refuse(module: nn.Module, *_: Any) -> None:
        if threading.get_ident() != mine:
            raise UsageError(
                f"{type(module).__name__} is being looked at by another thread, before its pass. Threads need a copy "
                "of the model each, copy.deepcopy(model)."
            )

    return refuse


def _stays(hook: Any, keep: Callable[[Any], bool] | None) -> bool:
    home = getattr(hook, "__module__", None) or ""
    return home.startswith(WORKING) or (keep is not None and keep(hook))
