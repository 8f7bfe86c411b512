"""Checks with one form of message: shapes, masks and probabilities, and what counts as nothing."""

import torch
from torch import Tensor

from depthscope.errors import MaskError, ShapeError, StochasticError

LARGEST = 10**6  # of any size: what is larger is a slip of the hand, and would be built until the memory is full


def check_tokens(X: Tensor, *, where: str, name: str = "X") -> None:
    """Raise ShapeError unless X is (..., n, d) with at least two tokens and floating numbers."""
    if not X.is_floating_point():
        raise ShapeError(
            f"{where}: {name} must hold floating point numbers; got {X.dtype}. Give the embedded tokens, not their ids."
        )
    if X.ndim >= 2 and X.shape[-2] >= 2 and X.numel() > 0:
        return
    empty = X.ndim > 2 and 0 in X.shape[:-2]
    hint = "Similarity needs two tokens or more." if not empty else "There is no sequence in it."
    hint = "Add a token axis." if X.ndim < 2 else hint
    raise ShapeError(f"{where}: {name} must have shape (..., n, d) with n >= 2 tokens; got {tuple(X.shape)}. {hint}")


def check_pair(X: Tensor, Y: Tensor, *, where: str) -> None:
    """Raise ShapeError unless X and Y are states of the same shape."""
    check_tokens(X, where=where)
    check_tokens(Y, where=where, name="Y")
    if X.shape != Y.shape:
        raise ShapeError(
            f"{where}: X and Y must have the same shape, before and after one step; "
            f"got {tuple(X.shape)} and {tuple(Y.shape)}. Compare states of equal size."
        )


def check_mask(mask: Tensor, shape: tuple[int, ...], *, where: str) -> Tensor:
    """The mask as bool (..., n), True where a token counts; MaskError when it cannot be used."""
    if tuple(mask.shape) != tuple(shape):
        raise MaskError(
            f"{where}: mask must have one entry for each token, shape {tuple(shape)}; "
            f"got {tuple(mask.shape)}. Give 1 for a token and 0 for padding."
        )
    mask = mask.bool() if not mask.is_floating_point() else mask > 0.5
    counts = mask.sum(-1)
    if bool((counts == 0).any()):
        first = int((counts.flatten() == 0).nonzero()[0])
        raise MaskError(
            f"{where}: every sequence needs tokens that are not masked; sequence {first} is all "
            "padding. Drop it from the batch. Or is the mask True for padding? Then pass ~mask."
        )
    if bool((counts < 2).any()):
        first = int((counts.flatten() < 2).nonzero()[0])
        raise MaskError(
            f"{where}: every sequence needs two tokens that are not masked; sequence {first} has "
            "one. Similarity compares tokens: drop it from the batch."
        )
    return mask


WITHOUT_FLOAT64 = {"mps"}  # kinds of devices on which there is none


def measurable(x: Tensor) -> Tensor:
    """x where float64 exists: on its own device, or on the CPU."""
    return x.cpu() if x.device.type in WITHOUT_FLOAT64 else x


def check_stochastic(P: Tensor, mask: Tensor | None = None, *, where: str) -> None:
    """Raise unless P is (..., n, m) with rows that are probabilities."""
    if not P.is_floating_point() or P.ndim < 2 or P.shape[-2] < 2 or P.numel() == 0:
        raise ShapeError(
            f"{where}: P must be floating point of shape (..., n, m) with n >= 2 tokens; "
            f"got {P.dtype} {tuple(P.shape)}. Give attention probabilities, not empty, heads in front."
        )
    P = P.detach() if mask is None else P.detach()[mask.reshape(P.shape[:-1])]
    sums = P.sum(-1, dtype=torch.float64)
    worst = float((sums - 1).abs().max())
    lowest = float(P.min())
    tolerance = max(1e-4, 8 * torch.finfo(P.dtype).eps)
    if not (worst <= tolerance and lowest >= -tolerance):
        raise StochasticError(
            f"{where}: the rows of P must be probabilities that sum to 1; the furthest row sum is "
            f"off by {worst:.3g} and the smallest entry is {lowest:.3g}. Give the matrix after "
            "the softmax and before dropout."
        )


def rms(X: Tensor) -> float:
    """Root mean square of all entries, summed in float32 or better."""
    wide = torch.promote_types(X.dtype, torch.float32)
    return float(torch.linalg.vector_norm(X.detach(), dtype=wide)) / max(1, X.numel()) ** 0.5


def rounding_floor(dtype: torch.dtype) -> float:
    """RMS of a mean token, relative to that of its tokens, below which it is only what rounding left of a zero.

    Of a mean that was subtracted, rounding leaves about 0.2 eps; of one that held a share s of the energy,
    0.6 eps sqrt(s / (1 - s)), 60 eps where s was 0.9999. In float32 and float64 there is room for all of it: means
    that carry a signal are above 1e-3 there. In half precision there is not: tau = 0.9 leaves 1.3 eps in bfloat16. So
    its floor is eps / 2, by which the rounding of a single token may change it.
    """
    facts = torch.finfo(dtype)
    return facts.eps * (128 if facts.bits >= 32 else 0.5)
