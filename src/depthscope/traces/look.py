"""One quiet forward pass that tells what a remedy must know: the blocks that run, whether one is causal, the axes."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depthscope.errors import UsageError
from depthscope.traces.attention import AttentionSeen, attention_in, is_mha, mha_body
from depthscope.traces.shorter import first_size, one_row_less
from depthscope.traces.tokens import Frames, first_tokens
from depthscope.traces.untouched import untouched

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
CLOSED = 1e4  # a key whose score is lowered by more than this, against the best of its row, is not seen


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
class Looked:
    """spans: the blocks that ran. missing: those that did not. causal: None when nothing tells. axis: of the tokens."""

    spans: list[Span]
    missing: list[str]
    causal: bool | None
    axis: int


def look(
    model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any], mask: Tensor | None = None
) -> Looked:
    """Run the model once without gradients and leave no trace of it; twice where shapes do not tell the token axis.

    mask (B, n): True where a token counts; what padding looks at says nothing about the model.
    """
    eyes = _seen(model, blocks, args, kwargs, mask)
    axis = eyes.token_axis()
    size = first_size(args, kwargs)
    if (axis == 0 or eyes.is_square()) and size is not None and size > 1:
        axis = _axis_of_shorter(model, blocks, args, kwargs, eyes)
    verdicts = eyes.verdicts.values()
    return Looked(eyes.spans(), eyes.missing(), any(verdicts) if verdicts else None, 1 if axis is None else axis)


def _axis_of_shorter(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict, eyes: "_Eyes") -> int | None:
    try:
        return _seen(model, blocks, *one_row_less(args, kwargs), None).token_axis()
    except Exception as error:  # masks that do not fit any more, and whatever else a model minds
        if eyes.is_square():
            raise UsageError(
                "fix_: there are as many sequences as tokens, so their axes cannot be told apart, and the model cannot "
                f"run on one row less ({type(error).__name__}). Run it first on a batch of another size."
            ) from error
        return eyes.token_axis()


def _seen(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any], mask: Tensor | None) -> "_Eyes":
    eyes = _Eyes(blocks, mask, {i for i, path in enumerate(blocks) if not _is_called(model, path)})
    # a key-value cache would be filled by this pass
    kwargs = {k: copy.deepcopy(v) if is_cache(v) else v for k, v in kwargs.items()}
    with untouched(model), evaluated(model), hooks_away(model), torch.no_grad(), eyes:
        handles = []
        try:
            for index, path in enumerate(blocks):
                for part in _called(model, path):
                    module = model.get_submodule(part)
                    handles.append(module.register_forward_pre_hook(eyes.enters(index, part), with_kwargs=True))
                    handles.append(module.register_forward_hook(eyes.leaves(index, part)))
            model.forward(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
    return eyes


def is_cache(value: Any) -> bool:
    """Whether a value is a key-value cache of Hugging Face, which every pass makes longer."""
    return hasattr(value, "get_seq_length")


def _is_called(model: nn.Module, path: str) -> bool:
    return not isinstance(model.get_submodule(path), nn.ModuleList)


def _called(model: nn.Module, path: str) -> list[str]:
    """The block itself; or, when it is a list that nobody calls, the modules in it that are."""
    if _is_called(model, path):
        return [path]
    children = model.get_submodule(path).named_children()
    return [part for name, _ in children for part in _called(model, f"{path}.{name}")]


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
def hooks_away(model: nn.Module) -> Iterator[None]:
    """Take hooks off the modules for a while, but those of torch.distributed: this pass is nobody else's business."""
    kept = [(module, {name: getattr(module, name) for name in HOOKS}) for module in model.modules()]
    try:
        for module, hooks in kept:
            for name, own in hooks.items():
                needed = [(k, hook) for k, hook in own.items() if _module_of(hook).startswith("torch.distributed")]
                setattr(module, name, OrderedDict(needed))
        yield
    finally:
        for module, hooks in kept:
            for name, own in hooks.items():
                setattr(module, name, own)


def _module_of(hook: Any) -> str:
    return getattr(hook, "__module__", None) or ""


def is_causal(seen: AttentionSeen, mask: Tensor | None = None) -> bool | None:
    """Whether no token looks at those after it; None when there are no two tokens to tell.

    mask (B, n): queries that are padding are left out.
    """
    if seen.causal:
        return True
    n = seen.queries
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    open_ = _open(seen)  # (..., n, n), True where a query sees a key
    if open_ is None:
        return False if mask is None or int(mask.sum(-1).max()) > 1 else None
    ahead = open_.cpu() & later
    if mask is not None and open_.ndim == 4 and open_.shape[0] in (1, mask.shape[0]):
        both = (mask.unsqueeze(-1) & mask.unsqueeze(-2)).unsqueeze(1).cpu()  # (B, 1, n, n)
        if not bool((both & later).any()):
            return None
        ahead = ahead & both
    return not bool(ahead.any())


def _open(seen: AttentionSeen) -> Tensor | None:
    if seen.P is not None:
        return seen.P > 0
    if seen.bias is None:
        return None
    return seen.bias if seen.bias.dtype == torch.bool else seen.bias > seen.bias.amax(-1, keepdim=True) - CLOSED


class _Eyes(TorchFunctionMode):
    """Remembers where the blocks start and end, and the verdict on the first self-attention of each."""

    def __init__(self, blocks: list[str], mask: Tensor | None, entries_of_lists: set[int]) -> None:
        super().__init__()
        self.blocks, self.mask, self.halves = blocks, mask, entries_of_lists
        self.frames = Frames()
        self.tokens: Tensor | None = None
        self.verdicts: dict[int, bool] = {}
        self._entries: dict[int, str] = {}
        self._exits: dict[int, str] = {}
        self._attentions: dict[int, int] = {}
        self._block: int | None = None

    def enters(self, index: int, path: str) -> Any:
        def hook(_: nn.Module, args: tuple, kwargs: dict) -> None:
            if index not in self.halves:
                self._attentions[index] = 0  # of this call: ALBERT calls one block many times
            self._block = index
            tokens = first_tokens(args, kwargs)
            if tokens is not None:
                self._entries.setdefault(index, path)
                self.tokens = tokens

        return hook

    def leaves(self, index: int, path: str) -> Any:
        def hook(_: nn.Module, args: tuple, output: Any) -> None:
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

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if is_mha(func):
            with self:
                return mha_body(func)(*args, **kwargs)
        result = func(*args, **kwargs)
        seen = attention_in(func, getattr(func, "__name__", ""), args, kwargs, result)
        if seen is not None and self._block is not None and self.tokens is not None:
            self._count(seen)
        return result

    def _count(self, seen: AttentionSeen) -> None:
        block = self._block
        assert block is not None and self.tokens is not None
        batch = seen.batch_for(self.tokens)
        if batch is None:
            return
        self._attentions[block] = self._attentions.get(block, 0) + 1
        if self._attentions[block] > 1 or seen.queries != seen.keys or seen.queries < 2:
            return  # the first attention of a block is its self-attention
        self.frames.add(batch, seen.queries)
        fits = self.mask is not None and tuple(self.mask.shape) == (batch, seen.queries)
        verdict = is_causal(seen.folded(batch), self.mask if fits else None)
        if verdict is not None:
            self.verdicts[block] = verdict
