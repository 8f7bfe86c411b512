"""Laws through the blocks of a model: token similarity by depth, without computing a block."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from depthscope.errors import DepthscopeError, ForecastError
from depthscope.laws.boundaries import Boundary, Sums
from depthscope.laws.following import Following, StreamInDoubtError
from depthscope.laws.law import Law
from depthscope.laws.nests import leaves
from depthscope.laws.sampled_steps import AxisNeededError, SampledSteps, sampled_where_needed
from depthscope.laws.tensor import OtherTokensError
from depthscope.laws.written_norms import norms_followed
from depthscope.traces.caches import is_cache
from depthscope.traces.eagerly import eagerly
from depthscope.traces.entry import run_model
from depthscope.traces.inputs import fresh
from depthscope.traces.installed import prepare_fixes
from depthscope.traces.sure_survey import sure_survey
from depthscope.traces.survey import evaluated
from depthscope.traces.token_axis import axis_of_shorter
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watcher
from depthscope.traces.whole_weights import values_of, weights_in


class BlocksNotCalledError(ForecastError):
    """The modules that were taken for blocks are never called."""


@dataclass(frozen=True)
class Followed:
    """The law of the tokens before block 1 and after every block; sampled: modules without a law, and why.

    again: whether a module ran more than once, so that its matrices met what they had made.
    """

    laws: list[Law]
    sampled: dict[str, str] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True)
class Subject:
    """A model, its blocks, and what it is called with."""

    model: nn.Module
    blocks: list[Boundary]
    args: tuple
    kwargs: dict[str, Any]
    chosen: set[str] | None = None  # paths that the user names
    channels_first: bool | None = None  # whether tokens are (B, d, n) or (B, d, h, w), where a pass has told

    def modules(self, paths: list[str]) -> list[nn.Module]:
        return list({id(m): m for m in map(self.model.get_submodule, paths)}.values())

    @property
    def entries(self) -> list[nn.Module]:
        return self.modules([block.entry for block in self.blocks])


def laws_by_block(
    model: nn.Module,
    blocks: list[Boundary],
    chosen: set[str] | None,
    args: tuple,
    kwargs: dict[str, Any],
    *,
    channels_first: bool | None = None,
) -> Followed:
    """The law of the tokens before block 1 and after every block.

    What comes before the first block (embeddings) is computed as it is; from there on laws flow through the model's
    own code, and what comes after the last block is of no interest.
    """
    prepare_fixes(model, args, kwargs)  # their hooks come before ours, so that remedied tokens are seen
    subject = Subject(model, blocks, args, kwargs, chosen, channels_first)
    try:
        return _by_laws(subject)
    except ForecastError as error:
        try:
            return _followed_through(subject, _axis_seen(subject), remember=False, tokens_only=True)
        except DepthscopeError:
            raise error from None


def _by_laws(subject: Subject) -> Followed:
    """By laws wherever there are some."""
    copies = _has_copies(subject.entries)
    axis, found = _along_tokens(subject, remember=copies)
    again = found.again or len(found.laws) > len(subject.entries) + 1 or len(subject.entries) == 1
    if again and not copies:  # a module runs again, or may
        return _followed_through(subject, axis, remember=True)
    return found


def _along_tokens(subject: Subject, *, remember: bool) -> tuple[int, Followed]:
    """The token axis, 1 for (B, n, d) and 0 for (n, B, d), and the laws along it: what attention works on tells it."""

    def axis_in(args: tuple, kwargs: dict[str, Any]) -> int:
        try:
            _followed_through(replace(subject, args=args, kwargs=kwargs), None, remember=False)
        except OtherTokensError:
            return 0
        return 1

    try:
        found = _followed_through(subject, None, remember=remember)
    except (OtherTokensError, AxisNeededError) as error:
        axis = 0 if isinstance(error, OtherTokensError) else _axis_seen(subject)
        return axis, _followed_through(subject, axis, remember=remember)
    if len(found.laws[0].gaussian()) != found.laws[0].tokens:
        return 1, found  # not as many sequences as tokens
    if axis_of_shorter(subject.args, subject.kwargs, axis_in) != 0:
        return 1, found  # attention works on the second axis of fewer rows
    return 0, _followed_through(subject, 0, remember=remember)


def _axis_seen(subject: Subject) -> int:
    """The token axis, by a pass of the model: where tokens are to be drawn, laws have not told it."""
    seen = run_model(subject.model, lambda: sure_survey(subject.model, subject.chosen, subject.args, subject.kwargs))
    return 0 if seen.axis == 0 else 1


def _followed_through(subject: Subject, axis: int | None, *, remember: bool, tokens_only: bool = False) -> Followed:
    """axis: 1 where it is not known. remember: what matrices make of channels, for blocks that share their weights.

    tokens_only: modules that hand on something else than tokens are run on drawn ones.
    """
    model = subject.model
    past = any(map(is_cache, leaves((subject.args, subject.kwargs))))
    steps = SampledSteps(axis, past=past, tokens_only=tokens_only)
    following = Following(remember, len(subject.entries), steps, subject.channels_first)
    stopped: Exception | None = None
    with ExitStack() as stack:
        for quiet in (untouched(model), evaluated(model), torch.no_grad(), norms_followed(model)):
            stack.enter_context(quiet)
        stack.enter_context(eagerly())  # a compiled block would compile what laws do
        ends = subject.modules([path for block in subject.blocks for path in (block.entry, block.exit)])
        stack.enter_context(sampled_where_needed(model, ends, steps))
        for module in subject.entries:
            stack.callback(module.register_forward_pre_hook(following.enter, with_kwargs=True).remove)
        for block in {block.exit: block for block in subject.blocks}.values():
            hook = _leaving(following, block.sums)
            stack.callback(model.get_submodule(block.exit).register_forward_hook(hook).remove)
        if any(block.sums for block in subject.blocks):
            stack.enter_context(Watcher(Sums(following.summed)))
        try:
            given, named = fresh(subject.args, subject.kwargs)
            model(*given, **named)
        except Exception as error:
            if not following.over:  # inside a block, or before the last
                raise _unread(error, model) from error
            stopped = error
    found = following.states()
    if not found:
        raise BlocksNotCalledError(
            f"blocks must be modules that are called; those of {type(model).__name__} are not. Pass blocks=."
        )
    if len(found) <= len(subject.entries):
        raise ForecastError(
            f"every block must run on tokens (B, n, d); {len(found) - 1} of {len(subject.entries)} did. "
            "Pass blocks= with modules that are called."
        )
    if stopped is not None and (remember or tokens_only) and len(found) <= _runs(subject):
        raise _unread(stopped, model) from stopped  # between two runs of one module
    return Followed(found, steps.units, steps.again)


def _leaving(following: Following, sums: int) -> Callable[..., None]:
    return lambda module, given, output: following.leave(module, output, sums)


def _runs(subject: Subject) -> int:
    """How often blocks run: where they run again, nothing but a forward pass tells."""
    count = [0]

    def one_more(*_: Any) -> None:
        count[0] += 1

    with ExitStack() as stack:
        stack.enter_context(untouched(subject.model))
        stack.enter_context(torch.no_grad())
        for module in subject.entries:
            stack.callback(module.register_forward_hook(one_more).remove)
        args, kwargs = fresh(subject.args, subject.kwargs)
        subject.model(*args, **kwargs)
    return count[0]


def _unread(error: Exception, model: nn.Module) -> DepthscopeError:
    """What could not be read, the module it is in, and how to say it by hand."""
    if isinstance(error, DepthscopeError) and (
        isinstance(error, OtherTokensError | StreamInDoubtError) or not isinstance(error, ForecastError)
    ):
        return error
    where = _innermost(error, model)
    reason = str(error) if isinstance(error, ForecastError) else f"{type(error).__name__}: {error}"
    return ForecastError(
        f"{type(model).__name__} cannot be followed{f' in {where}' if where else ''}: "
        f"{reason.removeprefix('forecast: ').rstrip('.')}. Give what counts by hand, ds.forecast(depth=, n=, d=, h=, "
        "wiring= (norm placement), activation=, weights=, causal=), or calibrate on a scan, ds.forecast(scan, depth=)."
    )


def _innermost(error: Exception, model: nn.Module) -> str:
    """The path and class of the last module of the model that was running."""
    names = {id(module): name for name, module in model.named_modules() if name}
    found = ""
    step = error.__traceback__
    while step is not None:
        running = step.tb_frame.f_locals.get("self")
        if id(running) in names:
            found = f"{names[id(running)]} ({type(running).__name__})"
        step = step.tb_next
    return found


def _has_copies(modules: list[nn.Module]) -> bool:
    """Whether two neighbours have equal weights, as the copies of one layer in nn.TransformerEncoder do at first."""
    return any(_equal(a, b) for a, b in itertools.pairwise(modules))


def _equal(a: nn.Module, b: nn.Module) -> bool:
    return any(_same(one, other) for one, other in zip(_matrices(a), _matrices(b), strict=False))


def _matrices(module: nn.Module) -> list[tuple[nn.Module, str]]:
    return [(owner, name) for owner, name, parameter in weights_in(module) if parameter.ndim > 1]


def _same(one: tuple[nn.Module, str], other: tuple[nn.Module, str]) -> bool:
    p, q = values_of(*one), values_of(*other)
    return p.shape == q.shape and torch.equal(p[:1], q[:1]) and torch.equal(p, q)
