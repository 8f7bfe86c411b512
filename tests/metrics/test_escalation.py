"""xi, escalation_rate and eta against Yu & Zhang 2023, eq. (5) to (14), with n x n projectors."""

import numpy as np
import pytest
import torch

from depthscope.errors import MaskError, ShapeError, StochasticError
from depthscope.metrics.escalation import escalation_rate, eta, xi
from depthscope.metrics.mixing import mu
from depthscope.metrics.similarity import t_div, t_sim
from loops import over


def projectors(n):
    Pi_1 = np.ones((n, n)) / n
    return Pi_1, np.eye(n) - Pi_1


def xi_by_definition(X, Y):
    return [np.linalg.norm(Pi @ Y) ** 2 / np.linalg.norm(Pi @ X) ** 2 for Pi in projectors(len(X))]


def rate_by_definition(X, Y):
    _, Pi_2 = projectors(len(X))
    div_X, div_Y = (np.linalg.norm(Pi_2 @ Z) ** 2 / np.linalg.norm(Z) ** 2 for Z in (X, Y))
    return div_X / div_Y


def eta_by_definition(X, Y, heads, alpha, sigma):
    expected = []
    for Pi in projectors(len(X)):
        mu_i_squared = [np.linalg.norm(Pi @ P @ X) ** 2 / np.linalg.norm(Pi @ X) ** 2 for P in heads]
        expected.append(1 + alpha**2 * X.shape[1] * sigma**2 * sum(mu_i_squared) / len(heads))
    xi_1, xi_2 = xi_by_definition(X, Y)
    return expected[0] / expected[1] - xi_1 / xi_2


def a_step(*shape):
    return torch.randn(*shape, dtype=torch.float64) + 0.5, 2 * torch.randn(*shape, dtype=torch.float64) - 1


@over("shape", [(2, 1), (7, 5), (2, 3, 6, 4)])
def test_xi_is_eq_7_and_the_rate_is_eq_5(shape):
    X, Y = a_step(*shape)
    pairs = list(zip(X.reshape(-1, *shape[-2:]).numpy(), Y.reshape(-1, *shape[-2:]).numpy(), strict=True))
    found = torch.stack(xi(X, Y), dim=-1)
    assert found.shape == (*shape[:-2], 2)
    np.testing.assert_allclose(found.reshape(-1, 2), [xi_by_definition(*pair) for pair in pairs], rtol=1e-11)
    np.testing.assert_allclose(
        escalation_rate(X, Y).reshape(-1), [rate_by_definition(*pair) for pair in pairs], rtol=1e-11
    )


def test_the_rate_obeys_eq_6():
    X, Y = a_step(3, 7, 5)
    xi_1, xi_2 = xi(X, Y)
    torch.testing.assert_close(escalation_rate(X, Y), 1 + (xi_1 / xi_2 - 1) * t_sim(X))
    torch.testing.assert_close(escalation_rate(X, Y), t_div(X) / t_div(Y))


def test_a_mask_leaves_the_tokens_it_keeps_wherever_they_stand():
    X, Y = a_step(2, 7, 4)
    keep = torch.tensor([[0, 1, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0]]).bool()
    pairs = [(X[i, keep[i]].numpy(), Y[i, keep[i]].numpy()) for i in range(2)]
    np.testing.assert_allclose(
        torch.stack(xi(X, Y, mask=keep), -1), [xi_by_definition(*pair) for pair in pairs], rtol=1e-11
    )
    np.testing.assert_allclose(
        escalation_rate(X, Y, mask=keep), [rate_by_definition(*pair) for pair in pairs], rtol=1e-11
    )


def test_a_step_between_collapsed_states_has_no_rate():
    X = torch.randn(1, 4).expand(5, 4)
    xi_1, xi_2 = xi(X, 2 * X)
    assert float(xi_1) == pytest.approx(4)
    assert xi_2.isnan()
    assert escalation_rate(X, 2 * X).isnan()


@over("alpha", [1.0, 0.3])
@over("sigma", [None, 0.2])
@over("heads", [(), (1,), (3,)])
def test_eta_is_eq_14(heads, sigma, alpha):
    X, Y = a_step(2, 6, 4)
    P = torch.randn(2, *heads, 6, 6, dtype=torch.float64).softmax(-1)
    found = eta(X, Y, P, alpha=alpha, sigma=sigma)
    truth = [
        eta_by_definition(x, y, p.reshape(-1, 6, 6), alpha, 4**-0.5 if sigma is None else sigma)
        for x, y, p in zip(X.numpy(), Y.numpy(), P.numpy(), strict=True)
    ]
    np.testing.assert_allclose(found, truth, rtol=1e-11)


def test_the_expectation_in_eta_is_that_of_random_heads():
    """Proposition 2.9: the mean of xi_i over draws of W, with heads of width d / h side by side."""
    n, d, h, alpha, draws = 5, 8, 2, 0.8, 4000
    X = torch.randn(n, d, dtype=torch.float64) + 0.5
    P = (2 * torch.randn(h, n, n, dtype=torch.float64)).softmax(-1)
    W = torch.randn(draws, h, d, d // h, dtype=torch.float64) / d**0.5
    Y = X + alpha * torch.cat(list((P @ X @ W).unbind(1)), dim=-1)
    xi_1, xi_2 = xi(X.expand_as(Y), Y)
    expected_ratio = eta(X, Y[0], P, alpha=alpha) + xi_1[0] / xi_2[0]
    assert float(expected_ratio) == pytest.approx(float(xi_1.mean() / xi_2.mean()), rel=0.02)
    assert float(mu(X, P)[1].square().max()) < 0.8  # so that taking P for I would be seen


def test_steps_that_do_not_fit_are_refused_with_the_reason():
    X, Y = a_step(5, 4)
    P = torch.eye(5)
    for f in (xi, escalation_rate):
        with pytest.raises(ShapeError, match=rf"^{f.__name__}: X and Y must .* got \(5, 4\) and \(5, 3\)"):
            f(X, Y[:, :3])
        with pytest.raises(MaskError, match=rf"^{f.__name__}: mask must .* shape \(5,\); got \(4,\)"):
            f(X, Y, mask=torch.ones(4))
        with pytest.raises(ShapeError, match=rf"^{f.__name__}: X must .* got \(1, 4\)"):
            f(X[:1], Y[:1])
    with pytest.raises(ShapeError, match=r"X and Y must have the same shape"):
        eta(X, Y[:4], P)
    with pytest.raises(ShapeError, match=r"P must be .* got P \(4, 4\) and X \(5, 4\)"):
        eta(X, Y, P[:4, :4])
    with pytest.raises(StochasticError, match=r"rows of P must be probabilities"):
        eta(X, Y, 2 * P)


def test_integer_numbers_after_the_step_are_not_blamed_on_the_state_before():
    X, Y = a_step(5, 4)
    with pytest.raises(ShapeError, match=r"^xi: Y must hold floating point numbers; got torch.int64"):
        xi(X, Y.long())
