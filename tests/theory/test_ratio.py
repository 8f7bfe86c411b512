"""The exact expected ratio against closed forms, numerical integrals and drawn weights; gamma against every draw."""

import math

import numpy as np
import pytest
import torch
from kinds import CASES, KINDS, F, attention, growths, steps, tokens
from scipy import integrate, stats

from depthscope.errors import ShapeError, StochasticError, UsageError
from depthscope.metrics import eta, mu
from depthscope.theory import concentration_gamma, expected_eta, expected_ratio, expected_xi, mu_bar, ratio
from loops import over


@over("n, d", [(2, 1), (2, 2), (5, 3), (4, 30)])
def test_when_all_rows_of_P_agree_xi_2_is_1_and_the_ratio_is_the_mean_of_xi_1(n, d):
    X = tokens(20, n, d)
    for P in (attention("uniform", 20, n), attention("softmax", 20, n)[:, :1].expand(20, n, n)):
        torch.testing.assert_close(expected_ratio(X, P, alpha=1.3), expected_xi(mu(X, P)[0], alpha=1.3))
        torch.testing.assert_close(expected_eta(X, P), torch.zeros(20, dtype=F), atol=1e-12, rtol=0)


@over("d", [1, 3, 8])
def test_tokens_on_one_line_keep_their_similarity_when_nothing_is_mixed(d):
    X = torch.randn(20, 4, 1, dtype=F) * torch.randn(20, 1, d, dtype=F)
    torch.testing.assert_close(expected_ratio(X, attention("identity", 20, 4)), torch.ones(20, dtype=F))


@over("n, d, alpha", [(2, 3, 1.0), (3, 4, 0.4), (4, 9, 3.0)])
def test_when_xi_1_and_xi_2_are_independent_the_ratio_is_E_xi_1_times_E_of_1_over_xi_2(n, d, alpha):
    # P = I, mean token u orthogonal to centred tokens whose singular values are all 1: |Pi_2 Y|^2 is a scaled
    # non-central chi-square, and 1 over it has a mean by a Poisson mixture of central ones
    basis = torch.linalg.qr(torch.randn(d, d, dtype=F)).Q
    Pi_2 = torch.eye(n, dtype=F) - 1 / n
    Q = torch.linalg.svd(Pi_2).U[:, : n - 1]  # (n, n - 1)
    X = torch.ones(n, 1, dtype=F) @ basis[:1] * 0.7 + Q @ basis[1:n]
    freedom, noise = (n - 1) * d, alpha**2 / d
    half = (n - 1) / noise / 2
    j = np.arange(0, 400)
    mean_inverse = (stats.poisson.pmf(j, half) / (freedom - 2 + 2 * j)).sum() / noise
    truth = (1 + alpha**2) * (n - 1) * mean_inverse
    assert float(expected_ratio(X, torch.eye(n, dtype=F), alpha=alpha)) == pytest.approx(truth, rel=1e-12)


@over("kind", ["softmax", "causal", "doubly stochastic"])
@over("alpha", [0.5, 2.0])
def test_one_weight_integrated_numerically(kind, alpha):
    X, P = tokens(3, 1), attention(kind, 3)
    x, m = X.numpy()[:, 0], (P @ X).numpy()[:, 0]

    def ratio_at(w):
        y = x + alpha * m * w
        return (y.mean() / x.mean()) ** 2 * x.var() / y.var() * stats.norm.pdf(w)

    zero = -((x - x.mean()) @ (m - m.mean())) / (alpha * ((m - m.mean()) ** 2).sum())  # where the tokens are nearest
    low, high = min(zero, 0) - 12, max(zero, 0) + 12
    truth, _ = integrate.quad(ratio_at, low, high, points=[zero], epsabs=1e-13, epsrel=1e-12, limit=500)
    assert float(expected_ratio(X, P, alpha=alpha)) == pytest.approx(truth, rel=1e-9)


@over("d", [3, 8])
def test_tokens_on_one_line_integrated_numerically(d):
    # X = c u^T, |u| = 1: only g = u^T W matters, by its part along u and by |rest|^2, a chi-square
    c, P = torch.randn(4, dtype=F) + 0.5, attention("softmax", 4)
    u = torch.nn.functional.normalize(torch.randn(d, dtype=F), dim=0)
    m = P @ c
    bar = [float(c.mean()), float(m.mean())]
    var = [float(c.var()), float((c - c.mean()) @ (m - m.mean())) / 3, float(m.var())]

    def ratio_at(q, g):
        size = g * g + q
        top = bar[0] ** 2 + 2 * bar[0] * bar[1] * g + bar[1] ** 2 * size
        low = var[0] + 2 * var[1] * g + var[2] * size
        density = stats.norm.pdf(g, scale=d**-0.5) * stats.chi2.pdf(q * d, d - 1) * d
        return top / low * density

    g, weight_g = np.polynomial.legendre.leggauss(200)
    q, weight_q = np.polynomial.legendre.leggauss(200)
    g, weight_g = 12 * g * d**-0.5, 12 * weight_g * d**-0.5
    root, weight_q = (q + 1) * 8 * d**-0.5, weight_q * 8 * d**-0.5  # q = root^2 takes the kink at 0 away
    values = ratio_at(root[None, :] ** 2, g[:, None]) * 2 * root
    truth = var[0] / bar[0] ** 2 * (weight_g @ values @ weight_q)
    assert float(expected_ratio(c[:, None] * u, P)) == pytest.approx(truth, rel=1e-9)


def test_two_heads_integrated_numerically_over_their_four_weights():
    X, P = tokens(3, 2), attention("softmax", 2, 3)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    grid = torch.tensor(np.stack(np.meshgrid(*[nodes] * 4, indexing="ij"), -1).reshape(-1, 4))
    mass = torch.tensor(np.prod(np.meshgrid(*[weights / math.sqrt(2 * math.pi)] * 4, indexing="ij"), 0).reshape(-1))
    mixed = P @ X  # (2, 3, 2), head k gives column k
    Y = X + 0.4 / math.sqrt(2) * torch.einsum("kni,gki->gnk", mixed, grid.reshape(-1, 2, 2))
    mean = Y.mean(-2)
    top, low = mean.square().sum(-1), (Y - mean[:, None]).square().sum((-2, -1))
    scale = (X - X.mean(0)).square().sum() / X.mean(0).square().sum()
    assert float(expected_ratio(X, P, alpha=0.4)) == pytest.approx(float(scale * (mass @ (top / low))), rel=1e-8)


@over("n, d, h", [(2, 3, 1), (2, 3, 3), (3, 1, 1), (12, 3, 1), (5, 24, 4), (3, 60, 2)])
def test_half_the_step_and_twice_the_range_change_nothing(monkeypatch, n, d, h):
    X, P = tokens(30, n, d), attention("softmax", 30, h, n)
    alpha = torch.tensor([0.01, 1.0, 20.0], dtype=F).repeat(10)
    before = expected_ratio(X, P, alpha=alpha)
    monkeypatch.setattr(ratio, "STEP", ratio.STEP / 2)
    monkeypatch.setattr(ratio, "LEFT", 2 * ratio.LEFT)
    monkeypatch.setattr(ratio, "RIGHT", 2 * ratio.RIGHT)
    torch.testing.assert_close(expected_ratio(X, P, alpha=alpha), before, rtol=1e-12, atol=0)


def test_two_random_directions_leave_no_mean():
    for d in (1, 2):
        X, P = tokens(50, 2, d), attention("softmax", 50, 2)
        assert expected_ratio(X, P).isposinf().all()
        assert expected_eta(X, P).isneginf().all()
        assert expected_ratio(tokens(50, 4, d), attention("softmax", 50, 4)).isfinite().all()
    assert expected_ratio(tokens(50, 2, 3), attention("softmax", 50, 2)).isfinite().all()


def test_a_batch_is_its_items_and_equal_heads_are_one_head():
    X, P = tokens(2, 3, 5, 6), attention("softmax", 2, 3, 5)
    alpha, sigma = torch.rand(2, 3, dtype=F) + 0.1, torch.rand(3, dtype=F)
    found = expected_ratio(X, P, alpha=alpha, sigma=sigma)
    assert found.shape == (2, 3)
    one = expected_ratio(X[1, 2], P[1, 2], alpha=float(alpha[1, 2]), sigma=float(sigma[2]))
    assert float(one) == pytest.approx(float(found[1, 2]), rel=1e-13)
    heads = P.unsqueeze(2).expand(2, 3, 3, 5, 5)
    torch.testing.assert_close(expected_ratio(X, heads, alpha=alpha, sigma=sigma), found, rtol=1e-12, atol=0)
    assert float(expected_ratio(X[0, 0], P[0, 0], sigma=0)) == pytest.approx(1)
    assert expected_ratio(X.float(), P.float()).dtype == F


def test_eta_fades_as_the_width_grows():
    sizes = [8, 32, 128]
    worst = [float(expected_eta(tokens(100, 6, d), attention("softmax", 100, 6)).abs().max()) for d in sizes]
    assert worst[0] > 3 * worst[1] > 9 * worst[2]


@over("case", range(len(CASES)))
def test_a_deviation_of_eta_shows_in_xi_1_or_xi_2_by_gamma(case):
    kind, n, d, h, alpha, sigma = CASES[case]
    X, P = tokens(n, d), attention(kind, h, n)
    Y = steps(X, P, alpha, sigma, draws=2000)
    mu_1, mu_2 = mu_bar(mu(X, P))
    gamma = concentration_gamma(mu_1, mu_2, alpha=alpha, d=d, sigma=sigma)
    E_xi_1, E_xi_2 = expected_xi((mu_1, mu_2), alpha=alpha, d=d, sigma=sigma)
    xi_1, xi_2, _ = growths(X, Y)
    furthest = torch.maximum((xi_1 - E_xi_1).abs(), (xi_2 - E_xi_2).abs())
    found = eta(X.expand_as(Y), Y, P.expand(2000, h, n, n), alpha=alpha, sigma=sigma).abs()
    assert (furthest >= gamma * found.clamp(max=1) - 1e-10).all()  # eq. (23), draw by draw, at every t in [0, 1]


def test_gamma_is_at_least_a_quarter_where_the_mean_token_is_kept():
    mu_2 = torch.linspace(0, 1, 101)
    gamma = concentration_gamma(1.0, mu_2)
    assert float(gamma[0]) == 0.25
    assert (gamma.diff() > 0).all()
    assert concentration_gamma(2.0, 0.5, alpha=2.0) == pytest.approx(2**2 / (17 + 2 * 2))


@over("f", [expected_ratio, expected_eta])
@over(
    "change, error, message",
    [
        ({"X": torch.ones(4, 3)}, UsageError, r"X must have tokens that differ; got 1 of 1 without\. All tokens"),
        ({"X": torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])}, UsageError, r"X must have a mean token; got 1 of 1"),
        ({"X": torch.full((4, 3), math.nan)}, UsageError, r"X must be finite; got NaN or infinity\. Find the block"),
        ({"X": torch.randn(1, 3)}, ShapeError, r"X must have shape"),
        ({"P": torch.eye(5)}, ShapeError, r"P must be \(\.\.\., n, n\) .* got P \(5, 5\) and X \(4, 3\)"),
        ({"P": torch.eye(4).expand(2, 3, 4, 4)}, ShapeError, r"P must be"),
        ({"P": torch.eye(4).expand(2, 4, 4)}, ShapeError, r"heads must divide d; got 2 heads and d = 3\."),
        ({"P": 2 * torch.eye(4)}, StochasticError, r"the rows of P must be probabilities"),
        ({"alpha": 0.0}, UsageError, r"alpha must lie in \(0, inf\); got 0\."),
        ({"sigma": -1.0}, UsageError, r"sigma must lie in \[0, inf\); got -1\."),
        (
            {"alpha": torch.ones(2)},
            ShapeError,
            r"alpha and sigma must be numbers or fit the batch axes of X; got \(2,\)",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(f, change, error, message):
    arguments = {"X": torch.randn(4, 3), "P": torch.eye(4)} | change
    with pytest.raises(error, match=rf"^{f.__name__}: .*{message}"):
        f(**arguments)


def test_gamma_refuses_what_the_other_formulas_refuse():
    with pytest.raises(UsageError, match=r"^concentration_gamma: mu_1 must lie"):
        concentration_gamma(-1.0, 0.5)
    assert {kind for kind, *_ in CASES} == set(KINDS)
