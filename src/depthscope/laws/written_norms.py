"""Norms that are written out in Python (RMSNorm and kin) follow laws as one step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthscope.laws.rules import normed
from depthscope.laws.tensor import LawTensor, law_of
from depthscope.traces.operations import is_norm

LARGE = 1e3  # beside it epsilon is nothing


class Norm(NamedTuple):
    """What a norm multiplies and adds, (c,) each, and whether it takes the mean over channels away."""

    gain: Tensor
    offset: Tensor
    centred: bool


@contextmanager
def norms_followed(model: nn.Module) -> Iterator[None]:
    changed = [module for module in model.modules() if _is_written_out(module)]
    try:
        for module in changed:
            module.forward = _norm_of(module, module.forward)  # type: ignore[method-assign]
        yield
    finally:
        for module in changed:
            vars(module).pop("forward", None)


def _is_written_out(module: nn.Module) -> bool:
    """By its name, and by having no matrices: a step with a norm in its name is no norm. torch's own have a rule."""
    if type(module) in (nn.LayerNorm, nn.RMSNorm):
        return False
    return is_norm(module) and "forward" not in vars(module) and all(p.ndim < 2 for p in module.parameters())


def as_norm(norm: Callable[..., Any], channels: int, dtype: torch.dtype) -> Norm | None:
    """What it does to z and -z, to 2 z and to z + 1; None for what is no norm, as x weight + bias.

    z has entries of 1, -1, ... with mean zero; the last three are 1, 1, -2 where their number is odd. So 1 + weight is
    told from weight, and a norm that takes means away from one that does not, whatever names they have.
    """
    z = torch.ones(channels, dtype=dtype)
    z[1::2] = -1
    if channels % 2 and channels > 1:
        z[-2:] = torch.tensor([1.0, -2.0], dtype=dtype)
    z = z / z.square().mean().sqrt()
    try:
        up, down, twice, moved = (norm(LARGE * x).double() for x in (z, -z, 2 * z, z + 1))
    except Exception:
        return None  # not of vectors: over a batch, in groups
    if up.shape != z.shape or not torch.allclose(up, twice, rtol=1e-2, atol=1e-4):
        return None
    return Norm((up - down) / 2 / z.double(), (up + down) / 2, torch.allclose(up, moved, rtol=1e-2, atol=1e-4))


def _norm_of(module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(x: Any, *args: Any, **kwargs: Any) -> Any:
        found = as_norm(plain, x.shape[-1], x.dtype) if isinstance(x, LawTensor) and not (args or kwargs) else None
        if found is None:
            return plain(x, *args, **kwargs)
        eps = next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), None)
        eps = torch.finfo(x.dtype).eps if eps is None else float(eps)
        law = normed(law_of(x), found.gain, found.offset, centred=found.centred, eps=eps)
        return LawTensor(x.shape, x.dtype, law)

    return forward
