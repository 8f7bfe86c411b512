"""Whether a layer X -> X + A X H makes tokens alike: its eigenvalues 1 + lambda_H lambda_A (Dovonon et al. 2024).

A 1 = 1, so that equal tokens stay equal: the constant part is multiplied by 1 + lambda_H, and what differs between
tokens by 1 + lambda_H lambda_A over the other eigenvalues of A. The larger of the two wins with depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthscope.errors import ShapeError, UsageError

Eigenvalues = Tensor | Sequence[complex]

VERDICTS = ("sharpen", "neither", "smooth")  # by the sign of the margin
_ONE = 1e-4  # how far the 1 of a measured attention matrix may be off
_SAME = 1e-12  # log moduli of conjugate pairs, which are computed alike


@dataclass(frozen=True, eq=False)
class LayerSpectrum:
    """What one layer does with depth; all (...), for a batch of layers.

    margin > 0: the constant part wins, tokens grow alike like exp(-margin depth) (smooth, over-smoothing); margin < 0:
    a part that differs between tokens wins (sharpen). gap > 0: the direction of the state settles up to its sign, like
    exp(-gap depth); where the dominating eigenvalue is not real, gap = 0 and it turns for ever. rank_gap > 0: the
    state becomes a matrix of rank one, at least as fast as exp(-rank_gap depth); 0 needs dominating pairs that share
    neither lambda_H nor lambda_A, as conjugate pairs do in which both are complex: they leave rank two.

    Examples:
        >>> layer = ds.theory.layer_spectrum([0.5, 0.2], [1.0, 0.3])
        >>> round(layer.margin.item(), 3), layer.verdict
        (0.266, 'smooth')
    """

    constant: Tensor  # log growth of the constant part for each layer, max_j log |1 + lambda_H_j|
    rest: Tensor  # the same of what differs between tokens
    lambda_H: Tensor  # the dominating pair, complex
    lambda_A: Tensor
    gap: Tensor  # how far the largest log modulus is above that of any other eigenvalue of the layer
    rank_gap: Tensor
    tie: float

    @property
    def margin(self) -> Tensor:
        """constant - rest; 0 where nothing is left of either."""
        both_gone = self.constant.isneginf() & self.rest.isneginf()
        return torch.where(both_gone, 0.0, self.constant - self.rest)

    @property
    def growth(self) -> Tensor:
        """Log of the largest eigenvalue's modulus: the state grows like exp(growth depth)."""
        return torch.maximum(self.constant, self.rest)

    @property
    def signs(self) -> Tensor:
        """1 smooth, -1 sharpen, 0 neither: the margin is not above the tie's."""
        return torch.where(self.margin.abs() > self.tie, self.margin.sign(), 0.0).long()

    @property
    def verdict(self) -> str | list[str]:
        """ "smooth", "sharpen" or "neither"; a flat list of them for a batch."""
        words = [VERDICTS[sign + 1] for sign in self.signs.flatten().tolist()]
        return words if self.signs.ndim else words[0]

    @property
    def shares(self) -> dict[str, float]:
        """The share of layers that smooth, that sharpen, and that do neither."""
        return {word: float((self.signs == sign - 1).double().mean()) for sign, word in enumerate(VERDICTS)}


def layer_spectrum(
    eigenvalues_H: Eigenvalues, eigenvalues_A: Eigenvalues, *, residual: bool = True, tie: float = 1e-6
) -> LayerSpectrum:
    """Smooth, sharpen or neither, from the eigenvalues of H = W_V W_O and of attention A.

    X -> X + A X H has the eigenvalues 1 + lambda_H_j lambda_A_i; without the residual lambda_H_j lambda_A_i
    constant = max_j log |1 + lambda_H_j|,    rest = max_{i > 1, j} log |1 + lambda_H_j lambda_A_i|

    eigenvalues_H (..., d), eigenvalues_A (..., n) with its 1, real or complex, in any order -> (...). Of A's values
    those on the hull decide, because |1 + h a| is convex in a: where all are real it is enough to give 1, the
    largest other and the smallest (rank_gap then may be too large). The 1 and the smallest alone give the right
    verdict, but a margin that is too large where the layer smooths. |margin| <= tie is "neither".
    Dovonon et al. 2024, section 3; complex eigenvalues of both, margin and rank_gap are ours.

    Examples:
        >>> ds.theory.layer_spectrum([0.5, 0.2], [1.0, 0.3]).verdict
        'smooth'
        >>> ds.theory.layer_spectrum([-0.5, -0.2], [1.0, 0.3]).verdict
        'sharpen'
    """
    where = "layer_spectrum"
    h, a = as_eigenvalues(eigenvalues_H, "eigenvalues_H", where), as_eigenvalues(eigenvalues_A, "eigenvalues_A", where)
    a = _one_first(a, where)
    growth, mu = _log_modulus(a.unsqueeze(-1) * h.unsqueeze(-2), residual)  # (..., n, d)
    constant, rest = growth[..., 0, :].amax(-1), growth[..., 1:, :].amax((-2, -1))
    best, place = growth.flatten(-2).max(-1)
    i, j = place // h.shape[-1], place % h.shape[-1]
    batch = best.shape
    lambda_A = a.expand(*batch, -1).gather(-1, i.unsqueeze(-1)).squeeze(-1)
    lambda_H = h.expand(*batch, -1).gather(-1, j.unsqueeze(-1)).squeeze(-1)
    rank_gap = torch.maximum(_above_others(growth.amax(-1), i), _above_others(growth.amax(-2), j))
    gap = _above_different(growth.flatten(-2), mu.flatten(-2), place)
    return LayerSpectrum(constant, rest, lambda_H, lambda_A, gap, rank_gap, tie)


def _log_modulus(product: Tensor, residual: bool) -> tuple[Tensor, Tensor]:
    """log |mu| and mu of products lambda_H lambda_A, with all digits where these are small or mu is."""
    if not residual:
        return product.abs().log(), product
    excess = 2 * product.real + product.real.square() + product.imag.square()  # |mu|^2 - 1
    mu = 1 + product
    return torch.where(excess > -0.75, 0.5 * excess.clamp(min=-0.9).log1p(), mu.abs().log()), mu


def _above_others(best: Tensor, index: Tensor) -> Tensor:
    """How far the best of (..., k), which stands at the index, is above all others; infinite where it is alone."""
    index = index.unsqueeze(-1)
    return _zeroed(best.gather(-1, index) - best.scatter(-1, index, -torch.inf).amax(-1, keepdim=True))


def _above_different(growth: Tensor, mu: Tensor, place: Tensor) -> Tensor:
    """The same over eigenvalues (..., n d) that are other numbers: a multiple one has one direction for a given X."""
    first = mu.gather(-1, place.unsqueeze(-1))
    different = (mu - first).abs() > _SAME * first.abs()
    others = torch.where(different, growth, -torch.inf).amax(-1, keepdim=True)
    return _zeroed(growth.gather(-1, place.unsqueeze(-1)) - others)


def _zeroed(gap: Tensor) -> Tensor:
    gap = gap.squeeze(-1)
    return torch.where(gap.isnan() | (gap < _SAME), 0.0, gap)


def _one_first(a: Tensor, where: str) -> Tensor:
    """The eigenvalues of A with the 1 of the constant vector in front."""
    if a.shape[-1] < 2:
        raise ShapeError(
            f"{where}: eigenvalues_A must be (..., n) with n >= 2, the 1 and at least one other; got {tuple(a.shape)}. "
            "One token has nothing to be alike with."
        )
    off, place = (a - 1).abs().min(-1, keepdim=True)
    if bool((off > _ONE).any()):
        raise UsageError(
            f"{where}: eigenvalues_A must contain the 1 of the constant vector (A 1 = 1); the nearest is off by "
            f"{float(off.max()):.3g}. Give all eigenvalues of attention after the softmax, without dropout."
        )
    if bool((a.abs() > 1 + _ONE).any()):
        raise UsageError(
            f"{where}: the eigenvalues of a row-stochastic A must lie in the unit disc; got one of modulus "
            f"{float(a.abs().max()):.6g}. Are eigenvalues_H and eigenvalues_A the wrong way round?"
        )
    index = torch.arange(a.shape[-1], device=a.device).expand_as(a)
    others = index[index != place].reshape(*a.shape[:-1], -1)
    return torch.cat([torch.ones_like(off), a.gather(-1, others)], -1)


def as_eigenvalues(values: Eigenvalues, name: str, where: str) -> Tensor:
    """The eigenvalues as complex128 (..., k)."""
    x = torch.as_tensor(values, dtype=torch.complex128).detach()
    if x.ndim < 1 or x.shape[-1] < 1:
        raise ShapeError(
            f"{where}: {name} must be (..., k), one value or more; got {tuple(x.shape)}. Wrap it in a list."
        )
    if not bool(torch.view_as_real(x).isfinite().all()):
        raise UsageError(f"{where}: {name} must be finite; got NaN or infinity. Find the block where it first appears.")
    return x
