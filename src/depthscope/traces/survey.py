"""One quiet forward pass before a change: which blocks run, and which axis holds tokens."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import ForwardError, UsageError
from depthscope.traces.attention import AttentionSeen, attention_in
from depthscope.traces.caches import is_cache
from depthscope.traces.inputs import fresh
from depthscope.traces.operations import Operation
from depthscope.traces.token_axis import Frames, axis_of_shorter, first_size
from depthscope.traces.tokens import first_tokens
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watched, Watcher

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class Span:
    """One block as it runs: the module that its tokens enter by, and the one that they leave by; mostly the same.

    block: its path among those that were looked for. attentions: how many attentions it has, cross-attention included.
    """

    block: str
    entry: str
    exit: str
    attentions: int = 0


@dataclass(frozen=True)
class Survey:
    """spans: the blocks that ran. missing: those that did not. axis: of the tokens."""

    spans: list[Span]
    missing: list[str]
    axis: int


def survey(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any]) -> Survey:
    """Run the model once without gradients and leave no trace of it; twice where shapes do not tell the token axis."""
    seen = _pass(model, blocks, args, kwargs)
    axis = seen.token_axis()
    if (axis == 0 or seen.is_square()) and (first_size(args, kwargs) or 0) > 1:
        short = axis_of_shorter(args, kwargs, lambda *cut: _axis_in(model, blocks, *cut))
        if short is None and seen.is_square():
            raise UsageError(
                "there are as many sequences as tokens, so their axes cannot be told apart, and the model cannot run "
                "on one row less. Give a batch of another size."
            )
        axis = axis if short is None else short
    return Survey(seen.spans(), seen.missing(), 1 if axis is None else axis)


def _axis_in(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any]) -> int | None:
    """The token axis in a pass that the model may refuse; 1 where no attention over whole sequences is seen."""
    try:
        seen = _pass(model, blocks, args, kwargs)
    except Exception as error:
        raise ForwardError(str(error)) from error
    if seen.is_square():  # not these tokens were cut
        return None
    axis = seen.token_axis()
    return 1 if axis is None else axis


def _pass(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any]) -> "_Surveyor":
    seen = _Surveyor(model, blocks)
    # a key-value cache would be filled by this pass
    kwargs = {k: copy.deepcopy(v) if is_cache(v) else v for k, v in kwargs.items()}
    with untouched(model), evaluated(model), hooks_away(model), torch.no_grad(), Watcher(seen):
        args, kwargs = fresh(args, kwargs)
        model.forward(*args, **kwargs)
    return seen


def _is_called(model: nn.Module, path: str) -> bool:
    return not isinstance(model.get_submodule(path), nn.ModuleList)


def called_parts(model: nn.Module, path: str) -> list[str]:
    """The block itself; or, when it is a list that nobody calls, the modules in it that are."""
    if _is_called(model, path):
        return [path]
    children = model.get_submodule(path).named_children()
    return [part for name, _ in children for part in called_parts(model, f"{path}.{name}")]


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
    """Take hooks off the modules for a while, but those of torch.distributed: this pass is nobody else's business.

    keep: says of a hook whether it stays too.
    """
    # through vars, as the wrapper of torch.compile sets attributes of the module inside instead of its own
    kept = [(vars(module), {name: getattr(module, name) for name in HOOKS}) for module in model.modules()]
    try:
        for own, hooks in kept:
            own |= {name: OrderedDict(pair for pair in hooks[name].items() if _stays(pair[1], keep)) for name in HOOKS}
        yield
    finally:
        for own, hooks in kept:
            own |= hooks


def _stays(hook: Any, keep: Callable[[Any], bool] | None) -> bool:
    home = getattr(hook, "__module__", None) or ""
    return home.startswith("torch.distributed") or (keep is not None and keep(hook))


class _Surveyor:
    """A listener that notes where blocks start and end, and the tokens that the first self-attention of each sees."""

    everything = False

    def __init__(self, model: nn.Module, blocks: list[str]) -> None:
        self.model, self.blocks = model, blocks
        self.halves = {i for i, path in enumerate(blocks) if not _is_called(model, path)}  # entries of lists
        self.frames = Frames()
        self.tokens: Tensor | None = None
        self._entries: dict[int, str] = {}
        self._exits: dict[int, str] = {}
        self._attentions: dict[int, int] = {}
        self._block: int | None = None

    def modules(self) -> Iterable[Watched]:
        for index, path in enumerate(self.blocks):
            for part in called_parts(self.model, path):
                yield Watched(self.model.get_submodule(part), self._enters(index, part), self._leaves(index, part))

    def closed(self, failed: bool) -> None: ...

    def _enters(self, index: int, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if index not in self.halves:
                self._attentions[index] = 0  # of this call: ALBERT calls one block many times
            self._block = index
            tokens = first_tokens(args, kwargs)
            if tokens is not None:
                self._entries.setdefault(index, path)
                self.tokens = tokens

        return hook

    def _leaves(self, index: int, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            self._exits[index] = path
            self._block = None if index not in self.halves else self._block

        return hook

    def token_axis(self) -> int | None:
        return None if self.tokens is None else self.frames.axis_of(tuple(self.tokens.shape))

    def is_square(self) -> bool:
        return self.tokens is not None and self.frames.is_ambiguous(tuple(self.tokens.shape))

    def missing(self) -> list[str]:
        return [
            path for index, path in enumerate(self.blocks) if index not in self._entries or index not in self._exits
        ]

    def spans(self) -> list[Span]:
        """The blocks in order; an entry of a list that attends is one block with the entries after it that do not."""
        groups: list[list[int]] = []
        for index in sorted(index for index in self._entries if index in self._exits):
            alone = index not in self.halves or self._attentions.get(index)
            if alone or not groups:
                groups.append([])
            groups[-1].append(index)
        return [
            Span(
                self.blocks[group[0]],
                self._entries[group[0]],
                self._exits[group[-1]],
                sum(self._attentions.get(index, 0) for index in group),
            )
            for group in groups
        ]

    def operation(self, op: Operation) -> Any:
        result = op.run()
        seen = attention_in(op, result)
        if seen is not None and self._block is not None and self.tokens is not None:
            self._count(seen, self._block, self.tokens)
        return result

    def _count(self, seen: AttentionSeen, block: int, tokens: Tensor) -> None:
        batch = seen.batch_for(tokens)
        if batch is None:
            return
        self._attentions[block] = self._attentions.get(block, 0) + 1
        if self._attentions[block] > 1 or seen.queries != seen.keys or seen.queries < 2:
            return  # the first attention of a block is its self-attention
        self.frames.add(batch, seen.queries)
