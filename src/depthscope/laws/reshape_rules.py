"""The same tokens in another shape: views, cuts and joins of channels, as fused products and rotary positions need."""

import itertools
from typing import Any

import torch

from depthscope.laws.law import Law
from depthscope.laws.tensor import LAYOUTS, RULES, LawTensor, law_of, like, no_rule, shapes


def same(func: Any, args: tuple, kwargs: dict) -> Any:
    if not isinstance(args[0], LawTensor):
        return _as_laws_are(func, args, kwargs)
    x, out = args[0], shapes(func, args, kwargs)
    made = like(out, x.law)
    if isinstance(made, LawTensor):
        made.turned = x.turned != (x.ndim == out.ndim == 3 and 1 < out.shape[-1] and out.stride(-1) != 1)
        made.groups = out.shape[-3:-1] if x.ndim == 3 and out.ndim == 5 else x.groups  # (B, n, c) -> (B, n, a, b, c')
    return made


def moved(func: Any, args: tuple, kwargs: dict) -> Any:
    """x.to(device) and its like: laws stay where they are computed, whatever device their tokens are sent to."""
    if not isinstance(args[0], LawTensor):
        return _as_laws_are(func, args, kwargs)
    if func.__name__ in ("cpu", "cuda"):
        return same(torch.Tensor.contiguous, args[:1], {})
    nowhere = tuple("meta" if isinstance(a, torch.device | str) else a for a in args)
    return same(func, nowhere, {**kwargs, **({"device": "meta"} if "device" in kwargs else {})})


def _as_laws_are(func: Any, args: tuple, kwargs: dict) -> Any:
    """A plain tensor that takes only dtype or shape from a law, such as mask.type_as(x), stays one."""

    def plain(value: Any) -> Any:
        return torch.empty((), dtype=value.form.dtype).expand(value.form.shape) if type(value) is LawTensor else value

    return func(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})


def chunked(func: Any, args: tuple, kwargs: dict) -> Any:
    """chunk, split: q, k and v out of one product, cut along channels."""
    x, out = args[0], shapes(func, args, kwargs)
    along = kwargs.get("dim", args[2] if len(args) > 2 else 0)
    if along % x.ndim != x.ndim - 1 or x.ndim not in (3, 4):
        raise no_rule(func.__name__, args)
    ends = list(itertools.accumulate((part.shape[-1] for part in out), initial=0))
    return tuple(
        like(part, _slice(x, slice(first, last))) for part, first, last in zip(out, ends[:-1], ends[1:], strict=True)
    )


def _slice(x: LawTensor, cut: slice) -> Law:
    """Some channels of every head, or of all channels where heads are not apart yet."""
    wide = x.shape[-1]
    return law_of(x).channelwise(lambda v: v.unflatten(-1, (-1, wide))[..., cut].flatten(-2))


def unbound(func: Any, args: tuple, kwargs: dict) -> Any:
    """q, k, v along the first axis of (3, B, h, n, d_h) or the like; or before they are brought there."""
    x, along = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0) % args[0].ndim
    out = shapes(func, args, kwargs)
    return tuple(like(part, _at(x, along, i)) for i, part in enumerate(out))


def _at(x: LawTensor, along: int, index: int) -> Law:
    """One of the places along an axis, where channels lie along it."""
    if along == 0:
        return _group(x, index)
    if along == x.ndim - 1 > 3:  # pairs of channels, as rotary positions turn them
        wide = x.shape[-1]
        return law_of(x).channelwise(lambda v: v.unflatten(-1, (-1, wide))[..., index])
    if x.ndim == 5 and x.groups == x.shape[2:4] and x.shape[1] == law_of(x).tokens and along in (2, 3):
        first, second = x.shape[2:4]
        place = (..., index, *[slice(None)] * (4 - along))
        return law_of(x).channelwise(lambda v: v.unflatten(-1, (first, second, -1))[place].flatten(-2))
    raise no_rule("unbind", (x, along))


def stacked(func: Any, args: tuple, kwargs: dict) -> Any:
    """Pairs of channels, as rotary positions turn them: (..., d_h / 2) twice -> (..., d_h / 2, 2)."""
    parts, along = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0)
    out = shapes(func, args, kwargs)
    if not all(isinstance(x, LawTensor) for x in parts) or along % out.ndim != out.ndim - 1:
        raise no_rule(func.__name__, tuple(parts))
    return like(out, Law.fresh(torch.stack([law_of(x).overlaps() for x in parts]).mean(0)))


def _group(x: LawTensor, index: int) -> Law:
    """One of the groups along the first axis: channels that lie together, or one of each head's."""
    count = x.shape[0]
    if x.ndim < 4:
        raise no_rule("__getitem__", (x, index))
    heads, each = x.groups or (count, 0)
    if heads != count and each == count:
        return law_of(x).channelwise(lambda v: v.unflatten(-1, (heads, count, -1))[..., index, :].flatten(-2))
    return law_of(x).channelwise(lambda v: v.unflatten(-1, (count, -1))[..., index, :])


def picked(func: Any, args: tuple, kwargs: dict) -> Any:
    """x[i]: one of q, k, v; x[..., a:b]: some channels, as rotary positions take them."""
    x, index = args[0], args[1]
    out = shapes(func, args, kwargs)
    if out.shape == x.shape and all(map(_is_slice, index if isinstance(index, tuple) else (index,))):
        return like(out, x.law)  # all of it, as the last 512 of fewer tokens
    if isinstance(index, int):
        return like(out, _group(x, index % x.shape[0]))
    if index is None or (isinstance(index, tuple) and all(_is_all(i) for i in index)):
        return like(out, x.law)
    if isinstance(index, tuple) and sum(isinstance(i, int) for i in index) == 1 and all(map(_is_one_or_all, index)):
        place = next(i for i, part in enumerate(index) if isinstance(part, int))
        along = place - len(index) + x.ndim if ... in index[:place] else place
        return like(out, _at(x, along, index[place] % x.shape[along]))
    index = _from_the_end(index, x.ndim)
    if isinstance(index, tuple) and index[0] is ... and len(index) == 3 and _is_all(index[2]):  # some of the tokens
        n = x.shape[-2]
        if law_of(x).tokens != n:
            raise no_rule("__getitem__", args)
        return like(out, law_of(x).mixed(torch.eye(n, dtype=torch.float64)[index[1]].unsqueeze(0)))
    if isinstance(index, tuple) and index[0] is ... and len(index) == 2 and isinstance(index[1], slice):
        return like(out, _slice(x, index[1]))
    raise no_rule("__getitem__", args)


def _from_the_end(index: Any, axes: int) -> Any:
    """x[:, :, a:b] as x[..., a:b, :] is written."""
    if not isinstance(index, tuple) or not all(isinstance(i, slice) for i in index):
        return index
    full = (*index, *([slice(None)] * (axes - len(index))))
    if axes < 3 or not all(_is_all(i) for i in full[:-2]) or not (_is_all(full[-1]) or _is_all(full[-2])):
        return index
    return (..., full[-1]) if _is_all(full[-2]) else (..., *full[-2:])


def _is_one_or_all(index: Any) -> bool:
    return isinstance(index, int) or (index is not None and _is_all(index))


def _is_slice(index: Any) -> bool:
    return index is ... or (isinstance(index, slice) and index.step in (None, 1))


def _is_all(index: Any) -> bool:
    return index is None or index is ... or (isinstance(index, slice) and index == slice(None))


def joined(func: Any, args: tuple, kwargs: dict) -> Any:
    whole = [x for x in args[0] if x.numel()]
    out = shapes(func, args, kwargs)
    along = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if not all(isinstance(x, LawTensor) for x in whole):
        raise no_rule(func.__name__, tuple(whole))
    if len(whole) == 1:
        return like(out, whole[0].law)
    if len(whole) == 2 and along % out.ndim == out.ndim - 2:
        return like(out, Law.stacked(*map(law_of, whole)))
    if along % out.ndim != out.ndim - 1:
        raise no_rule(func.__name__, tuple(whole))
    share = [x.shape[-1] / out.shape[-1] for x in whole]  # channels of several, as halves that rotary positions turn
    return like(out, Law.fresh(sum(w * law_of(x).overlaps() for w, x in zip(share, whole, strict=True))))


SHAPES = """view reshape transpose permute contiguous unsqueeze squeeze flatten unflatten float double half bfloat16
type_as type clone detach expand expand_as movedim dropout repeat_interleave view_as reshape_as swapaxes t"""
MOVES = ("to", "cpu", "cuda")
LAYOUTS |= {*SHAPES.split(), *MOVES}
RULES |= {
    **dict.fromkeys(SHAPES.split(), same),
    **dict.fromkeys(MOVES, moved),
    **dict.fromkeys(("chunk", "split", "tensor_split"), chunked),
    "unbind": unbound,
    "stack": stacked,
    **dict.fromkeys(("__getitem__", "select"), picked),
    **dict.fromkeys(("cat", "concat"), joined),
}
