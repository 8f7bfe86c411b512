"""Attention that is written out, step by step: products of queries and keys, masks, a softmax, the values."""

from typing import Any

import torch
from torch import Tensor

from depthscope.laws.mixing import attended
from depthscope.laws.rules import bias_of, check_tokens, for_heads, through
from depthscope.laws.scores import Pattern, Scores, Unread
from depthscope.laws.tensor import RULES, SCORE_RULES, LawTensor, law_of, like, no_rule, shapes
from depthscope.traces.operations import operands_of

HIDDEN = -1e4  # a score below this is a mask


def product(func: Any, args: tuple, kwargs: dict) -> Any:
    """matmul, bmm: by weights, of tokens among each other, or queries with keys."""
    a, b = args[:2]
    out = shapes(func, args, kwargs)
    if isinstance(a, LawTensor) and isinstance(b, LawTensor):
        if a.turned or min(a.ndim, b.ndim) < 3:
            raise no_rule(func.__name__, args)
        return like(out, _scores(a, b, keys=b.shape[-1], channels=a.shape[-1]))
    if isinstance(a, LawTensor) and b.ndim == 2 and not a.turned:
        return through(func, args, kwargs, a, b.T, None)
    if isinstance(b, LawTensor) and b.ndim == 3 and not b.turned and a.ndim in (2, 3):
        if law_of(b).tokens == b.shape[-2] == a.shape[-1]:
            return like(out, law_of(b).mixed(a.detach().double().reshape(-1, *a.shape[-2:])))
    raise no_rule(func.__name__, args)


def _scores(q: LawTensor, k: LawTensor, *, keys: int, channels: int) -> Scores:
    """Of q (..., n, channels) and k, which has as many tokens, in whatever layout."""
    check_tokens(q)
    law = law_of(k)
    if law.tokens != keys or keys != q.shape[-2]:
        raise no_rule("cross-attention", (q, k))
    batch = len(law_of(q).gaussian())
    return Scores(law_of(q), law, channels, max(1, q.shape[:-2].numel() // batch))


def einsum(func: Any, args: tuple, kwargs: dict) -> Any:
    """b h i d, b h j d -> b h i j; b i d, d e -> b i e, with queries before keys and in the end."""
    equation, (a, b) = args[0].replace(" ", ""), _two(func, args)
    (first, second), result = equation.split("->")[0].split(","), equation.partition("->")[2]
    out = shapes(func, args, kwargs)
    summed = (set(first) & set(second)) - set(result)
    other = [letter for letter in second if letter in result and letter not in first]
    if isinstance(a, LawTensor) and isinstance(b, LawTensor) and len(other) == len(summed) == 1:
        if first[-1] in summed and first[-2] not in second and result[-2:] == first[-2] + other[0]:
            keys = b.shape[second.index(other[0])]
            return like(out, _scores(a, b, keys=keys, channels=a.shape[-1]))
    elif isinstance(a, LawTensor) and not isinstance(b, LawTensor) and b.ndim == 2 and summed == {first[-1]}:
        W = b if second[-1] == first[-1] else b.T  # (out, in)
        if result == first[:-1] + other[0] and not a.turned:
            return like(out, law_of(a).through(W.detach().double(), None))
    raise no_rule(func.__name__, args)


def _two(func: Any, args: tuple) -> tuple[Any, Any]:
    operands = operands_of(args)
    if len(operands) != 2 or "..." in args[0] or "->" not in args[0]:
        raise no_rule(func.__name__, args)
    return operands


def with_bias(func: Any, args: tuple, kwargs: dict) -> Any:
    """baddbmm: scores and a bias in one."""
    bias, a, b = args[0], kwargs.get("batch1", args[1] if len(args) > 1 else None), kwargs.get("batch2", args[-1])
    if isinstance(bias, LawTensor) or not isinstance(a, LawTensor) or not isinstance(b, LawTensor):
        raise no_rule(func.__name__, args)
    scores = _scores(a, b, keys=b.shape[-1], channels=a.shape[-1]).times(float(kwargs.get("alpha", 1.0)))
    form = torch.Size((*a.shape[:-1], b.shape[-1]))
    beta = float(kwargs.get("beta", 1.0))
    made = scores.plus(beta * _for_scores(bias, form, scores)) if beta else scores
    return LawTensor(form, a.dtype, made)


# what is done to scores


def moved(func: Any, args: tuple, kwargs: dict) -> Any:
    """A mask or a bias of positions is added."""
    x, y = _held(args)
    if kwargs or not isinstance(y, Tensor) or isinstance(y, LawTensor):
        raise no_rule(func.__name__, args)
    scores = _of(x, Scores)
    return like(shapes(func, args, kwargs), scores.plus(_for_scores(y, x.shape, scores)))


def scaled(func: Any, args: tuple, kwargs: dict) -> Any:
    x, y = _held(args)
    if isinstance(y, Tensor) and y.numel() > 1:
        raise no_rule(func.__name__, args)
    divides = "div" in func.__name__
    if divides and x is not args[0]:
        raise no_rule(func.__name__, args)
    return like(shapes(func, args, kwargs), _of(x, Scores).times(1 / float(y) if divides else float(y)))


def masked(func: Any, args: tuple, kwargs: dict) -> Any:
    """masked_fill(scores, mask, value), where(mask, scores, value)."""
    if func.__name__ == "where":
        kept, x, value = args
        mask = ~kept
    else:
        x, mask, value = args
    if not isinstance(x, LawTensor) or (isinstance(value, Tensor) and value.numel() > 1) or float(value) > HIDDEN:
        raise no_rule(func.__name__, args)
    scores = _of(x, Scores)
    places = _for_scores(mask, x.shape, scores).bool()
    return LawTensor(x.shape, x.dtype, scores.replaced(places, -torch.inf))


def capped(func: Any, args: tuple, kwargs: dict) -> Any:
    """tanh, as scores that are capped softly go through it: what is linear of it, E tanh'(s) for Gaussian scores s."""
    x, scores = args[0], _of(args[0], Scores)
    if scores.bias is not None:
        raise no_rule(func.__name__, args)
    S_q, S_k = scores.q.overlaps(), scores.k.overlaps()
    spread = (S_k.diagonal(dim1=-2, dim2=-1).mean() - S_k.mean()).clamp(min=0)
    variance = scores.scale**2 * scores.d_h * S_q.diagonal(dim1=-2, dim2=-1).mean() * spread
    z = torch.linspace(-6, 6, 241, dtype=torch.float64)
    gain = ((1 - (variance.sqrt() * z).tanh().square()) * (-z.square() / 2).softmax(0)).sum()
    return LawTensor(x.shape, x.dtype, scores.times(float(gain)))


def softmax(func: Any, args: tuple, kwargs: dict) -> Any:
    x, along = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
    if along is None or along % x.ndim != x.ndim - 1:
        raise no_rule(func.__name__, args)
    return LawTensor(x.shape, kwargs.get("dtype") or x.dtype, Pattern(_of(x, Scores)))


def unread(func: Any, args: tuple, kwargs: dict) -> Any:
    return like(shapes(func, args, kwargs), Unread())


def looked(func: Any, args: tuple, kwargs: dict) -> Any:
    """P v: matmul, bmm, or einsum with the keys last in P."""
    P, v = operands_of(args)[:2]
    if not isinstance(P, LawTensor) or not isinstance(v, LawTensor):
        raise no_rule(func.__name__, args)
    d_v = v.shape[-1]
    if isinstance(args[0], str):
        first, second, result = args[0].replace(" ", "").replace("->", ",").split(",")
        if second[-1] != result[-1] or first[-1] not in second or first[-1] in result:
            raise no_rule(func.__name__, args)
    s = _of(P, Pattern).scores
    values = law_of(v)
    if values.tokens != P.shape[-1]:
        raise no_rule(func.__name__, args)
    wide = values.channelwise(lambda vector: for_heads(vector, s.heads, d_v))
    bias = bias_of(s.bias, P.shape[-1])
    law = attended(s.q, s.k, wide, bias, scale=s.scale, d_h=s.d_h, heads=s.heads)
    return like(shapes(func, args, kwargs), law)


def _held(args: tuple) -> tuple[LawTensor, Any]:
    """The scores, and the other operand."""
    a, b = args[:2]
    return (a, b) if isinstance(a, LawTensor) else (b, a)


def _of(x: LawTensor, kind: type) -> Any:
    if not isinstance(x.law, kind):
        raise no_rule(f"a step of attention on {type(x.law).__name__.lower()}", (x,))
    return x.law


def _for_scores(y: Tensor, form: torch.Size, scores: Scores) -> Tensor:
    """What is added to scores (B, heads, n, n), (B heads, n, n) or the like, as (B or 1, heads or 1, n, n)."""
    y = y.detach()
    y = y.double() if y.dtype != torch.bool else y
    if y.ndim < 3 or len(form) == y.ndim == 4:
        return y.reshape((1,) * (4 - y.ndim) + y.shape)
    if scores.heads == 1 and len(form) == 3:
        return y.unsqueeze(1)
    if len(form) == 4:
        return y.reshape(1, *y.shape)
    wide = y.expand(*form[:-2], *y.shape[-2:])
    return wide.reshape(-1, scores.heads, *y.shape[-2:])


PRODUCTS = ("matmul", "__matmul__", "bmm")
RULES |= {**dict.fromkeys(PRODUCTS, product), "einsum": einsum, "baddbmm": with_bias}
SCORE_RULES |= {
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), moved),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "mul_", "div", "__truediv__", "true_divide", "div_"), scaled),
    **dict.fromkeys(("masked_fill", "masked_fill_", "where"), masked),
    "softmax": softmax,
    "tanh": capped,
    **dict.fromkeys(("mean", "sum"), unread),
    **dict.fromkeys((*PRODUCTS, "einsum"), looked),
}
