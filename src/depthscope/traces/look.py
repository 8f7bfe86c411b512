"""One quiet forward pass that tells what a remedy must know: is the model causal, and which axis holds the tokens?"""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depthscope.traces.attention import AttentionSeen, attention_in, is_mha, mha_body
from depthscope.traces.shorter import first_size, one_row_less
from depthscope.traces.tokens import Frames, first_tokens
from depthscope.traces.untouched import untouched

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class Span:
    """One block as it runs: the module that its tokens enter by, and the one that they leave by; mostly the same.

    block: its path among those that were looked for.
    """

    block: str
    entry: str
    exit: str


@dataclass(frozen=True)
class Looked:
    """spans: the blocks that ran. causal: None when no self-attention was seen. axis: of the tokens in a block."""

    spans: list[Span]
    causal: bool | None
    axis: int


def look(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any]) -> Looked:
    """Run the model once without gradients and leave no trace of it; twice where shapes do not tell the token axis."""
    eyes = _seen(model, blocks, args, kwargs)
    axis = eyes.token_axis()
    size = first_size(args, kwargs)
    if (axis == 0 or eyes.is_square()) and size is not None and size > 1:
        axis = _seen(model, blocks, *one_row_less(args, kwargs)).token_axis()
    causal = all(eyes.verdicts) if eyes.verdicts else None
    return Looked(eyes.spans(), causal, 1 if axis is None else axis)


def _seen(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any]) -> "_Eyes":
    eyes = _Eyes(blocks)
    # a key-value cache would be filled by this pass
    kwargs = {k: copy.deepcopy(v) if hasattr(v, "get_seq_length") else v for k, v in kwargs.items()}
    with untouched(model), _hooks_away(model), torch.no_grad(), eyes:
        for index, path in enumerate(blocks):
            for part in _called(model, path):
                module = model.get_submodule(part)
                module.register_forward_pre_hook(eyes.enters(index, part), with_kwargs=True)
                module.register_forward_hook(eyes.leaves(index, part))
        model.forward(*args, **kwargs)
    return eyes


def _called(model: nn.Module, path: str) -> list[str]:
    """The block itself; or, when it is a list that nobody calls, the modules in it that are."""
    module = model.get_submodule(path)
    if not isinstance(module, nn.ModuleList):
        return [path]
    return [part for name, _ in module.named_children() for part in _called(model, f"{path}.{name}")]


@contextmanager
def _hooks_away(model: nn.Module) -> Iterator[None]:
    """Take all hooks off the modules for a while: this pass is nobody else's business."""
    kept = [(module, {name: getattr(module, name) for name in HOOKS}) for module in model.modules()]
    try:
        for module, _ in kept:
            for name in HOOKS:
                setattr(module, name, OrderedDict())
        yield
    finally:
        for module, hooks in kept:
            for name, own in hooks.items():
                setattr(module, name, own)


def is_causal(seen: AttentionSeen) -> bool:
    """Whether no token looks at those after it."""
    if seen.causal:
        return True
    if seen.P is not None:
        return not bool(seen.P.triu(1).any())
    if seen.bias is None:
        return False
    later = torch.ones(seen.bias.shape[-2:], dtype=torch.bool, device=seen.bias.device).triu(1)
    ahead = seen.bias[..., later]
    open_ = ahead if seen.bias.dtype == torch.bool else ahead > torch.finfo(seen.bias.dtype).min / 4
    return not bool(open_.any())


class _Eyes(TorchFunctionMode):
    """Remembers where the blocks start and end, and the verdict on every self-attention."""

    def __init__(self, blocks: list[str]) -> None:
        super().__init__()
        self.blocks = blocks
        self.frames = Frames()
        self.tokens: Tensor | None = None
        self.verdicts: list[bool] = []
        self._entries: dict[int, str] = {}
        self._exits: dict[int, str] = {}
        self._attends: set[int] = set()
        self._block = -1

    def enters(self, index: int, path: str) -> Any:
        def hook(_: nn.Module, args: tuple, kwargs: dict) -> None:
            self._block = index
            tokens = first_tokens(args, kwargs)
            if tokens is not None:
                self._entries.setdefault(index, path)
                self.tokens = tokens

        return hook

    def leaves(self, index: int, path: str) -> Any:
        def hook(_: nn.Module, args: tuple, output: Any) -> None:
            self._exits[index] = path

        return hook

    def token_axis(self) -> int | None:
        return None if self.tokens is None else self.frames.axis_of(tuple(self.tokens.shape))

    def is_square(self) -> bool:
        return self.tokens is not None and self.frames.is_ambiguous(tuple(self.tokens.shape))

    def spans(self) -> list[Span]:
        """The blocks in order; an entry that only attends is one block with the entries after it that do not."""
        ran = [index for index in sorted(self._entries) if index in self._exits]
        groups: list[list[int]] = []
        for index in ran:
            if index in self._attends or not groups or not self._attends:
                groups.append([])
            groups[-1].append(index)
        return [Span(self.blocks[group[0]], self._entries[group[0]], self._exits[group[-1]]) for group in groups]

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if is_mha(func):
            with self:
                return mha_body(func)(*args, **kwargs)
        result = func(*args, **kwargs)
        seen = attention_in(func, getattr(func, "__name__", ""), args, kwargs, result)
        if seen is not None and seen.queries == seen.keys > 1 and self.tokens is not None:
            batch = seen.batch_for(self.tokens)
            if batch is not None:
                self._attends.add(self._block)
                self.frames.add(batch, seen.queries)
                self.verdicts.append(is_causal(seen))
        return result
