"""What torch's functions do to laws: one rule for each."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.laws.hidden_units import Units
from depthscope.laws.law import Law
from depthscope.laws.mixing import attended
from depthscope.laws.tensor import (
    ENTRYWISE,
    RULES,
    DrawnMatrix,
    LawTensor,
    OtherTokensError,
    Rule,
    by_channel,
    law_of,
    like,
    no_rule,
    shapes,
)
from depthscope.traces.operations import Operation

APART = 0.1  # of the attention of a head, up to 2: how far its biases may take it from the mean of heads

# sums and products


def added(func: Any, args: tuple, kwargs: dict, sign: float = 1.0) -> Any:
    a, b = args[:2]
    factor = sign * float(kwargs.get("alpha", 1.0))
    out = shapes(func, args, kwargs)
    if isinstance(a, LawTensor) and isinstance(b, LawTensor):
        if isinstance(a.law, Law) and isinstance(b.law, Law):
            return like(out, a.law.plus(b.law, factor))
        mine, other = Units.of(a.law), Units.of(b.law)
        if len(mine.factors) == len(other.factors) == 1 and mine.factors[0][0] is other.factors[0][0]:
            return like(out, mine.plus(other, factor))
        return like(out, law_of(a).plus(law_of(b), factor))
    if not isinstance(a, LawTensor):  # a + factor b is factor b + a
        return added(func, (b if factor == 1 else like(b, b.law.times(factor)), a), {})
    if isinstance(b, Tensor) and b.numel() > 1:
        y = b.detach().double()
        if (each := by_channel(a, b)) is not None:
            return like(out, law_of(a).shifted(factor * each))
        if a.ndim == 3 and y.shape[-2:] == a.shape[-2:]:  # positions, for example
            return like(out, law_of(a).plus(Law.of_tokens(y.expand(a.shape)), factor))
        raise no_rule(func.__name__, args)
    return like(out, Units.of(a.law).then(lambda u: u + factor * float(b)))


def subtracted(func: Any, args: tuple, kwargs: dict) -> Any:
    return added(func, args, kwargs, -1.0)


def multiplied(func: Any, args: tuple, kwargs: dict) -> Any:
    a, b = args[:2]
    out = shapes(func, args, kwargs)
    if isinstance(a, LawTensor) and isinstance(b, LawTensor):
        return like(out, Units.of(a.law).times(Units.of(b.law)))
    x, y = (a, b) if isinstance(a, LawTensor) else (b, a)
    if not isinstance(y, Tensor) or y.numel() == 1:
        return like(out, x.law.times(float(y.detach() if isinstance(y, Tensor) else y)))
    if (each := by_channel(x, y)) is not None:
        return like(out, law_of(x).scaled(each))
    y = y.detach().double()
    if y.ndim > 1 and y.shape[-1] == 1 and y.shape[-2] == x.shape[-2] and x.ndim == 3:  # a number for each token
        return like(out, law_of(x).weighed(y.squeeze(-1).reshape(-1, y.shape[-2])))
    if x.ndim == 4 and (y.shape[-2:] == x.shape[-2:] or _is_beside_heads(x, y)):  # rotary positions: only sizes matter
        return like(out, Law.fresh(float(y.square().mean()) * law_of(x).overlaps()))
    raise no_rule(func.__name__, args)


def _is_beside_heads(x: LawTensor, y: Tensor) -> bool:
    """Whether y (n, 1, d_h) has a number for each token and channel of x (B, n, h, d_h)."""
    form = (law_of(x).tokens, 1, x.shape[-1])
    return x.shape[1] == form[0] and y.ndim > 2 and y.shape[-3:] == form and y.shape[:-3].numel() == 1


def divided(func: Any, args: tuple, kwargs: dict) -> Any:
    x, y = args[:2]
    if isinstance(x, LawTensor) and isinstance(y, Tensor) and not isinstance(y, LawTensor) and y.numel() > 1:
        if y.ndim < 2 or y.shape[-1] != 1 or y.shape[-2] != x.shape[-2]:
            raise no_rule(func.__name__, args)
        each = y.detach().double().squeeze(-1)
        return like(shapes(func, args, kwargs), law_of(x).weighed(1 / each.reshape(-1, each.shape[-1])))  # a token
    if not isinstance(x, LawTensor) or isinstance(y, LawTensor):
        raise no_rule(func.__name__, args)
    return like(shapes(func, args, kwargs), x.law.times(1 / float(y)))


def zeros(func: Any, args: tuple, kwargs: dict) -> Any:
    return like(shapes(func, args, kwargs), law_of(args[0]).times(0.0))


def negated(func: Any, args: tuple, kwargs: dict) -> Any:
    return like(shapes(func, args, kwargs), args[0].law.times(-1.0))


def linear(func: Any, args: tuple, kwargs: dict) -> Any:
    x, W, *bias = args
    return through(func, args, kwargs, x, W, bias[0] if bias else kwargs.get("bias"))


def addmm(func: Any, args: tuple, kwargs: dict) -> Any:
    bias, x, W = args  # as in Conv1D of GPT-2
    return through(func, args, kwargs, x, W.T, bias)


def through(func: Any, args: tuple, kwargs: dict, x: LawTensor, W: Tensor, bias: Tensor | None) -> Any:
    out = shapes(func, args, kwargs)
    if isinstance(W, DrawnMatrix):
        variance = bias.variance if isinstance(bias, DrawnMatrix) else 0.0
        return like(out, law_of(x).drawn_through(W.shape[1] * W.variance, variance))
    return like(out, law_of(x).through(W.detach().double(), None if bias is None else bias.detach().double()))


# functions of one entry


def pointwise(f: Callable[..., Tensor]) -> Rule:
    def rule(func: Any, args: tuple, kwargs: dict) -> Any:
        others = {name: value for name, value in kwargs.items() if name != "inplace"}
        units = Units.of(args[0].law).then(lambda u: f(u, *args[1:], **others))
        return like(shapes(func, args, kwargs), units)

    return rule


# over channels and over tokens


def normed(law: Law, weight: Tensor | None, bias: Tensor | None, *, centred: bool, eps: float = 0.0) -> Law:
    """Every token at root mean square 1, then weight and bias; centred: without its mean over channels before."""
    if centred:
        known = tuple((t, v - v.mean(-1, keepdim=True)) for t, v in law.known)
        law = Law(law.random, known, covariance=law.gaussian(), doubt=law.doubt)
    size = law.overlaps().diagonal(dim1=-2, dim2=-1)
    nothing = size < 1e-12 * size.amax(-1, keepdim=True)  # a norm leaves a token of zeros as it is
    law = law.weighed(torch.where(nothing, 0.0, (size + eps).clamp(min=1e-300).rsqrt()))
    law = law if weight is None or weight.is_meta else law.scaled(weight.detach().double())  # ones where not built
    return law if bias is None or bias.is_meta else law.shifted(bias.detach().double())


def norm(func: Any, args: tuple, kwargs: dict) -> Any:
    centred = func.__name__ == "layer_norm"
    names = ("input", "shape", "weight", "bias", "eps") if centred else ("input", "shape", "weight", "eps")
    call = dict(zip(names, args, strict=False)) | kwargs
    bias = call.get("bias") if centred else None
    eps = call.get("eps", 1e-5) if centred else call.get("eps") or torch.finfo(args[0].dtype).eps
    law = normed(law_of(args[0]), call.get("weight"), bias, centred=centred, eps=eps)
    return like(shapes(func, args, kwargs), law)


def attention(func: Any, args: tuple, kwargs: dict) -> Any:
    call = Operation(func, func.__name__, "attention", args, kwargs).named()
    q, k, v = call["query"], call["key"], call["value"]
    if not all(isinstance(x, LawTensor) for x in (q, k, v)) or q.shape[-2] != k.shape[-2]:
        raise no_rule("cross-attention", (q, k, v))
    check_tokens(q)
    n, d_h, heads = q.shape[-2], q.shape[-1], q.shape[-3] if q.ndim == 4 else 1
    laws = [law_of(x) for x in (q, k, v)]
    wide = laws[2].channelwise(lambda vector: for_heads(vector, heads, v.shape[-1]))
    scale = d_h**-0.5 if call.get("scale") is None else call["scale"]
    out = attended(laws[0], laws[1], wide, bias_of(_mask(call, n), n), scale=scale, d_h=d_h, heads=heads)
    return LawTensor(torch.Size((*q.shape[:-1], v.shape[-1])), q.dtype, out)


def check_tokens(q: LawTensor) -> None:
    """Attention must work on all tokens of the law: (..., n, d_h)."""
    law, n = law_of(q), q.shape[-2]
    if law.tokens == n:
        return
    if len(law.gaussian()) == n:  # what was taken for sequences
        raise OtherTokensError(f"attention works on {n} tokens; there are {law.tokens}.")
    raise no_rule(f"attention over {n} of {law.tokens} tokens", (q,))


def for_heads(vector: Tensor, heads: int, d_h: int) -> Tensor:
    """Values that several heads share, once for each."""
    shared = vector.unflatten(-1, (-1, d_h))
    return shared.repeat_interleave(heads // shared.shape[-2], -2).flatten(-2)


def _mask(call: dict[str, Any], n: int) -> Tensor | None:
    return torch.ones(n, n, dtype=torch.bool).tril() if call.get("is_causal") else call.get("attn_mask")


def bias_of(mask: Tensor | None, n: int) -> Tensor:
    """What is added to the scores, (1 or B, n, n): masks, and biases of positions as a mean over heads."""
    if mask is None:
        return torch.zeros(1, n, n, dtype=torch.float64)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    mask = mask.detach().double()
    if mask.ndim == 4 and mask.shape[1] > 1:
        _check_alike(mask)
    mask = mask.mean(1) if mask.ndim == 4 else mask.reshape(-1, *mask.shape[-2:])
    mask = mask.expand(-1, n, n)
    mask = mask.masked_fill(mask < -1e4, -torch.inf)  # the smallest number of a dtype is meant so too
    blind = mask.isneginf().all(-1, keepdim=True)  # padding that sees nothing is let see itself; it counts for nothing
    return torch.where(blind & torch.eye(n, dtype=torch.bool), 0.0, mask)


def _check_alike(bias: Tensor) -> None:
    """Heads must look at nearly the same tokens by their biases, (B, heads, n, n): a law has one mean over heads."""
    P = bias.softmax(-1)
    if float((P - P.mean(1, keepdim=True)).abs().sum(-1).nanmean()) > APART:
        raise no_rule("a bias of its own for every head", (bias,))


def mean_token(func: Any, args: tuple, kwargs: dict) -> Any:
    x, n = args[0], _tokens(func, args, kwargs)
    return like(shapes(func, args, kwargs), law_of(x).mixed(torch.full((1, 1, n), 1 / n, dtype=torch.float64)))


def running_sum(func: Any, args: tuple, kwargs: dict) -> Any:
    x, n = args[0], _tokens(func, args, kwargs)
    return like(shapes(func, args, kwargs), law_of(x).mixed(torch.ones(1, n, n, dtype=torch.float64).tril()))


def _tokens(func: Any, args: tuple, kwargs: dict) -> int:
    """The number of tokens, where a function runs along them and not along channels."""
    x = args[0]
    along = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(along, int) or along % x.ndim != x.ndim - 2:
        raise no_rule(func.__name__, args)
    return x.shape[along]


POINTWISE = (
    *(torch.relu, torch.relu_, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.leaky_relu, F.mish, F.elu, F.softplus),
    *(F.hardswish, F.relu6, torch.erf, torch.square, torch.abs, torch.exp, torch.clamp, torch.sin, torch.cos),
)
SUMS = {
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), added),
    **dict.fromkeys(("sub", "__sub__", "sub_"), subtracted),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "mul_", "multiply"), multiplied),
    **dict.fromkeys(("div", "__truediv__", "true_divide", "div_"), divided),
    **dict.fromkeys(("neg", "__neg__"), negated),
}
FUNCTIONS = {
    **dict.fromkeys(("pow", "__pow__"), pointwise(torch.pow)),
    **{f.__name__: pointwise(f) for f in POINTWISE},
}
ENTRYWISE |= {*SUMS, *FUNCTIONS, "zeros_like"}
RULES |= {
    **SUMS,
    **FUNCTIONS,
    **dict.fromkeys(("layer_norm", "rms_norm"), norm),
    "zeros_like": zeros,
    "linear": linear,
    "addmm": addmm,
    "scaled_dot_product_attention": attention,
    "mean": mean_token,
    "cumsum": running_sum,
}
