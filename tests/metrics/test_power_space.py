"""lambda_2 of many tokens from inner products of powers, against scipy's eigenvalues."""

import numpy as np
import scipy.linalg
import torch

from depthscope.metrics import power_space
from depthscope.metrics.pattern import pattern_of
from depthscope.metrics.power_space import radius_by_powers
from loops import over


def softmax(n, temperature):
    return (temperature * torch.randn(n, n)).softmax(-1)


def low_rank(n):
    """A head at initialisation: scores q k^T of few channels."""
    return (0.6 * torch.randn(n, 16) @ torch.randn(16, n) / 4).softmax(-1)


KINDS = {
    "low rank": low_rank,
    "plain": lambda n: softmax(n, 1),
    "sharp": lambda n: softmax(n, 10),
    "two groups": lambda n: torch.block_diag(softmax(n // 2, 3), softmax(n - n // 2, 3)),
    "sink": lambda n: (2 * torch.randn(n, n) + 8 * (torch.arange(n) == 0)).softmax(-1),
}


def of(P, mask=None):
    return pattern_of(P, mask=mask, where="test", trusted=True)[0]


def truth_of(P):
    return torch.tensor([np.abs(scipy.linalg.eigvals(p - p.mean(0))).max() for p in P.double().numpy()])


@over("kind", KINDS)
def test_the_radius_is_that_of_scipy(kind):
    P = torch.stack([KINDS[kind](160) for _ in range(2)])
    found, error = radius_by_powers(of(P), 0.01)
    truth = truth_of(P)
    assert ((found - truth).abs() <= error + 1e-6).all()
    torch.testing.assert_close(found, truth, rtol=0.02, atol=1e-5)


def test_a_space_that_rounding_blurs_is_left_to_the_slow_way(monkeypatch):
    """All powers of a head that only knows two groups lie in one direction."""
    P = torch.block_diag(torch.full((80, 80), 1 / 80), torch.full((80, 80), 1 / 80))[None]
    asked = []
    slow = power_space.spectral_radius
    monkeypatch.setattr(power_space, "spectral_radius", lambda *given: asked.append(1) or slow(*given))
    found, _ = radius_by_powers(of(P), 0.01)
    assert asked and abs(float(found) - 1) < 1e-4


def test_padding_and_heads_that_are_not_finite_are_left_out():
    P = torch.stack([low_rank(160), low_rank(160), softmax(160, 3)])
    P[1, 3, 5] = torch.nan
    keep = torch.arange(160) < torch.tensor([[150], [160], [140]])
    found, error = radius_by_powers(of(P, keep), 0.01)
    assert found.isnan().tolist() == error.isnan().tolist() == [False, True, False]
    for i, n in ((0, 150), (2, 140)):
        inner = P[i, :n, :n] / P[i, :n, :n].sum(-1, keepdim=True)
        torch.testing.assert_close(found[i : i + 1], truth_of(inner[None]), rtol=0.02, atol=1e-5)


def test_uniform_attention_has_none():
    found, _ = radius_by_powers(of(torch.full((2, 160, 160), 1 / 160)), 0.01)
    assert (found < 1e-6).all()
