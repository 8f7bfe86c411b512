"""Attention near equal rows: the lemma on random, on sparse and on the worst perturbations a search finds."""

import math

import pytest
import torch

from depthscope.errors import ShapeError, UsageError
from depthscope.theory.softmax_perturbation import (
    PRECONDITION,
    column_growth,
    exchange_gamma,
    score_residual,
    score_spread,
)
from loops import over


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def moved(r, E):
    """P - 1 q^T, by two softmaxes."""
    return (r + E).softmax(-1) - r.softmax(-1)


def column_ratio(r, E):
    """|P - 1 q^T|_1 over |E|_1."""
    return moved(r, E).abs().sum(-2).amax(-1) / E.abs().sum(-2).amax(-1)


def test_the_precondition_is_where_the_exponential_leaves_its_chord():
    assert math.exp(PRECONDITION) == pytest.approx(1 + 2 * PRECONDITION, abs=1e-12)


@over("n", [2, 5, 40])
@over("sharp", [0.0, 1.0, 5.0])
def test_rows_and_columns_stay_within_the_lemma(n, sharp):
    for draw in range(60):
        r, E = sharp * randn(1, n), randn(n, n) * (torch.rand(n, n) < (draw % 3 + 1) / 3)
        E[0, 0] = 1  # not nothing at all
        E = E * torch.rand(1) * 3 / score_spread(E).clamp(min=1e-9)
        D, P, q = score_spread(E), (r + E).softmax(-1), r.softmax(-1)
        assert (moved(r, E).abs().sum(-1) <= 2 * torch.tanh(D / 4) + 1e-12).all()
        assert column_ratio(r, E) <= column_growth(D)
        if D <= PRECONDITION:  # the paper's lemma
            D_rows = (E.amax(-1) - E.amin(-1))[:, None]
            assert ((1 - D_rows) * q <= P + 1e-12).all()
            assert (P <= (1 + 2 * D_rows) * q + 1e-12).all()


@over("D", [0.1, 0.6, PRECONDITION])
def test_a_search_for_the_worst_perturbation_stays_below_kappa(D):
    r, raw = randn(8, 1, 24).requires_grad_(), (0.3 * randn(8, 24, 24)).requires_grad_()
    optimiser = torch.optim.Adam([r, raw], lr=0.05)

    def perturbation():
        return D / 2 * torch.tanh(raw)  # spans at most D in a row

    for _ in range(300):
        optimiser.zero_grad()
        (-column_ratio(r, perturbation()).log().sum()).backward()
        optimiser.step()
    worst = float(column_ratio(r, perturbation()).detach().max())
    assert 0.4 < worst <= column_growth(D)  # 1/2 is the least that kappa can be


def test_two_points_reach_the_bound_on_rows():
    D = 1.0
    a = D / 4
    r = torch.tensor([[a, -a]], dtype=torch.float64)
    E = torch.tensor([[-2 * a, 2 * a]], dtype=torch.float64)
    assert float(moved(r, E).abs().sum()) == pytest.approx(2 * math.tanh(D / 4), rel=1e-12)


def test_the_scores_of_a_head_are_a_common_row_and_the_residual():
    X, W_Q, W_K, b = randn(6, 5), randn(3, 5, 4), randn(3, 5, 4), randn(3, 1, 4)
    P = ((X @ W_Q + b) @ (X @ W_K + 0.3).mT / 2).softmax(-1)
    R = X - X.mean(0)
    E = score_residual(R, W_Q, W_K, scale=0.5)
    common = (X.mean(0, keepdim=True) @ W_Q + b) @ (R @ W_K).mT / 2  # what the mean token asks of every key
    torch.testing.assert_close((common + E).softmax(-1), P)
    torch.testing.assert_close(E[1], 0.5 * R @ W_Q[1] @ W_K[1].T @ R.T)


def test_the_exchange_costs_nothing_for_equal_rows_and_most_for_a_diagonal():
    assert float(exchange_gamma(randn(1, 7).expand(7, 7).contiguous())) == pytest.approx(1)
    assert float(exchange_gamma(torch.eye(64, dtype=torch.float64))) == pytest.approx(math.sqrt(64 / 2))
    E = randn(2, 9, 9)
    worst = [max(float((e[:, j] - e[:, k]).abs().sum()) for j in range(9) for k in range(9)) for e in E]
    rows = [sum(float(row.max() - row.min()) for row in e) for e in E]
    assert exchange_gamma(E).tolist() == pytest.approx([math.sqrt(x / y) for x, y in zip(rows, worst, strict=True)])


def test_kappa_has_its_limits():
    assert column_growth(0.0) == 0.5
    assert column_growth(1e-9) == pytest.approx(0.5)
    assert column_growth(PRECONDITION) == pytest.approx(1.379, abs=1e-3)
    assert column_growth(torch.tensor([0.0, 1.0])).dtype == torch.float64


def test_with_so_many_tokens_kappa_ends_at_a_quarter_of_them():
    assert column_growth(math.inf) == column_growth(400.0) == math.inf
    assert column_growth(math.inf, 8) == 2.0
    assert column_growth(0.1, 8) == column_growth(0.1)
    assert column_growth(3.0, torch.tensor([2.0, 9.0])).tolist() == [0.5, 2.25]


@over("n", [2, 3, 7])
def test_a_search_over_large_perturbations_stays_below_a_quarter_of_the_tokens(n):
    r, E = randn(64, 1, n).requires_grad_(), (3 * randn(64, n, n)).requires_grad_()
    optimiser = torch.optim.Adam([r, E], lr=0.1)
    for _ in range(300):
        optimiser.zero_grad()
        (-column_ratio(r, E).log().sum()).backward()
        optimiser.step()
    assert 0.4 < float(column_ratio(r, E).detach().max()) <= n / 4


def test_wrong_input_is_refused_with_the_reason():
    with pytest.raises(UsageError, match=r"column_growth: D must lie in \[0, inf\]; got -1"):
        column_growth(-1.0)
    with pytest.raises(ShapeError, match=r"W_Q, W_K \(H, d, d_qk\); got \(6, 5\), \(5, 4\)"):
        score_residual(randn(6, 5), randn(5, 4), randn(5, 4), scale=1.0)
