"""A batch of states, a few samples at a time and in float64."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from depthscope._checks import check_mask, check_tokens

CHUNK = 1 << 19  # elements turned to float64 at a time: they fit the cache, and memory stays flat


def float64_chunks(X: Tensor, mask: Tensor | None, *, where: str) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield x (b, n, d) in float64, padding set to zero, with valid (b, n, 1) or None."""
    check_tokens(X, where=where)
    n, d = X.shape[-2:]
    flat = X.detach().reshape(-1, n, d)
    keep = None if mask is None else check_mask(mask, X.shape[:-1], where=where).reshape(-1, n, 1)
    step = max(1, CHUNK // (n * d))
    for i in range(0, len(flat), step):
        x = flat[i : i + step].double()
        if keep is None:
            yield x, None
        else:
            valid = keep[i : i + step]
            yield torch.where(valid, x, 0.0), valid


def count_tokens(x: Tensor, valid: Tensor | None) -> Tensor:
    """How many tokens of each sample count, (b,) in float64."""
    if valid is None:
        return torch.full((len(x),), x.shape[-2], dtype=torch.float64, device=x.device)
    return valid.sum((-2, -1)).double()


def centre(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Pi_2 x (b, n, d) and the mean token (b, 1, d) of a float64 chunk.

    The first token is subtracted before the mean is taken: of equal tokens exactly nothing is left.
    """
    if valid is None:
        first = x[:, :1]
        shifted = x - first
        shift = shifted.mean(-2, keepdim=True)
        return shifted.sub_(shift), first + shift
    start = valid.int().argmax(-2, keepdim=True).expand(-1, 1, x.shape[-1])
    first = x.gather(-2, start)
    shifted = torch.where(valid, x - first, 0.0)
    shift = shifted.sum(-2, keepdim=True) / valid.sum(-2, keepdim=True)
    return torch.where(valid, shifted - shift, 0.0), first + shift


def by_sample(f: Callable[[Tensor, Tensor | None], Tensor], X: Tensor, mask: Tensor | None, *, where: str) -> Tensor:
    """Apply f, chunk (b, n, d) -> (b,), to all of X (..., n, d) -> (...)."""
    values = [f(x, valid) for x, valid in float64_chunks(X, mask, where=where)]
    return torch.cat(values).reshape(X.shape[:-2])
