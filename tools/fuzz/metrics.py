"""Every metric on odd tensors: any dtype, strides, sizes of zero, huge and tiny values, masks."""

import math
from random import Random
from typing import Any

import torch
from tools.fuzz.case import kind
from torch import Tensor

from depthscope.registry import TABLES

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SCALES = (1.0, 1.0, 1e-4, 1e4, 1e-30, 1e30, 0.0)


def laid_out(x: Tensor, rng: Random) -> Tensor:
    """The same numbers in another order of memory."""
    how = rng.randrange(4)
    if how == 0:
        return x.mT.contiguous().mT
    if how == 1:
        return torch.cat([x, x], dim=-1)[..., : x.shape[-1]]
    if how == 2:
        return torch.stack([x, x], dim=-1)[..., 0]
    return x.contiguous()


def parts(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


@kind(5000)
def metric(rng: Random) -> str:
    """Float64 for each sequence or head, within its bounds, as plain float64 tensors give it; or words."""
    f = TABLES["metric"][rng.choice(sorted(TABLES["metric"]))]
    b, h, n, d = (
        rng.choice(sizes) for sizes in ((0, 1, 1, 2, 2), (0, 1, 2, 2), (0, 1, 2, 3, 3, 5, 7, 7), (0, 1, 2, 3, 6, 6))
    )
    dtype, scale = rng.choice(DTYPES), rng.choice(SCALES)
    data = {name: (scale * torch.randn(b, n, d, dtype=torch.float64)).to(dtype) for name in "XY"}
    data["P"] = (rng.choice((0.0, 1.0, 30.0)) * torch.randn(b, h, n, n, dtype=torch.float64)).softmax(-1).to(dtype)
    if rng.random() < 0.1 and data["X"].numel():
        data["X"].view(-1)[rng.randrange(data["X"].numel())] = rng.choice((math.nan, math.inf))
    mask = (torch.rand(b, n) < 0.7) if rng.random() < 0.3 else None
    if mask is not None and rng.random() < 0.2:
        mask = rng.choice((mask.long(), mask.float(), mask[..., :1], mask[:0], ~mask))
    found = parts(f(*(laid_out(data[name], rng) for name in f.facts.takes), mask=mask))
    plain = parts(f(*(data[name].double().contiguous() for name in f.facts.takes), mask=mask))
    shape = (b, h) if f.facts.kind == "attention" else (b,)
    low, high = f.facts.bounds
    finite = all(bool(data[name].isfinite().all()) for name in f.facts.takes)
    for one, other in zip(found, plain, strict=True):
        assert one.dtype == torch.float64 and one.shape == shape, f"{f.facts.name}: {one.dtype} {tuple(one.shape)}"
        if finite:
            slack = 1e-6 + 4 * torch.finfo(dtype).eps
            inside = (one >= low - slack) & (one <= high + slack * max(1.0, abs(high)) if math.isfinite(high) else True)
            assert bool((inside | one.isnan()).all()), f"{f.facts.name}: {one.tolist()} is not in {low} to {high}"
        close = torch.isclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert bool(close.all()), f"{f.facts.name} {dtype} n={n} d={d}: {one.tolist()} but {other.tolist()} in float64"
    return "measured"
