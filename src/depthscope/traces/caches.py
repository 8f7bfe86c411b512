"""What a model remembers from pass to pass, as an argument: key-value caches, states of recurrences, records of both.

Nothing is known of their classes: a cache holds tensors, and says, or shows, whether something is in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor, nn

NAMES = ("past_key_values", "cache", "cache_params")  # how models call it among their arguments
STATES = ("state", "states")  # the same where it is a list of tensors; a tensor of that name is an input
DEEP = 6  # levels of records inside records that are looked into


def is_cache(value: Any) -> bool:
    """Whether a value is an object that passes write into: a cache of Hugging Face, or another that holds tensors."""
    if hasattr(value, "get_seq_length"):
        return True
    if is_segment_memory(value):
        return False
    plain = (Tensor, nn.Module, Mapping, list, tuple, str, bytes, int, float, bool, type(None))
    if isinstance(value, plain) or isinstance(value, type) or callable(value) or is_dataclass(value):
        return False
    return next(tensors_held(value), None) is not None


def is_segment_memory(value: Any) -> bool:
    """Whether this is a models.SegmentMemory, which is never written into."""
    return hasattr(value, "means") and hasattr(value, "length")


def cache_in(named: Mapping[str, Any]) -> Any:
    """The cache among values by name, arguments of a pass or what it returned; None where there is none."""
    found = [named.get(name) for name in NAMES]
    found += [named.get(name) for name in STATES if is_cache(named.get(name)) or _are_tensors(named.get(name))]
    return next((value for value in found if value is not None), None)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Tensor) for one in value)


def tensors_held(value: Any, deep: int = DEEP) -> Iterator[Tensor]:
    """All tensors inside an object, in order."""
    if isinstance(value, Tensor):
        yield value
    elif deep and isinstance(value, Mapping):
        yield from tensors_held(list(value.values()), deep)
    elif deep and isinstance(value, list | tuple):
        for one in value:
            yield from tensors_held(one, deep - 1)
    elif deep and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        yield from tensors_held(list(vars(value).values()), deep)


def is_filled(cache: Any) -> bool:
    """Whether a cache holds something of earlier tokens: any of its layers says so; else, any number in it."""
    own = getattr(cache, "self_attention_cache", cache)  # of an encoder-decoder's two
    layers = getattr(own, "layers", None)
    if isinstance(layers, list):
        return any(map(_layer_is_filled, layers))
    if hasattr(own, "get_seq_length"):
        return bool(own.get_seq_length())
    return any(bool(tensor.any()) for tensor in tensors_held(cache) if tensor.numel())


def _layer_is_filled(layer: Any) -> bool:
    before = getattr(layer, "has_previous_state", False)
    if any(before.values()) if isinstance(before, Mapping) else bool(before):
        return True
    return hasattr(layer, "get_seq_length") and int(layer.get_seq_length()) > 0


def length_held(cache: Any) -> int:
    """How many tokens a cache says it holds; 0 where it does not say, as recurrences do not."""
    own = getattr(cache, "self_attention_cache", cache)
    layers = getattr(own, "layers", None)
    if isinstance(layers, list):
        return max((int(one.get_seq_length()) for one in layers if hasattr(one, "get_seq_length")), default=0)
    return int(own.get_seq_length()) if hasattr(own, "get_seq_length") else 0
