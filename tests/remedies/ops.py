"""What the tests of ops on tokens share: the shelf, a remedy that shows, random tokens."""

import inspect

import torch
from torch import Tensor

from depthscope.registry import TABLES
from depthscope.remedies.remedy import Remedy

SHELF = {
    name: kind for name, kind in TABLES["remedy"].items() if kind.at not in ("attn", "weights", "values")
}  # those at a site of tokens
B, N, D = 2, 6, 4


def arguments(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(SHELF[name]).parameters)


def build(name: str, **options) -> Remedy:
    """The remedy with its width where it wants one; learned strengths away from their start, so that they show."""
    needed = {key: D for key in arguments(name) if key == "d"}
    remedy = SHELF[name](**needed | options)
    if remedy.is_off and not set(SHELF[name].off) & set(options):  # off until it has learned something
        remedy = SHELF[name](**needed | options | {key: 0.3 / i for i, key in enumerate(SHELF[name].off, start=1)})
    draws = torch.Generator().manual_seed(1)  # one for all parameters: equal ones could cancel
    with torch.no_grad():
        for parameter in remedy.parameters():
            parameter += 0.3 + 0.2 * torch.randn(parameter.shape, generator=draws)
    return remedy


def tokens(n: int = N, dtype: torch.dtype = torch.float64) -> Tensor:
    return (torch.randn(B, n, D, dtype=torch.float64) + 0.7).to(dtype)
