"""Smooth or sharpen from eigenvalues, against dense Kronecker matrices and layers that are simply run."""

import math

import pytest
import torch
from kinds import attention

import depthscope as ds
from depthscope.errors import ShapeError, UsageError
from depthscope.experiments.spectra import LAWS, cyclic_attention, random_H
from depthscope.metrics import hfc_lfc, stable_rank
from depthscope.theory import layer_spectrum
from loops import over

F = torch.float64
CYCLE = torch.eye(3, dtype=F).roll(1, -1)


def random_A(kind, cases, n):
    return cyclic_attention(cases, n) if kind == "cyclic" else attention(kind, cases, n)


def rotation(angle, size=1.0):
    c, s = size * math.cos(angle), size * math.sin(angle)
    return torch.tensor([[c, -s], [s, c]], dtype=F)


def run_layers(X, A, H, depth, residual=True):
    """The definition, with the size of X thrown away after every layer."""
    for _ in range(depth):
        X = residual * X + A @ X @ H
        X = X / X.norm(dim=(-2, -1), keepdim=True)
    return X


def dense_growths(A, H, residual):
    """Log spectral radii of vec(X) -> vec(X + A X H) on equal tokens, and on differences of tokens (the first's)."""
    n, d = A.shape[-1], H.shape[-1]
    D = torch.cat([-torch.ones(n - 1, 1, dtype=F), torch.eye(n - 1, dtype=F)], 1)  # x_i - x_1
    lift = torch.cat([torch.zeros(1, n - 1, dtype=F), torch.eye(n - 1, dtype=F)])
    step = torch.kron(D @ A @ lift, H.mT.contiguous())  # A 1 = 1: differences depend on differences alone
    parts = residual * torch.eye(d, dtype=F) + H, residual * torch.eye((n - 1) * d, dtype=F) + step
    return [float(torch.linalg.eigvals(M).abs().max().log()) for M in parts]


@over("residual", [True, False])
@over("kind", ["softmax", "sharp", "causal", "symmetric", "cyclic"])
@over("law", LAWS)
def test_growths_are_spectral_radii_of_the_dense_layer(kind, law, residual):
    A, (H, h) = random_A(kind, 3, 5), random_H(law, 3, 4)
    found = layer_spectrum(h, torch.linalg.eigvals(A), residual=residual)
    for case in range(3):
        constant, rest = dense_growths(A[case], H[case], residual)
        assert float(found.constant[case]) == pytest.approx(constant, abs=1e-9)
        assert float(found.rest[case]) == pytest.approx(rest, abs=1e-9)
        assert float(found.growth[case]) == pytest.approx(max(constant, rest), abs=1e-9)
        mu = residual + found.lambda_H[case] * found.lambda_A[case]
        assert float(mu.abs().log()) == pytest.approx(max(constant, rest), abs=1e-9)


@pytest.mark.long
def test_the_verdict_is_what_two_thousand_layers_do_in_a_thousand_cases():
    """Outside a margin of 0.01, where 2,000 layers make a factor of e^20; both verdicts and all kinds are there."""
    kinds, tie, wanted = ["softmax", "sharp", "causal", "symmetric", "cyclic"], 0.01, 50
    kept = []
    for kind in kinds:
        for law in LAWS:
            A, (H, h) = random_A(kind, 3 * wanted, 8), random_H(law, 3 * wanted, 6)
            found = layer_spectrum(h, torch.linalg.eigvals(A), tie=tie)
            clear = found.signs != 0
            assert int(clear.sum()) >= wanted
            kept.append([M[clear][:wanted] for M in (A, H, found.signs, found.rank_gap, torch.view_as_real(h))])
    A, H, signs, rank_gap, h = (torch.cat(parts) for parts in zip(*kept, strict=True))
    X = run_layers(torch.randn(1000, 8, 6, dtype=F), A, H, 2000)
    outcome = torch.where(hfc_lfc(X) < 1e-4, 1, -1)
    assert len(signs) == 1000 and 200 < int((signs == 1).sum()) < 800
    assert int((outcome != signs).sum()) == 0
    real = h[..., 1].abs().amax(-1) == 0
    inside = real & (h[..., 0] >= -1).all(-1) & (h[..., 0] < 0).all(-1)
    above = real & (h[..., 0] > 0).all(-1)
    assert int(inside.sum()) >= 250 and bool((outcome[inside] == -1).all())  # all in [-1, 0) never smooths
    assert int(above.sum()) >= 250 and bool((outcome[above] == 1).all())  # all positive always does
    one = rank_gap > tie
    assert int((one & (signs == -1)).sum()) > 100
    assert float((stable_rank(X)[one] - 1).max()) < 1e-6  # sharpening too ends in rank one


def test_public_and_single():
    found = ds.theory.layer_spectrum([-0.5, -0.25], [0.2, 1.0, 0.1])
    assert found.verdict == "sharpen"
    assert float(found.constant) == pytest.approx(math.log(0.75))
    assert float(found.rest) == pytest.approx(math.log(0.975))
    assert (complex(found.lambda_H), complex(found.lambda_A)) == (-0.25, 0.1)
    assert float(found.margin) == pytest.approx(math.log(0.75 / 0.975))
    assert layer_spectrum([0.5], [1.0, -0.9]).verdict == "smooth"
    assert layer_spectrum([-2.5], [1.0, 0.3]).verdict == "smooth"  # with a sign that alternates
    assert layer_spectrum([-2.5], [1.0, -0.3]).verdict == "sharpen"


def test_of_real_attention_three_eigenvalues_are_enough_and_two_overstate_the_margin():
    h, others = torch.randn(200, 5, dtype=F), 2 * torch.rand(200, 20, dtype=F) - 1
    one = torch.ones(200, 1, dtype=F)
    low, high = others.amin(-1, keepdim=True), others.amax(-1, keepdim=True)
    whole = layer_spectrum(h, torch.cat([others, one], -1))
    three, two = layer_spectrum(h, torch.cat([one, high, low], -1)), layer_spectrum(h, torch.cat([one, low], -1))
    torch.testing.assert_close(three.margin, whole.margin)
    assert two.verdict == three.verdict == whole.verdict
    assert bool((two.margin >= whole.margin).all()) and bool((two.margin > 2 * whole.margin).any())
    assert float(layer_spectrum([0.5], [1, 0]).margin) == pytest.approx(0.405, abs=1e-3)
    assert float(layer_spectrum([0.5], [1, 0.9, 0]).margin) == pytest.approx(0.034, abs=1e-3)


def test_ties():
    same = layer_spectrum([-0.5, 0.3], torch.ones(4))  # A = I: nothing is mixed
    assert same.verdict == "neither" and float(same.margin) == 0
    still = layer_spectrum([0.0, 0.0, -0.2], [1.0, 0.4, 0.2])  # a head of low rank has many lambda_H = 0
    assert still.verdict == "neither" and float(still.rank_gap) == 0 and float(still.gap) > 0
    assert float(layer_spectrum([0.0, -0.2], [1.0, 0.4, 0.2]).rank_gap) > 0  # one only: one direction is left
    uniform = layer_spectrum([-0.5, -0.2], [1.0, 0.0, 0.0])  # differences stay as they are, with their rank
    assert uniform.verdict == "sharpen" and float(uniform.rank_gap) == 0
    mirrored = layer_spectrum([2.0, -4.0], [1.0, 0.1])  # |1 + 2| = |1 - 4|, and both with lambda_A = 1
    assert mirrored.verdict == "smooth" and float(mirrored.gap) == 0 and float(mirrored.rank_gap) > 0.5
    assert layer_spectrum([0.5], [1.0, 0.99], tie=0.01).verdict == "neither"
    assert layer_spectrum([0.5], [1.0, 0.99], tie=0.001).verdict == "smooth"


def test_two_complex_eigenvalues_leave_rank_two_and_no_tie_is_needed():
    A = (
        0.9 * CYCLE
        + 0.1 * torch.full((3, 3), 1 / 3, dtype=F)
        + 0.02 * torch.tensor([[1, -1, 0], [0, 0, 0], [-1, 0, 1]])
    )
    H = rotation(2.0, 0.8) + 0.05 * torch.randn(2, 2, dtype=F)
    found = layer_spectrum(torch.linalg.eigvals(H), torch.linalg.eigvals(A))
    assert found.verdict == "sharpen" and float(found.margin) < -0.5
    assert float(found.rank_gap) == float(found.gap) == 0
    X = run_layers(torch.randn(200, 3, 2, dtype=F), A, H, 2000)
    assert float(stable_rank(X).min()) > 1.7


def test_one_complex_eigenvalue_leaves_rank_one_that_turns():
    A, H = attention("symmetric", 6), rotation(0.7, 1.0)
    found = layer_spectrum(torch.linalg.eigvals(H), torch.linalg.eigvals(A))
    assert found.verdict == "smooth" and float(found.gap) == 0 and float(found.rank_gap) > 0.05
    X = run_layers(torch.randn(6, 2, dtype=F), A, H, 1000)
    Y = run_layers(X, A, H, 1)
    assert float(stable_rank(X)) == pytest.approx(1, abs=1e-12)
    assert float((X * Y).sum().abs()) < 0.95  # the angle of 1 + e^{0.7 i}, 0.35 radians


def test_gap_is_the_rate_at_which_directions_settle():
    A, (H, h) = attention("causal", 5, 7), random_H("positive", 5, 4)
    found = layer_spectrum(h, torch.linalg.eigvals(A))
    X = torch.randn(5, 7, 4, dtype=F)
    end = run_layers(X, A, H, 3000)
    away = [(run_layers(X, A, H, depth) - end).norm(dim=(-2, -1)).log() for depth in (30, 60)]
    torch.testing.assert_close(away[0] - away[1], 30 * found.gap, rtol=0.3, atol=0.5)


def test_extremes_keep_their_meaning():
    small = layer_spectrum([1e-12], [1.0, 0.25], tie=0.0)
    assert float(small.margin) == pytest.approx(0.75e-12, rel=1e-9)
    tiny = layer_spectrum([-1 + 1e-13], [1.0, 0.5])
    assert float(tiny.constant) == pytest.approx(math.log(1e-13), rel=1e-3)
    minus_one = layer_spectrum([-1.0], [1.0, 0.5])
    assert minus_one.verdict == "sharpen" and float(minus_one.margin) == -math.inf
    nothing = layer_spectrum([0.0], [1.0, 0.5], residual=False)
    assert nothing.verdict == "neither" and float(nothing.margin) == 0
    erased = layer_spectrum([0.3, -2.0], [1.0, 0.0, 0.0], residual=False)  # uniform attention, no residual
    assert erased.verdict == "smooth" and float(erased.margin) == math.inf


def test_without_the_residual_the_second_eigenvalue_of_attention_is_the_margin():
    A = attention("softmax", 20, 6)
    a, h = torch.linalg.eigvals(A), torch.randn(20, 4, dtype=F)
    second = a.abs().sort(-1, descending=True).values[:, 1]
    found = layer_spectrum(h, a, residual=False)
    torch.testing.assert_close(found.margin, -second.log())
    assert set(found.verdict) == {"smooth"}


def test_batches_and_shares():
    h, a = torch.tensor([[0.5], [-0.5], [0.0]]), torch.tensor([[[1.0, 0.2]], [[1.0, -0.4]]])
    found = layer_spectrum(h, a)
    assert found.margin.shape == (2, 3) and found.margin.dtype == F
    assert found.verdict == ["smooth", "sharpen", "neither"] * 2
    assert found.shares == pytest.approx({"smooth": 1 / 3, "sharpen": 1 / 3, "neither": 1 / 3})
    order = layer_spectrum(torch.randn(5, 6), torch.tensor([0.3, 0.1, 1.0]))
    assert order.lambda_A.shape == (5,)
    assert not layer_spectrum(torch.ones(2, requires_grad=True), [1.0, 0.0]).margin.requires_grad


def test_what_cannot_be_used_is_refused():
    with pytest.raises(UsageError, match=r"layer_spectrum: eigenvalues_A must contain the 1 .* off by 0\.1"):
        layer_spectrum([0.5], [0.9, 0.2])
    with pytest.raises(UsageError, match=r"unit disc; got one of modulus 2\. Are .* wrong way round"):
        layer_spectrum([1.0, 0.2], [1.0, -2.0])
    with pytest.raises(ShapeError, match=r"eigenvalues_A must be \(\.\.\., n\) with n >= 2.* got \(1,\)"):
        layer_spectrum([0.5], [1.0])
    with pytest.raises(ShapeError, match=r"eigenvalues_H must be \(\.\.\., k\).* got \(\)"):
        layer_spectrum(torch.tensor(0.5), [1.0, 0.2])
    with pytest.raises(UsageError, match="eigenvalues_H must be finite"):
        layer_spectrum([math.nan], [1.0, 0.2])
