"""The truth, written out from the definitions in numpy and float64, with nothing of depthscope in it."""

import numpy as np
import torch
from numpy.typing import NDArray
from tools.coverage.case import Sample, Stream, Tap
from torch import Tensor

Matrix = NDArray[np.float64]


def similarity(X: Matrix) -> float:
    """t_sim(X) = |Pi_1 X|_F^2 / |X|_F^2, Pi_1 = 1 1^T / n, of X (n, d)."""
    n = len(X)
    Pi_1 = np.ones((n, n)) / n
    return float(((Pi_1 @ X) ** 2).sum() / (X**2).sum())


def delta(P: Matrix) -> float:
    """The largest singular value of Pi_2 P, Pi_2 = I - 1 1^T / n."""
    n = len(P)
    return float(np.linalg.svd((np.eye(n) - np.ones((n, n)) / n) @ P, compute_uv=False)[0])


def lambda_2(P: Matrix) -> float:
    """The largest modulus of an eigenvalue of Pi_2 P; of a triangular P the largest entry of the diagonal but the 1.

    Jordan blocks of a triangular P move computed eigenvalues by roots of the rounding, its diagonal is exact.
    """
    if not np.triu(P, 1).any():
        return float(np.sort(np.diag(P))[:-1].max())
    n = len(P)
    return float(np.abs(np.linalg.eigvals((np.eye(n) - np.ones((n, n)) / n) @ P)).max())


def recorded(sample: Sample, stream: Stream) -> list[Tensor]:
    """The states of one forward pass, (B, n, d) each: what enters block 1, and what every block hands on."""
    states: dict[int, Tensor] = {}

    def tap(index: int, tokens: Tensor) -> Tensor:
        states[index] = tokens.detach().clone()
        return tokens

    with stream.tapped(tap):
        sample.run()
    if sorted(states) != list(range(len(states))) or len(states) < 2:
        raise AssertionError(f"the truth must see states 0 to depth; it saw {sorted(states)}")
    return [states[i] for i in range(len(states))]


def similarities(states: list[Tensor], mask: Tensor | None) -> Matrix:
    """t_sim of every state, the mean over sequences, (depth + 1,)."""
    return np.array([np.mean([similarity(x) for x in _sequences(X, mask)]) for X in states])


def _sequences(X: Tensor, mask: Tensor | None) -> list[Matrix]:
    wide = X.detach().double().numpy()
    return [x if mask is None else x[mask[i].numpy().astype(bool)] for i, x in enumerate(wide)]


def of_heads(stream: Stream) -> dict[str, list[Matrix | None]] | None:
    """delta and lambda_2 of every block, mean over sequences, (h,) each; None where nothing tells."""
    patterns = None if stream.patterns is None else stream.patterns()
    if patterns is None:
        return None
    rows: dict[str, list[Matrix | None]] = {"delta": [], "lambda_2": []}
    for P in patterns:
        kept = None if P is None else _kept(P, stream.mask)
        for name, formula in (("delta", delta), ("lambda_2", lambda_2)):
            values = None if kept is None else [[formula(head) for head in heads] for heads in kept]
            rows[name].append(None if values is None else np.array(values).mean(0))
    return rows


def _kept(P: Tensor, mask: Tensor | None) -> list[list[Matrix]]:
    """The matrices (sequences, heads) over the tokens that count, their rows summing to 1 again."""
    found = []
    for i, heads in enumerate(P.detach().double().numpy()):
        keep = np.arange(P.shape[-1]) if mask is None else np.flatnonzero(mask[i].numpy())
        parts = [head[np.ix_(keep, keep)] for head in heads]
        found.append([part / part.sum(-1, keepdims=True) for part in parts])
    return found


def without_mean(stream: Stream) -> Tap:
    """De-escalation with tau = 1 after every block, as a tap: X - mean; where causal X_t - sum_{s<=t} X_s / (t + 1).

    t counts from 1; padding has no part in a mean or in t.
    """

    def tap(index: int, X: Tensor) -> Tensor:
        if index == 0:
            return X
        fits = stream.mask is not None and tuple(stream.mask.shape) == tuple(X.shape[:2])
        keep = stream.mask[..., None].to(X) if fits and stream.mask is not None else torch.ones_like(X[..., :1])
        if stream.causal:
            return X - (X * keep).cumsum(1) / (keep.cumsum(1) + 1)
        return X - (X * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True)

    return tap
