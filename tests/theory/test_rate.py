"""Expected rates against drawn weights, and the bound of Theorem 2.6 against the exact expected rate."""

import math

import pytest
import torch
from kinds import CASES, KINDS, F, assert_mean, attention, delta_by_definition, flat, growths, steps, tokens

from depthscope.errors import TheoryWarning, UsageError
from depthscope.metrics import lambda_2, mu, omega, t_sim
from depthscope.theory import (
    doubly_stochastic_bound,
    expected_eta,
    expected_rate,
    expected_xi,
    mu_bar,
    mu_bounds,
    preconditions,
    rate_estimate,
    rate_lower_bound,
    ratio_estimate,
    ratio_lower_bound,
)
from loops import over


def exact_rate(X, P, **law):
    heads = P.ndim == X.ndim + 1
    mu_1, mu_2 = mu_bar(mu(X, P)) if heads else mu(X, P)
    return expected_rate(t_sim(X), mu_1, mu_2, eta=expected_eta(X, P, **law), d=X.shape[-1], **law)


@over("case", range(len(CASES)), every=3)
def test_eq_13_is_the_mean_of_drawn_rates(case):
    kind, n, d, _, alpha, sigma = CASES[case]
    torch.manual_seed(100 + case)
    X, P = tokens(n, d), attention(kind, n)
    _, _, r = growths(X, steps(X, P[None], alpha, sigma))
    assert_mean(r, exact_rate(X, P, alpha=alpha, sigma=sigma))


@over("case", range(len(CASES)), every=3)
def test_eq_18_is_the_mean_of_drawn_rates_with_heads(case):
    kind, n, d, h, alpha, sigma = CASES[case]
    torch.manual_seed(200 + case)
    X, P = tokens(n, d), attention(kind, h, n)
    _, _, r = growths(X, steps(X, P, alpha, sigma))
    assert_mean(r, exact_rate(X, P, alpha=alpha, sigma=sigma))


def test_at_the_papers_size_the_limit_of_large_d_is_the_rate():
    X, P = torch.randn(64, 512, dtype=F), attention("softmax", 8, 64)
    limit = expected_rate(t_sim(X), *mu_bar(mu(X, P)))
    torch.testing.assert_close(exact_rate(X, P), limit, rtol=1e-5, atol=0)
    assert float(limit) > 1


def drawn(kind, n, d, count=1000):
    """Tokens, attention and all that Theorem 2.6 asks about them, but for E[eta]."""
    X, P = tokens(count, n, d), attention(kind, count, n)
    return X, P, omega(X, P), delta_by_definition(P), *mu(X, P)


def test_eq_16_bounds_the_exact_rate_wherever_its_conditions_hold_and_only_there(pace):
    """Given omega + delta < 1, E[eta] <= Delta is the bound itself, rearranged: preconditions() must agree with both."""
    met, missed, count = 0, 0, 1000 if pace == "long" else 250
    for kind in KINDS:
        for n, d in [(3, 2), (3, 6), (6, 4), (8, 16)]:
            X, P, omega_, delta_, mu_1, mu_2 = drawn(kind, n, d, count)
            eta = expected_eta(X, P)
            met_here = preconditions(omega_, delta_, mu_1=mu_1, mu_2=mu_2, eta=eta).holds
            inside = omega_ + delta_ < 1
            if not bool(inside.any()):
                continue
            rate = exact_rate(X[inside], P[inside])
            bound = rate_lower_bound(t_sim(X)[inside], omega_[inside], delta_[inside])
            assert ((rate >= bound - 1e-11) == met_here[inside]).all()
            assert (bound > 1).all()
            met += int(met_here.sum())
            missed += int((~met_here & inside).sum())
    assert met >= 10 * count
    assert missed > count // 50  # omega + delta < 1 alone is not enough at a finite width


def test_eq_16_bounds_the_exact_rate_of_wide_tokens_that_stay_away_from_equality(pace):
    """The theorem in its own words, with nothing of E[eta] in the condition: omega + delta < 1, (15) >= 0.01, d = 32."""
    met, count = 0, 4000 if pace == "long" else 1000
    for kind in KINDS:
        X, P, omega_, delta_, mu_1, mu_2 = drawn(kind, 10, 32, count)
        away = torch.maximum(mu_1.square() - (1 - omega_).square(), delta_.square() - mu_2.square()) >= 0.01
        met_here = (omega_ + delta_ < 1) & away
        if bool(met_here.any()):
            rate, t = exact_rate(X[met_here], P[met_here]), t_sim(X)[met_here]
            assert (rate >= rate_lower_bound(t, omega_[met_here], delta_[met_here])).all()
            assert (rate > 1).all()
            met += int(met_here.sum())
    assert met >= 2.5 * count


def test_without_its_second_condition_the_bound_fails_for_every_width():
    # Delta = 0 for P = t I + (1 - t) 1 1^T / n, and for tokens on one line xi_1 and xi_2 rise together: E[eta] > 0
    P = 0.5 * torch.eye(4, dtype=F) + 0.5 / 4
    for d in (4, 32, 256):
        X = torch.randn(4, 1, dtype=F) * torch.randn(1, d, dtype=F)
        eta = expected_eta(X, P)
        assert 0.2 / d < float(eta) < 1 / d
        found = preconditions(omega(X, P), delta_by_definition(P), mu_1=1.0, mu_2=0.5, eta=eta)
        assert not found.holds
        assert found.reasons[0].startswith("E[eta] <= Delta does not hold: 1 of 1, missed by")
        assert float(exact_rate(X, P)) < float(rate_lower_bound(t_sim(X), 0.0, 0.5))
    X = torch.tensor([[1.0], [0.0], [2.0], [0.0]], dtype=F) * torch.randn(1, 4, dtype=F)
    _, _, r = growths(X, steps(X, P[None], 1.0, None))
    assert r.mean() + 5 * r.std() / math.sqrt(len(r)) < rate_lower_bound(t_sim(X), 0.0, 0.5)  # so do drawn weights


def test_the_variance_must_be_one_over_d_and_not_the_sub_gaussian_norm():
    # entries uniform in (-1, 1) / sqrt(d) have sub-gaussian norm 1 / sqrt(d) but variance 1 / (3 d)
    X, P = tokens(6, 12), attention("uniform", 6)
    _, _, r = growths(X, steps(X, P[None], 1.0, (3 * 12) ** -0.5, flat))
    assert_mean(r, 1 + t_sim(X) / 3)
    assert r.mean() < rate_lower_bound(t_sim(X), 0.0, 0.0) - 0.2


def test_the_ratio_of_expectations_is_bounded_with_no_condition():
    for kind in KINDS:
        X, P = tokens(300, 5, 3), attention(kind, 300, 5)
        E_xi_1, E_xi_2 = expected_xi(mu(X, P), alpha=1.3)
        assert (E_xi_1 / E_xi_2 >= ratio_lower_bound(omega(X, P), delta_by_definition(P), alpha=1.3) - 1e-12).all()


def test_for_symmetric_attention_the_estimate_is_the_bound():
    X, P = tokens(50, 6, 4), attention("symmetric", 50, 6)
    torch.testing.assert_close(
        rate_estimate(t_sim(X), lambda_2(P), alpha=0.8),
        doubly_stochastic_bound(t_sim(X), delta_by_definition(P), alpha=0.8),
        rtol=1e-9,
        atol=0,
    )


def test_heads_enter_the_bound_by_root_mean_square():
    X, P = tokens(500, 6, 24), attention("softmax", 500, 3, 6)
    bound = expected_rate(t_sim(X), *mu_bar(mu_bounds(omega(X, P), delta_by_definition(P))))
    assert (exact_rate(X, P) >= bound).all()
    assert int((bound > 1).sum()) > 300
    one = expected_rate(0.4, *mu_bar(mu_bounds(torch.tensor([0.1, 0.1]), torch.tensor([0.2, 0.2]))))
    assert float(one) == pytest.approx(rate_lower_bound(0.4, 0.1, 0.2))


def test_figure_3_estimates_and_remark_2_8():
    assert ratio_lower_bound(0.1, 0.2) - 1 == pytest.approx((0.9**2 - 0.2**2) / (1 + 0.2**2))
    assert ratio_estimate(0.3) - 1 == pytest.approx((1 - 0.09) / (1 + 0.09))
    assert rate_estimate(0.4, 0.3) == pytest.approx(1 + (1 - 0.09) / (1 + 0.09) * 0.4)
    assert rate_estimate(0.4, 0.3, alpha=2.0) == pytest.approx(1 + 4 * 0.91 / 1.36 * 0.4)
    assert rate_lower_bound(0.4, 0.1, 0.2, alpha=2.0) == pytest.approx(1 + 4 / 1.16 * (0.81 - 0.04) * 0.4)
    assert doubly_stochastic_bound(0.4, 0.2) == pytest.approx(1 + 0.96 / 1.04 * 0.4)
    assert rate_lower_bound(1.0, 0.0, 0.0, alpha=1.5) == 1 + 1.5**2
    assert expected_rate(0.5, 1.0, 0.0, eta=0.25) == 1.375
    assert expected_rate(0.5, 1.0, 0.5, d=4, sigma=1.0) == 1 + 0.5 * (5 / 2 - 1)
    assert ratio_estimate(1.0) == 1.0  # P = I


def test_outside_the_theorem_the_bound_is_nan_and_says_why():
    with pytest.warns(
        TheoryWarning, match=r"^rate_lower_bound: omega \+ delta < 1 must hold .* got 1 of 1 at 1 or "
    ) as w:
        assert math.isnan(rate_lower_bound(0.5, 0.3, 0.9))
    assert w[0].filename == __file__
    delta_ = torch.tensor([0.5, 0.9, 1.4, math.nan])
    message = (
        r"got 2 of 4 at 1 or above, 1\.7 at worst, and the bound is NaN there\. Use expected_rate .* causal attention"
    )
    with pytest.warns(TheoryWarning, match=message):
        found = rate_lower_bound(0.5, 0.3, delta_)
    assert found.isnan().tolist() == [False, True, True, True]
    with pytest.warns(TheoryWarning, match=r"^doubly_stochastic_bound: omega \+ delta < 1 must hold"):
        assert math.isnan(doubly_stochastic_bound(0.5, 1.0))


def test_causal_attention_does_not_meet_the_theorem_and_the_reasons_say_so():
    X, P = tokens(100, 16, 32), attention("causal", 100, 16)
    found = preconditions(omega(X, P), delta_by_definition(P))
    assert not found.holds.any()
    assert (found.slack < 0).all()
    first, second = found.reasons
    assert first.startswith("omega + delta < 1 does not hold: 100 of 100 at 1 or above, ")
    assert second.startswith("delta < 1 does not hold: ")
    assert "causal mask" in second


def test_preconditions_of_numbers_are_plain():
    found = preconditions(0.1, 0.2)
    assert found.holds is True
    assert found.slack == pytest.approx(0.7)
    assert found.reasons == []
    close = preconditions(0.1, 0.2, mu_1=1.0, mu_2=0.1, eta=0.2)
    assert close.holds is True
    assert close.slack == pytest.approx(2 / 1.01 - 1.81 / 1.04 - 0.2)
    assert preconditions(0.1, 0.2, mu_1=1.0, mu_2=0.1, eta=0.3).holds is False
    assert preconditions(0.1, torch.tensor([0.2, math.nan])).holds.tolist() == [True, False]
    X = tokens(5, 4, 3)  # uniform attention: E[eta] = Delta = 0, and rounding does not count
    P = attention("uniform", 5, 4)
    assert preconditions(
        omega(X, P), delta_by_definition(P), mu_1=mu(X, P)[0], mu_2=mu(X, P)[1], eta=expected_eta(X, P)
    ).holds.all()


@over(
    "call, message",
    [
        (lambda: expected_rate(1.5, 1.0, 0.1), r"^expected_rate: t_sim must lie in \[0, 1\]; got 1\.5\. It is a share"),
        (lambda: expected_rate(0.5, -1.0, 0.1), r"^expected_rate: mu_1 must lie"),
        (lambda: expected_rate(0.5, 1.0, 0.1, alpha=-1), r"^expected_rate: alpha must lie"),
        (lambda: expected_rate(0.5, 1.0, 0.1, sigma=1), r"^expected_rate: sigma must come with the width d"),
        (lambda: rate_lower_bound(-0.1, 0.1, 0.1), r"^rate_lower_bound: t_sim must lie"),
        (lambda: rate_lower_bound(0.1, -0.1, 0.1), r"^rate_lower_bound: omega must lie"),
        (lambda: rate_estimate(0.1, 1.1), r"^rate_estimate: lambda_2 must lie in \[0, 1\]; got 1\.1\. It is a modulus"),
        (lambda: doubly_stochastic_bound(0.1, -0.1), r"^doubly_stochastic_bound: delta must lie"),
        (lambda: rate_lower_bound(0.1, 0.1, 0.1, alpha=0), r"^rate_lower_bound: alpha must lie"),
        (
            lambda: preconditions(0.1, 0.1, eta=0.0),
            r"^preconditions: mu_1, mu_2 and eta must come together; .* Give all",
        ),
    ],
)
def test_wrong_arguments_are_named_with_their_value(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_rounding_at_the_end_of_a_range_is_forgiven():
    assert rate_estimate(1 + 1e-9, 1 + 1e-9) == 1.0
