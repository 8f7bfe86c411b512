"""Expected growths against drawn weights, the bounds of mu against random tokens and attention."""

import math

import pytest
import torch
from kinds import CASES, KINDS, F, assert_mean, attention, delta_by_definition, flat, growths, normal, steps, tokens

from depthscope.errors import UsageError
from depthscope.metrics import mu, omega
from depthscope.theory import expected_energy, expected_xi, mu_bar, mu_bounds
from loops import over


@over("law", [normal, flat])
@over("case", range(len(CASES)), every=3)
def test_eq_9_is_the_mean_of_drawn_growths_for_any_law(case, law):
    kind, n, d, _, alpha, sigma = CASES[case]
    torch.manual_seed(case)
    X, P = tokens(n, d), attention(kind, n)
    xi_1, xi_2, _ = growths(X, steps(X, P[None], alpha, sigma, law))
    E_xi_1, E_xi_2 = expected_xi(mu(X, P), alpha=alpha, d=d, sigma=sigma)
    assert_mean(xi_1, E_xi_1)
    assert_mean(xi_2, E_xi_2)


@over("case", range(0, len(CASES), 3))
def test_eq_29_is_the_mean_of_drawn_growths_with_heads(case):
    kind, n, d, h, alpha, sigma = CASES[case]
    torch.manual_seed(case)
    X, P = tokens(n, d), attention(kind, h, n)
    xi_1, xi_2, _ = growths(X, steps(X, P, alpha, sigma))
    E_xi_1, E_xi_2 = expected_xi(mu_bar(mu(X, P)), alpha=alpha, d=d, sigma=sigma)
    assert_mean(xi_1, E_xi_1)
    assert_mean(xi_2, E_xi_2)


def test_one_mu_gives_one_number_and_a_pair_gives_a_pair():
    assert expected_xi(0.5) == 1.25
    assert expected_xi((1.0, 0.5), alpha=2.0) == (5.0, 2.0)
    assert expected_xi(1.0, d=100) == 2.0  # sigma is 1 / sqrt(d)
    assert expected_xi(1.0, d=100, sigma=0.2) == pytest.approx(5.0)
    assert expected_xi(1.0, d=100, sigma=0) == 1.0
    found = expected_xi(torch.tensor([0.0, 1.0]), alpha=torch.tensor([[1.0], [2.0]]))
    assert found.dtype == F
    assert found.tolist() == [[1, 2], [1, 5]]
    assert expected_xi(torch.tensor([math.nan, 1.0])).isnan().tolist() == [
        True,
        False,
    ]  # what was not measured stays so


def test_mu_bar_is_the_root_mean_square_over_heads():
    heads = torch.tensor([[1.0, 7.0], [3.0, 3.0]])
    assert mu_bar(heads).tolist() == [5.0, 3.0]
    assert mu_bar(heads, dim=0).tolist() == pytest.approx([math.sqrt(5), math.sqrt(29)])
    assert mu_bar(0.3) == 0.3
    first, second = mu_bar((heads, heads[0]))
    assert first.tolist() == [5.0, 3.0]
    assert float(second) == 5.0


def test_bounds_of_eq_11_hold_for_ten_thousand_tokens_and_attentions():
    count = 0
    for kind in KINDS:
        for n, d in [(2, 3), (3, 1), (5, 8), (9, 4)]:
            X, P = tokens(400, n, d) * torch.rand(400, 1, 1) - 0.2, attention(kind, 400, n)
            lower, upper = mu_bounds(omega(X, P), delta_by_definition(P))
            mu_1, mu_2 = mu(X, P)
            assert (mu_1 >= lower * (1 - 1e-10) - 1e-12).all()
            assert (mu_2 <= upper * (1 + 1e-10) + 1e-12).all()
            count += len(X)
    assert count >= 10_000


def test_heads_keep_the_bounds_by_root_mean_square_and_not_by_mean():
    X = tokens(200, 6, 4)
    P = torch.stack([attention("uniform", 200, 6), attention("identity", 200, 6), attention("causal", 200, 6)], 1)
    lower, upper = mu_bounds(omega(X, P), delta_by_definition(P))
    mu_1, mu_2 = mu_bar(mu(X, P))
    assert (mu_1 >= mu_bar(lower) - 1e-12).all()
    assert (mu_2 <= mu_bar(upper) + 1e-12).all()
    same = mu_bar(mu(X, P[:, :2]))[1]  # uniform and identity: mu_2 = delta, 0 and 1
    assert (same > upper[:, :2].mean(-1) + 0.2).all()
    assert mu_bounds(0.25, 0.5) == (0.75, 0.5)
    assert mu_bounds(3.0, 0.5) == (2.0, 0.5)


@over("law", [normal, flat])
def test_eq_20_is_the_mean_energy_of_a_pre_norm_block(law):
    n, d, h, q, draws, alpha, sigma = 5, 6, 3, 9, 20_000, 0.7, 0.3
    X, P = tokens(n, d), attention("softmax", h, n)
    X_hat = torch.nn.functional.layer_norm(X, (d,))
    mixed = P @ X_hat
    W = sigma * law(draws, h, d, d // h)
    Y = X + alpha * (mixed @ W).permute(0, 2, 1, 3).reshape(draws, n, d)
    energy = X.square().sum()
    assert_mean(
        Y.square().sum((-2, -1)),
        expected_energy(energy, mixed.square().sum((-2, -1)).mean(), alpha=alpha, d=d, sigma=sigma),
    )
    hidden = (X_hat @ torch.randn(d, q, dtype=F)).relu()
    Z = X + hidden @ (sigma * law(draws, q, d))
    assert_mean(Z.square().sum((-2, -1)), expected_energy(energy, hidden.square().sum(), d=d, sigma=sigma))
    assert expected_energy(2.0, 3.0) == 5.0


@over(
    "arguments, message",
    [
        ({"alpha": 0}, r"^expected_xi: alpha must lie in \(0, inf\); got 0\. It weighs"),
        ({"alpha": math.inf}, r"^expected_xi: alpha must lie in \(0, inf\); got inf\."),
        ({"alpha": math.nan}, r"^expected_xi: alpha must lie in \(0, inf\); got nan\."),
        ({"sigma": 0.1}, r"^expected_xi: sigma must come with the width d; got sigma = 0\.1 alone\. Give d"),
        ({"d": 4, "sigma": -0.1}, r"^expected_xi: sigma must lie in \[0, inf\); got -0\.1\. It is the standard"),
        ({"d": 0}, r"^expected_xi: d must lie in \[1, inf\); got 0\. It is the width"),
        ({"alpha": "1"}, r"^expected_xi: alpha must be a number or a tensor; got str\. Wrap it"),
        ({"alpha": torch.tensor([1.0, -2.0, -3.0])}, r"got -2 \(2 of 3 values\)\."),
    ],
)
def test_wrong_arguments_are_named_with_their_value(arguments, message):
    with pytest.raises(UsageError, match=message):
        expected_xi(1.0, **arguments)


@over(
    "call, message",
    [
        (lambda: expected_xi(-1.0), r"^expected_xi: mu must lie in \[0, inf\]; got -1\. It is a ratio of norms"),
        (lambda: expected_xi((1.0, -1.0)), r"^expected_xi: mu_2 must lie"),
        (lambda: mu_bar(-1.0), r"^mu_bar: mu must lie"),
        (lambda: mu_bounds(-1.0, 0.5), r"^mu_bounds: omega must lie in \[0, inf\]; got -1\."),
        (lambda: mu_bounds(0.1, -0.5), r"^mu_bounds: delta must lie in \[0, inf\]; got -0\.5\."),
        (lambda: expected_energy(-1.0, 1.0), r"^expected_energy: energy must lie .* squared Frobenius norm"),
        (lambda: expected_energy(1.0, -1.0), r"^expected_energy: mixed_energy must lie"),
    ],
)
def test_numbers_that_no_tokens_can_have_are_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()
