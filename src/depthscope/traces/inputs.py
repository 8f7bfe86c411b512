"""What a user may hand to a model, made uniform: batches of arguments and their padding masks."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from depthscope.errors import MaskError, UsageError


@dataclass(frozen=True)
class Batch:
    """Arguments of one forward pass and mask (B, n), True where a token counts, or None."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mask: Tensor | None

    def run(self, model: Callable[..., Any]) -> Any:
        """Call the model on copies of the tensors: what it writes into them, the next pass must not see."""
        args, kwargs = fresh(self.args, self.kwargs)
        return model(*args, **kwargs)


def batches(model: nn.Module, inputs: Any, mask: Any = None) -> Iterator[Batch]:
    """One Batch for a tensor, a tuple (positional), a mapping (keywords); one for each item of another iterable."""
    if isinstance(inputs, Tensor | tuple | Mapping):
        if mask is not None and not isinstance(mask, Tensor):
            raise MaskError(
                f"for one batch mask must be a tensor (B, n); got {type(mask).__name__}. "
                "Give 1 for a token and 0 for padding."
            )
        yield _batch(model, inputs, mask)
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
        yield _batch(model, tuple(item) if isinstance(item, list) else item, own)
        count += 1
    if masks is not None and next(masks, None) is not None:
        raise MaskError(f"there must be one mask for each batch; got more than {count}. Give as many as batches.")
    if count == 0:
        raise UsageError("inputs must hold at least one batch; got an empty iterable. Is the generator used up?")


def _batch(model: nn.Module, item: Tensor | tuple | Mapping, mask: Tensor | None) -> Batch:
    kwargs = dict(item) if isinstance(item, Mapping) else {}
    args: tuple = (item,) if isinstance(item, Tensor) else () if isinstance(item, Mapping) else tuple(item)
    return Batch(args, kwargs, mask if mask is not None else padding_in(model, args, kwargs))


def fresh(args: tuple, kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments of a forward pass with copies of the tensors among them."""

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    return tuple(map(copied, args)), {name: copied(value) for name, value in kwargs.items()}


def named_arguments(model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Iterable[str]]:
    """The arguments of a forward pass by name, and all names that the model knows."""
    named = dict(kwargs)
    try:
        signature = inspect.signature(model.forward)
        return named | signature.bind_partial(*args, **kwargs).arguments, signature.parameters
    except (TypeError, ValueError):  # no signature, or arguments that the model itself will refuse
        return named, ()


def padding_in(model: nn.Module, args: tuple, kwargs: Mapping[str, Any], blocks: Iterable[str] = ()) -> Tensor | None:
    """The padding mask (B, n) among the arguments of a model, by name, as True for tokens; None when there is none.

    attention_mask (Hugging Face) and mask (x-transformers) mark tokens, src_key_padding_mask and key_padding_mask
    (torch) mark padding. Where torch's names exist, `mask` is a mask of scores and not of padding. For blocks of a
    decoder beside an encoder it is decoder_attention_mask.
    """
    named, known = named_arguments(model, args, kwargs)
    if "decoder_attention_mask" in known and any("decoder" in path for path in blocks):
        return _tokens_of(named.get("decoder_attention_mask"))
    for name in ("src_key_padding_mask", "key_padding_mask"):
        value = named.get(name)
        if isinstance(value, Tensor) and value.ndim == 2:
            return value == 0  # True, or minus infinity, is padding
    found = _tokens_of(named.get("attention_mask"))
    if found is None and not {"src_key_padding_mask", "key_padding_mask"} & set(known):
        found = _tokens_of(named.get("mask"))
        if found is not None and found.shape[0] == found.shape[1] > 1 and not bool(found.triu(1).any()):
            return None  # a causal mask of scores
    return found


def _tokens_of(mask: Any) -> Tensor | None:
    """A mask of tokens, 1 or True for one that counts, or one that is added to scores; (B, 1, n, n) by its keys."""
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        return None
    if mask.is_floating_point():
        mask = mask > -0.5 if bool((mask < 0).any()) else mask > 0.5
    return mask.bool() if mask.ndim == 2 else mask.bool().any(-2).any(1)
