"""Which of the tensors that a module takes and gives is the stream, as far as a pass has told.

Blocks take other tensors beside their tokens: a condition, a pair representation, one token that stands for all. The
finder knows which of them is added to; here it is remembered for whoever meets the module again.
"""

import weakref
from typing import Any

from torch import Tensor, nn

from depthscope.errors import HookError
from depthscope.traces.nests import tensors_in, ways_to_tensors
from depthscope.traces.tokens import first_tokens, tokens_out

Key = tuple[Any, ...]  # the way to a tensor: its argument, by place or name, and so on inside

_given: weakref.WeakKeyDictionary[nn.Module, Key] = weakref.WeakKeyDictionary()
_gave: weakref.WeakKeyDictionary[nn.Module, Key] = weakref.WeakKeyDictionary()
_parts: weakref.WeakKeyDictionary[nn.Module, tuple[str, ...]] = weakref.WeakKeyDictionary()


def remember(module: nn.Module, given: Key, gave: Key | None) -> None:
    """The ways to the stream that a module takes, and to the one that it gives."""
    _given[module] = given
    if gave is not None:
        _gave[module] = gave


def remember_parts(block: nn.Module, parts: tuple[str, ...]) -> None:
    """The paths, inside a block that is never called itself, of the modules in it that run first and last."""
    _parts[block] = parts


def called_parts(model: nn.Module, path: str) -> list[str]:
    """The block itself; or, when it is a list or a module that nobody calls, the modules in it that are."""
    block = model.get_submodule(path)
    if block in _parts:
        return [f"{path}.{part}" for part in _parts[block]]
    if not isinstance(block, nn.ModuleList | nn.ModuleDict):
        return [path]
    return [part for name, _ in block.named_children() for part in called_parts(model, f"{path}.{name}")]


def is_known(module: nn.Module) -> bool:
    """Whether a pass has told which tensor of a module is the stream."""
    return module in _given


def tokens_given(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
    """The stream among the arguments of a module; where nothing is known, the first tensor that may hold tokens."""
    found = _at(_given.get(module), ways_to_tensors((args, kwargs)))
    if found is None:
        found = first_tokens(args, kwargs)
    return first_tokens(tuple(tensors_in((*args, *kwargs.values()))), {}) if found is None else found


def tokens_gave(module: nn.Module, output: Any, shape: tuple[int, ...]) -> Tensor | None:
    """The stream among what a module gives back for tokens of this shape."""
    key, tensors = _gave.get(module), ways_to_tensors((output,))
    found = _at(key, tensors)
    if found is None and key is not None and sum(tuple(t.shape) == shape for t in tensors.values()) > 1:
        raise HookError(
            f"a block must hand on its tokens as it did before; this {type(module).__name__} gives several tensors of "
            f"shape {shape}, and others than in the first pass. Fix the model anew when it is called in another way."
        )
    return tokens_out(output, shape) if found is None else found


def _at(key: Key | None, tensors: dict[Key, Tensor]) -> Tensor | None:
    tensor = None if key is None else tensors.get(key)
    return tensor if tensor is not None and tensor.is_floating_point() and tensor.ndim > 1 else None
