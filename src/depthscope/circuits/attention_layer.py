"""A block's attention as the layer X -> (alpha X + A N(X) H) C G of the theory, with the norm where it acts.

Tokens are rows. A norm before attention hands over N(X) = D X C diag(gamma) + 1 beta^T, D = diag(1 / size of each
token), C the centring of the channels: the matrix that the theory calls H is C diag(gamma) H, times rate / alpha for
tokens of their measured size. A norm after the sum acts on skip and branch alike, (X + A X H) C diag(gamma): all tokens
are then centred, so that H is what H C does to centred tokens, d - 1 eigenvalues. A gamma that is the same for all
channels changes nothing, an uneven one changes both parts' eigenvectors and is kept as G.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from depthscope.circuits.skip_and_norm import NormFit, SkipAndNorm, norm_in
from depthscope.circuits.weights import HeadWeights

UNEVEN = 1e-3  # spread of gamma, relative, from which on it is no common factor
UNEXPLAINED = 0.05
ROUGH, LEADING = 100, 3  # repetitions, and how many eigenvalues of attention are then taken exactly


@dataclass(frozen=True)
class Layer:
    """X -> (X + factor A X M) C G. M (d, d), by head W_V (H, d, d_v) and W_O (H, d_v, d); G (d,) or None.

    centres: whether a norm behind the sum takes the mean of the channels away (C; M and W_O have it already).
    """

    M: Tensor
    W_V: Tensor
    W_O: Tensor
    factor: float
    G: Tensor | None
    placement: str  # of the norm: pre, post, none
    negative: float  # share of channels with gamma < 0
    notes: tuple[str, ...] = ()
    centres: bool = False

    def eigenvalues(self) -> Tensor:
        """Of M, (d,) complex; (d - 1,) where the layer centres the channels."""
        return self._of_centred(torch.linalg.eigvals(self.M))

    def head_eigenvalues(self) -> Tensor:
        """Of each head's own M_h = W_V,h W_O,h, (H, d_v): those of W_O,h W_V,h; the other d - d_v are zero."""
        values = torch.linalg.eigvals(self.W_O @ self.W_V)
        return self._of_centred(values) if values.shape[-1] == len(self.M) else values

    def _of_centred(self, values: Tensor) -> Tensor:
        """Without the 0 of the channels' mean, which centred tokens do not have."""
        if not self.centres:
            return values
        index = torch.arange(values.shape[-1], device=values.device).expand(values.shape)
        others = index[index != values.abs().argmin(-1, keepdim=True)].reshape(*values.shape[:-1], -1)
        return values.gather(-1, others)

    def behind_sum(self, X: Tensor) -> Tensor:
        """X C G, (..., d): what the norm behind the sum does but for the size of its tokens."""
        X = X - X.mean(-1, keepdim=True) if self.centres else X
        return X if self.G is None else X * self.G

    def growth(self, a: complex) -> float:
        """log of the spectral radius of (I + factor a M) C G: what a part of eigenvalue a of attention grows by."""
        step = torch.eye(len(self.M), dtype=torch.complex128 if a.imag else torch.float64, device=self.M.device)
        step = self.behind_sum(step + self.factor * (a if a.imag else a.real) * self.M)
        return math.log(max(float(torch.linalg.eigvals(step).abs().max()), 1e-300))

    def fastest(self, eigenvalues: Tensor) -> tuple[complex, float]:
        """Of eigenvalues of attention (k,) that whose part grows fastest, and its growth.

        With a norm of uneven scale behind the sum growth is not convex in a, so that any may be the one: all are
        repeated roughly, and those that lead are taken exactly.
        """
        a = eigenvalues[eigenvalues.imag >= 0]  # conjugates grow alike
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(len(a), len(self.M), generator=draw, dtype=torch.complex128).to(self.M.device)
        M, logs = self.M.to(x.dtype), []
        for _ in range(ROUGH):
            x = self.behind_sum(x + self.factor * a.unsqueeze(-1) * (x @ M))
            size = x.norm(dim=-1, keepdim=True).clamp(min=1e-300)
            x = x / size
            logs.append(size.log().squeeze(-1))
        rough = torch.stack(logs[ROUGH // 2 :]).mean(0)
        leading = a[rough.argsort(descending=True)[:LEADING]].tolist()
        return max(((one, self.growth(one)) for one in leading), key=lambda pair: pair[1])


def layer_of(weights: HeadWeights, reads: SkipAndNorm, mask: Tensor | None) -> Layer:
    """The layer that a block's attention is, at the tokens of a pass."""
    W_V, W_O, rate, skip, centres = weights.W_V, weights.W_O, 1.0, reads.skip, False
    notes, G = [], None
    gamma_in = _first(reads.gamma_in, weights.gamma_in)
    gamma_out = None if gamma_in is not None or reads.goes_on else _first(reads.gamma_out, weights.gamma_out)
    if gamma_in is not None:
        norm = _norm(gamma_in, reads.stream, reads.read, mask)
        if norm.error > UNEXPLAINED:
            notes.append(
                f"what attention reads is no norm of the stream (off by {norm.error:.0%}): sizes are taken as 1"
            )
            norm = NormFit(1.0, False, norm.error)
        W_V = gamma_in.unsqueeze(-1) * W_V
        W_V = W_V - W_V.mean(-2, keepdim=True) if norm.centres else W_V
        rate = norm.rate
    elif gamma_out is not None:
        norm = _norm(gamma_out, reads.summed, reads.normed, mask)
        if norm.error > UNEXPLAINED:
            notes.append(f"what follows the sum is no norm of it (off by {norm.error:.0%}): its scale alone is counted")
        centres = norm.centres and norm.error <= UNEXPLAINED
        W_O = W_O - W_O.mean(-1, keepdim=True) if centres else W_O
        G = gamma_out if _uneven(gamma_out) else None
    if reads.unexplained > UNEXPLAINED or not skip > 0:
        notes.append(
            f"the sum is no multiple of the stream and attention (off by {reads.unexplained:.0%}): skips count as 1"
        )
        skip = 1.0
    gamma = _first(gamma_in, gamma_out)
    placement = "none" if gamma is None else "post" if gamma_in is None else "pre"
    negative = 0.0 if gamma is None else float((gamma < 0).double().mean())
    factor = rate * reads.branch / skip
    return Layer((W_V @ W_O).sum(0), W_V, W_O, factor, G, placement, negative, tuple(notes), centres)


def _first(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one


def _norm(gamma: Tensor, stream: Tensor | None, read: Tensor | None, mask: Tensor | None) -> NormFit:
    return NormFit(1.0, False, 1.0) if stream is None or read is None else norm_in(stream, read, gamma, mask)


def _uneven(gamma: Tensor) -> bool:
    return bool(gamma.max() - gamma.min() > UNEVEN * gamma.abs().max())
