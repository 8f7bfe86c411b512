"""What torch's functions do to laws: one rule for each, and an error for a function that has none."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.errors import DepthscopeError, ForecastError
from depthscope.forecasts.law import Law
from depthscope.forecasts.mixing import attended
from depthscope.forecasts.tensor import LawTensor, like, shapes
from depthscope.forecasts.units import Units
from depthscope.traces.attention import is_mha, mha_body, sdpa_arguments

Rule = Callable[[Any, tuple, dict], Any]


def follow(func: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a torch function for arguments of which some are laws."""
    if is_mha(func):
        return mha_body(func)(*args, **kwargs)
    name = getattr(func, "__name__", str(func))
    rule = RULES.get(name)
    if rule is None:
        raise no_rule(name, args)
    return rule(func, args, kwargs)


def no_rule(name: str, args: tuple) -> DepthscopeError:
    given = ", ".join(str(tuple(a.shape)) if isinstance(a, Tensor) else repr(a) for a in args)
    return ForecastError(f"forecast: what {name}({given}) does to the law of tokens is not known.")


def law_of(x: Any) -> Law:
    """The law of a LawTensor as a Gaussian one with a mean."""
    return x.law.settled() if isinstance(x.law, Units) else x.law


# the same tokens in another shape


def same(func: Any, args: tuple, kwargs: dict) -> Any:
    return like(shapes(func, args, kwargs), args[0].law)


def parts(func: Any, args: tuple, kwargs: dict) -> Any:
    """chunk, split, unbind: q, k and v out of one product; the known part is cut likewise."""
    out = shapes(func, args, kwargs)
    return tuple(like(part, _part(args[0].law, i, len(out))) for i, part in enumerate(out))


def picked(func: Any, args: tuple, kwargs: dict) -> Any:
    """x[i]: a part; other slices and joins are channels in another order, as rotary positions take them."""
    x, index = args[0], args[1]
    out = shapes(func, args, kwargs)
    if isinstance(index, int):
        return like(out, _part(x.law, index % x.shape[0], x.shape[0]))
    if index is None or (isinstance(index, tuple) and all(_is_all(i) for i in index)):
        return like(out, x.law)
    if isinstance(index, tuple) and index[0] is ... and len(index) == 3 and _is_all(index[2]):  # some of the tokens
        n = x.shape[-2]
        return like(out, law_of(x).mixed(torch.eye(n, dtype=torch.float64)[index[1]].unsqueeze(0)))
    if x.ndim < 4 and not (isinstance(index, tuple) and index[0] is ...):
        raise no_rule("__getitem__", args)
    return like(out, Law.fresh(law_of(x).overlaps()))


def _is_all(index: Any) -> bool:
    return index is None or index is ... or (isinstance(index, slice) and index == slice(None))


def joined(func: Any, args: tuple, kwargs: dict) -> Any:
    whole = [x for x in args[0] if x.numel()]
    out = shapes(func, args, kwargs)
    along = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if len(whole) == 2 and along % out.ndim == out.ndim - 2 and all(isinstance(x, LawTensor) for x in whole):
        return like(out, Law.stacked(*map(law_of, whole)))
    return like(out, whole[0].law if len(whole) == 1 else Law.fresh(law_of(whole[0]).overlaps()))


def _part(law: Law | Units, index: int, count: int) -> Law | Units:
    if isinstance(law, Units):
        return law
    return law.channelwise(lambda v: v.unflatten(-1, (count, -1))[..., index, :])


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
    x, y = (a, b) if isinstance(a, LawTensor) else (b, a)
    if isinstance(y, Tensor) and y.numel() > 1:
        if y.shape != x.shape[-1:]:
            raise no_rule(func.__name__, args)
        return like(out, law_of(x).shifted(factor * y.detach().double()))
    return like(out, Units.of(x.law).then(lambda u: u + factor * float(y)))


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
    y = y.detach().double()
    if y.shape == x.shape[-1:]:
        return like(out, law_of(x).scaled(y))
    return like(out, Law.fresh(float(y.square().mean()) * law_of(x).overlaps()))  # rotary positions: only sizes matter


def divided(func: Any, args: tuple, kwargs: dict) -> Any:
    x, y = args[:2]
    if isinstance(x, LawTensor) and isinstance(y, Tensor) and not isinstance(y, LawTensor) and y.numel() > 1:
        if y.shape[-1] != 1 or y.shape[-2] != x.shape[-2]:
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
    return _through(func, args, kwargs, x, W, bias[0] if bias else kwargs.get("bias"))


def addmm(func: Any, args: tuple, kwargs: dict) -> Any:
    bias, x, W = args  # as in Conv1D of GPT-2
    return _through(func, args, kwargs, x, W.T, bias)


def _through(func: Any, args: tuple, kwargs: dict, x: LawTensor, W: Tensor, bias: Tensor | None) -> Any:
    out = shapes(func, args, kwargs)
    if W.is_meta:  # of a design that is not built
        variance = 0.0 if bias is None else bias.variance  # type: ignore[attr-defined]
        return like(out, law_of(x).drawn_through(W.shape[1] * W.variance, variance))  # type: ignore[attr-defined]
    return like(out, law_of(x).through(W.detach().double(), None if bias is None else bias.detach().double()))


# functions of one entry


def pointwise(f: Callable[..., Tensor]) -> Rule:
    def rule(func: Any, args: tuple, kwargs: dict) -> Any:
        others = {name: value for name, value in kwargs.items() if name != "inplace"}
        units = Units.of(args[0].law).then(lambda u: f(u, *args[1:], **others))
        return like(shapes(func, args, kwargs), units)

    return rule


# over channels and over tokens


def normed(law: Law, weight: Tensor | None, bias: Tensor | None, *, centred: bool) -> Law:
    """Every token at root mean square 1, then weight and bias; centred: without its mean over channels before."""
    if centred:
        known = tuple((t, v - v.mean(-1, keepdim=True)) for t, v in law.known)
        law = Law(law.random, known, covariance=law.covariance)
    size = law.overlaps().diagonal(dim1=-2, dim2=-1)
    nothing = size < 1e-12 * size.amax(-1, keepdim=True)  # a norm leaves a token of zeros as it is
    law = law.weighed(torch.where(nothing, 0.0, size.clamp(min=1e-300).rsqrt()))
    law = law if weight is None or weight.is_meta else law.scaled(weight.detach().double())  # ones where not built
    return law if bias is None or bias.is_meta else law.shifted(bias.detach().double())


def norm(func: Any, args: tuple, kwargs: dict) -> Any:
    call = dict(zip(("input", "shape", "weight", "bias", "eps"), args, strict=False)) | kwargs
    centred = func.__name__ == "layer_norm"
    bias = call.get("bias") if centred else None
    return like(shapes(func, args, kwargs), normed(law_of(args[0]), call.get("weight"), bias, centred=centred))


def attention(func: Any, args: tuple, kwargs: dict) -> Any:
    call = sdpa_arguments(args, kwargs)
    q, k, v = call["query"], call["key"], call["value"]
    n, d_h, heads = q.shape[-2], q.shape[-1], q.shape[-3]
    laws = [law_of(x) for x in (q, k, v)]
    wide = laws[2].channelwise(lambda vector: _for_heads(vector, heads, v.shape[-1]))
    scale = call.get("scale") or d_h**-0.5
    out = attended(laws[0], laws[1], wide, _bias(call, n), scale=scale, d_h=d_h)
    return LawTensor(torch.Size((*q.shape[:-1], v.shape[-1])), q.dtype, out)


def _for_heads(vector: Tensor, heads: int, d_h: int) -> Tensor:
    """Values that several heads share, once for each."""
    shared = vector.unflatten(-1, (-1, d_h))
    return shared.repeat_interleave(heads // shared.shape[-2], -2).flatten(-2)


def _bias(call: dict[str, Any], n: int) -> Tensor:
    """What is added to the scores, (1 or B, n, n): masks, and biases of positions as a mean over heads."""
    mask = call.get("attn_mask")
    if call.get("is_causal"):
        mask = torch.ones(n, n, dtype=torch.bool).tril()
    if mask is None:
        return torch.zeros(1, n, n, dtype=torch.float64)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    mask = mask.detach().double()
    return mask.mean(1) if mask.ndim == 4 else mask.reshape(-1, n, n)


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


SHAPES = """view reshape transpose permute contiguous to unsqueeze squeeze flatten unflatten float double half bfloat16
type_as type clone detach expand expand_as movedim dropout repeat_interleave view_as swapaxes t"""
RULES: dict[str, Rule] = {
    **dict.fromkeys(SHAPES.split(), same),
    **dict.fromkeys(("chunk", "split", "unbind", "tensor_split"), parts),
    **dict.fromkeys(("__getitem__", "select"), picked),
    **dict.fromkeys(("cat", "concat"), joined),
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), added),
    **dict.fromkeys(("sub", "__sub__", "sub_"), subtracted),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "mul_", "multiply"), multiplied),
    **dict.fromkeys(("div", "__truediv__", "true_divide", "div_"), divided),
    **dict.fromkeys(("neg", "__neg__"), negated),
    **dict.fromkeys(("pow", "__pow__"), pointwise(torch.pow)),
    **{f.__name__: pointwise(f) for f in (torch.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.leaky_relu)},
    **dict.fromkeys(("layer_norm", "rms_norm"), norm),
    "zeros_like": zeros,
    "linear": linear,
    "addmm": addmm,
    "scaled_dot_product_attention": attention,
    "mean": mean_token,
    "cumsum": running_sum,
}
