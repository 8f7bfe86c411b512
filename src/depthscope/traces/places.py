"""Which of the tensors that a module takes and gives is the stream, as far as a pass has told.

Blocks take other tensors beside their tokens: a condition, a pair representation, one token that stands for all. The
finder knows which of them is added to; here it is remembered for whoever meets the module again.
"""

import weakref
from typing import Any

from torch import Tensor, nn

from depthscope.traces.flow import tensors_in
from depthscope.traces.tokens import first_tokens, tokens_out

_given: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
_parts: weakref.WeakKeyDictionary[nn.Module, tuple[str, ...]] = weakref.WeakKeyDictionary()
_gave: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()


def remember(module: nn.Module, given: int, gave: int | None) -> None:
    """By their numbers among the tensors, the stream that a module takes, and the one it gives."""
    _given[module] = given
    if gave is not None:
        _gave[module] = gave


def remember_parts(block: nn.Module, parts: tuple[str, ...]) -> None:
    """The paths of the modules that run where a block is never called itself: the first and the last of them."""
    _parts[block] = parts


def called_parts(model: nn.Module, path: str) -> list[str]:
    """The block itself; or, when it is a list or a module that nobody calls, the modules in it that are."""
    block = model.get_submodule(path)
    if block in _parts:
        return list(_parts[block])
    if not isinstance(block, nn.ModuleList | nn.ModuleDict):
        return [path]
    return [part for name, _ in block.named_children() for part in called_parts(model, f"{path}.{name}")]


def tokens_given(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
    """The stream among the arguments of a module; where nothing is known, the first tensor that may hold tokens."""
    place = _given.get(module)
    found = None if place is None else _at(place, (*args, *kwargs.values()))
    if found is None:
        found = first_tokens(args, kwargs)
    return first_tokens(tuple(tensors_in((*args, *kwargs.values()))), {}) if found is None else found


def tokens_gave(module: nn.Module, output: Any, shape: tuple[int, ...]) -> Tensor | None:
    """The stream among what a module gives back for tokens of this shape."""
    place = _gave.get(module)
    found = None if place is None else _at(place, (output,))
    return tokens_out(output, shape) if found is None else found


def _at(place: int, values: tuple) -> Tensor | None:
    tensors = list(tensors_in(values))
    tensor = tensors[place] if place < len(tensors) else None
    return tensor if tensor is not None and tensor.is_floating_point() and tensor.ndim > 1 else None
