"""Functions that know channels before places, (B, c, n) or (B, c, h, w): means of neighbours, and norms of all."""

from typing import Any

import torch

from depthscope.laws.law import Law
from depthscope.laws.tensor import PLACES, RULES, LawTensor, law_of, like, no_rule, shapes


def pooled(func: Any, args: tuple, kwargs: dict) -> Any:
    """avg_pool: every place a mean of its neighbours, the same in each channel, M X; M is what becomes of 1 0 .. 0."""
    x, *how = args
    n = x.shape[2:].numel()
    if not _has_channels_first(x):
        raise no_rule(func.__name__, args)
    ones = torch.eye(n, dtype=torch.float64).reshape(n, 1, *x.shape[2:])
    M = func(ones, *how, **kwargs).flatten(1).T
    return like(shapes(func, args, kwargs), law_of(x).mixed(M.unsqueeze(0)))


def norm_of_all(func: Any, args: tuple, kwargs: dict) -> Any:
    """group_norm with one group: all tokens and channels together at mean 0 and variance 1, then weight and bias."""
    call = dict(zip(("input", "num_groups", "weight", "bias", "eps"), args, strict=False)) | kwargs
    x, weight, bias, eps = call["input"], call.get("weight"), call.get("bias"), call.get("eps", 1e-5)
    if call["num_groups"] != 1 or not _has_channels_first(x):
        raise no_rule(func.__name__, args)
    law = _centred(law_of(x))
    size = law.overlaps().diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    law = law.weighed((size + eps).rsqrt().expand(-1, law.tokens))
    law = law if weight is None else law.scaled(weight.detach().double())
    law = law if bias is None else law.shifted(bias.detach().double())
    return like(shapes(func, args, kwargs), law)


def _has_channels_first(x: LawTensor) -> bool:
    return x.turned and law_of(x).tokens == x.shape[2:].numel()


def _centred(law: Law) -> Law:
    """Without the mean over all tokens and channels, to which the Gaussian part adds nothing."""
    if not law.known:
        return law
    mean = sum(t.mean(-1) * v.mean(-1) for t, v in law.known)
    t, v = torch.ones_like(law.known[0][0]), law.known[0][1]
    shift = (-torch.as_tensor(mean).reshape(-1, 1)).expand(-1, v.shape[-1])
    return Law(law.random, (*law.known, (t, shift)), covariance=law.gaussian(), doubt=law.doubt)


PLACES |= {"avg_pool1d", "avg_pool2d", "group_norm"}
RULES |= {"avg_pool1d": pooled, "avg_pool2d": pooled, "group_norm": norm_of_all}
