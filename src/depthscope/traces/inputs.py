"""What a user may hand to a model, made uniform: batches of arguments and their padding masks."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import Tensor, nn

from depthscope.errors import MaskError, UsageError

OPENED = 100.0  # above it a number is added to scores: no segment is called so
TORCH_NAMES = {"src_key_padding_mask", "tgt_key_padding_mask", "key_padding_mask"}


@dataclass(frozen=True)
class Batch:
    """Arguments of one forward pass and mask (B, n), True where a token counts, or None.

    said: who says so: "mask=", which nobody doubts, or "inputs", among which the mask was found.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mask: Tensor | None
    said: str = "inputs"

    def run(self, model: Callable[..., Any]) -> Any:
        """Call the model on copies of the tensors: what it writes into them, the next pass must not see."""
        args, kwargs = fresh(self.args, self.kwargs)
        return model(*args, **kwargs)


def batches(model: nn.Module, inputs: Any, mask: Any = None, blocks: Iterable[str] = ()) -> Iterator[Batch]:
    """One Batch for a tensor, a tuple (positional), a mapping (keywords); one for each item of another iterable."""
    if isinstance(inputs, Tensor | tuple | Mapping):
        if mask is not None and not isinstance(mask, Tensor):
            raise MaskError(
                f"for one batch mask must be a tensor (B, n); got {type(mask).__name__}. "
                "Give 1 for a token and 0 for padding."
            )
        yield _batch(model, inputs, mask, blocks)
        return
    if not isinstance(inputs, Iterable) or isinstance(inputs, str | bytes):
        raise UsageError(
            "inputs must be a tensor, a tuple of positional arguments, a mapping of keyword arguments or an "
            f"iterable of those; got {type(inputs).__name__}. Call your tokenizer first if this is text."
        )
    if mask is not None and (isinstance(mask, Tensor) or not isinstance(mask, Iterable)):
        raise MaskError(
            "inputs is an iterable of batches, so mask must be an iterable of masks; got one mask. "
            "Give one for each batch."
        )
    masks = iter(mask) if mask is not None else None
    count = 0
    for item in inputs:
        if not isinstance(item, Tensor | tuple | list | Mapping):
            raise UsageError(
                f"every batch must be a tensor, a tuple or a mapping; batch {count} is {type(item).__name__}. "
                "Wrap your batches so that they can be passed to the model."
            )
        own = None
        if masks is not None:
            own = next(masks, None)
            if own is None:
                raise MaskError(f"there must be one mask for each batch; the masks ended at batch {count}. Give more.")
            if not isinstance(own, Tensor):
                raise MaskError(
                    f"every mask must be a tensor (B, n); that of batch {count} is {type(own).__name__}. "
                    "Give 1 for a token and 0 for padding."
                )
        yield _batch(model, tuple(item) if isinstance(item, list) else item, own, blocks)
        count += 1
    if masks is not None and next(masks, None) is not None:
        raise MaskError(f"there must be one mask for each batch; got more than {count}. Give as many as batches.")
    if count == 0:
        raise UsageError("inputs must hold at least one batch; got an empty iterable. Is the generator used up?")


def _batch(model: nn.Module, item: Tensor | tuple | Mapping, mask: Tensor | None, blocks: Iterable[str]) -> Batch:
    kwargs = dict(item) if isinstance(item, Mapping) else {}
    args: tuple = (item,) if isinstance(item, Tensor) else () if isinstance(item, Mapping) else tuple(item)
    if mask is not None:
        return Batch(args, kwargs, mask, said="mask=")
    return Batch(args, kwargs, padding_in(model, args, kwargs, blocks))


def fresh(args: tuple, kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments of a forward pass with copies of the tensors among them, also of those inside lists and records."""
    copies: dict[int, Any] = {}  # a tensor that is given twice stays one
    return tuple(_copied(value, copies) for value in args), {k: _copied(v, copies) for k, v in kwargs.items()}


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    new: Any
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, Tensor):
        copies[id(value)] = new = value.clone()
        return new
    if isinstance(value, tuple):
        parts = [_copied(part, copies) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list | MutableMapping):
        copies[id(value)] = new = copy.copy(value)
        for key, part in value.items() if isinstance(value, MutableMapping) else enumerate(value):
            new[key] = _copied(part, copies)
        return new
    if is_dataclass(value) and not isinstance(value, type):
        copies[id(value)] = new = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(new, name, _copied(part, copies))  # frozen ones too
        return new
    return value


def named_arguments(model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Iterable[str]]:
    """The arguments of a forward pass by name, and all names that the model knows."""
    named = dict(kwargs)
    try:
        signature = inspect.signature(model.forward)
        return named | signature.bind_partial(*args, **kwargs).arguments, signature.parameters
    except (TypeError, ValueError):  # no signature, or arguments that the model itself will refuse
        return named, ()


def arguments_inside(model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass by name, and what records among them (a dict, a dataclass) hold by name."""
    return _opened(named_arguments(model, args, kwargs)[0])


def padding_in(model: nn.Module, args: tuple, kwargs: Mapping[str, Any], blocks: Iterable[str] = ()) -> Tensor | None:
    """The padding mask (B, n) among the arguments of a model, by name, as True for tokens; None when there is none.

    attention_mask (Hugging Face) and mask (x-transformers) mark tokens; src_key_padding_mask, key_padding_mask, and
    tgt_key_padding_mask for a decoder (torch) mark padding. Where torch's names exist, `mask` is a mask of scores and
    not of padding. For blocks of a decoder beside an encoder it is decoder_attention_mask or tgt_key_padding_mask.
    Arguments that hold others by name (a dict, a BatchEncoding, a dataclass) are looked into.
    """
    given, names = named_arguments(model, args, kwargs)
    named = _opened(given)
    known = {*names, *named}
    in_decoder = any("decoder" in path for path in blocks)
    if "decoder_attention_mask" in known and in_decoder:
        return _tokens_of(named.get("decoder_attention_mask"))
    alone = "src_key_padding_mask" not in known  # a decoder by itself
    for name in ("tgt_key_padding_mask",) if alone or in_decoder else ("src_key_padding_mask",):
        found = _not_padding(named.get(name))
        if found is not None or (in_decoder and name in known):
            return found
    found = _not_padding(named.get("key_padding_mask"))
    if found is not None:
        return found
    found = _tokens_of(named.get("attention_mask"))
    if found is None and not TORCH_NAMES & set(known):
        found = _tokens_of(named.get("mask"))
        if found is not None and found.shape[0] == found.shape[1] > 1 and not bool(found.triu(1).any()):
            return None  # a causal mask of scores
    return found


def _opened(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for record in named.values() for name, value in _entries(record).items()} | named


def _entries(value: Any) -> Mapping[str, Any]:
    """What an argument holds by name; nothing where it is no record."""
    if isinstance(value, Mapping):
        return {name: entry for name, entry in value.items() if isinstance(name, str)}
    return vars(value) if is_dataclass(value) and not isinstance(value, type) else {}


def _not_padding(mask: Any) -> Tensor | None:
    """torch's masks of padding (B, n), or (n,) of one sequence: True, or minus infinity, is padding."""
    return mask == 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _tokens_of(mask: Any) -> Tensor | None:
    """A mask of tokens, 1 or True for one that counts, or one that is added to scores; (B, 1, n, n) by its keys.

    Zeros alone are added to scores and close nothing; Longformer adds 10000 for a token that attends to all.
    """
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        return None
    if mask.is_floating_point():
        added = bool((mask < 0).any() | (mask > OPENED).any()) or not bool((mask > 0.5).any())
        mask = mask > -0.5 if added else mask > 0.5
    return mask.bool() if mask.ndim == 2 else mask.bool().any(-2).any(1)
