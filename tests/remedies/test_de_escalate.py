"""DeEscalate: eq. (21), its causal forms, and a strength that is learned."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import depthscope as ds
from depthscope.errors import UnknownNameError, UsageError
from depthscope.interventions.means import MEANS, Stretch, token_mean
from depthscope.remedies import DeEscalate
from loops import over

quick = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def states(draw) -> Tensor:
    """X (b, n, d) with a common offset that may be large."""
    b, n, d = (draw(st.integers(low, high)) for low, high in [(1, 3), (2, 9), (1, 6)])
    offset = draw(st.sampled_from([0.0, 1.0, 30.0]))
    torch.manual_seed(draw(st.integers(0, 10_000)))
    return torch.randn(b, n, d, dtype=torch.float64) + offset * torch.randn(b, 1, d, dtype=torch.float64)


def matrix(form: str, n: int) -> Tensor:
    """The n x n matrix whose rows average what a token may see."""
    if form == "full":
        return torch.ones(n, n, dtype=torch.float64) / n
    rows = torch.ones(n, n, dtype=torch.float64).tril(-1 if form == "past" else 0)
    t = torch.arange(1, n + 1, dtype=torch.float64)
    return rows / {"prefix": t, "sink": t + 1, "past": (t - 1).clamp(min=1)}[form].unsqueeze(-1)


@over("form", MEANS)
@quick
@given(X=states(), tau=st.sampled_from([0.1, 0.5, 1.0]))
def test_each_form_is_its_matrix(form, X, tau):
    n = X.shape[-2]
    expected = (torch.eye(n, dtype=torch.float64) - tau * matrix(form, n)) @ X
    torch.testing.assert_close(DeEscalate(tau, form=form)(X), expected, rtol=1e-10, atol=1e-10)


@quick
@given(X=states())
def test_complete_removal_is_a_projection_that_leaves_no_similarity(X):
    remedy = DeEscalate(1.0)
    Y = remedy(X)
    torch.testing.assert_close(remedy(Y), Y, rtol=1e-12, atol=1e-12 * float(X.abs().max()))
    assert float(ds.metrics.t_sim(Y).max()) < 1e-12


@over("form", MEANS)
@quick
@given(X=states(), tau=st.sampled_from([0.3, 1.0]))
def test_it_acts_on_tokens_only_and_commutes_with_weights(form, X, tau):
    W = torch.randn(X.shape[-1], 3, dtype=torch.float64)
    remedy = DeEscalate(tau, form=form)
    torch.testing.assert_close(remedy(X @ W), remedy(X) @ W, rtol=1e-10, atol=1e-10)


@quick
@given(X=states(), tau=st.floats(0.01, 0.99))
def test_it_multiplies_the_odds_of_similarity_by_one_minus_tau_squared(X, tau):
    before, after = ((ds.metrics.t_sim(Z) / ds.metrics.t_div(Z)) for Z in (X, DeEscalate(tau)(X)))
    torch.testing.assert_close(after, (1 - tau) ** 2 * before, rtol=1e-8, atol=1e-10)


def test_the_first_token_of_each_causal_form():
    X = torch.randn(2, 5, 3, dtype=torch.float64)
    first = {form: DeEscalate(1.0, form=form)(X)[:, 0] for form in ("prefix", "sink", "past")}
    assert not first["prefix"].any(), "prefix erases it"
    torch.testing.assert_close(first["sink"], X[:, 0] / 2)
    assert torch.equal(first["past"], X[:, 0])


@over("form", MEANS)
def test_the_mean_of_an_odd_mask_by_loops(form):
    """Padding on the left, on the right and in the middle."""
    X = torch.randn(3, 7, 2, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1, 0]]).bool()
    found = token_mean(X.masked_fill(~mask[..., None], 0.0), form, Stretch(mask)).expand_as(X)
    for b in range(3):
        real = X[b][mask[b]]
        rows = matrix(form, len(real)) @ real
        torch.testing.assert_close(found[b][mask[b]], rows)


def test_the_default_is_bit_equal_to_the_plain_formula():
    X = torch.randn(3, 7, 16)
    for tau in (0.3, 1.0):
        assert torch.equal(DeEscalate(tau)(X), X - tau * X.mean(-2, keepdim=True))


@over("form", ["prefix", "sink", "past"])
def test_long_low_precision_sequences_keep_their_mean(form):
    """bfloat16 sums would stall at 256: they are taken in float32."""
    X = torch.ones(1, 4096, 2, dtype=torch.bfloat16)
    mean = X - DeEscalate(1.0, form=form)(X)
    assert float((mean[0, 300:].float() - 1).abs().max()) < 0.01


@over("tau", [0.01, 0.3, 0.5, 0.99])
def test_a_learned_tau_starts_where_it_is_told(tau):
    remedy = DeEscalate(tau, learnable=True)
    assert list(remedy.state_dict()) == ["raw_tau"] and remedy.raw_tau.shape == ()
    assert remedy.tau.item() == pytest.approx(tau, rel=1e-6)
    assert repr(remedy) == f"DeEscalate(tau={remedy.tau.item():g}, learnable=True)"


def test_a_learned_tau_of_one_starts_just_below_and_can_move():
    remedy, X = DeEscalate(1.0, learnable=True), torch.randn(2, 5, 4) + 1
    assert remedy.tau.item() == pytest.approx(0.99, rel=1e-6)
    assert remedy.settings() == {"tau": 1.0, "form": "full", "learnable": True}
    remedy(X).square().sum().backward()
    assert remedy.raw_tau.grad.abs() > 1e-5


@over("sign, end", [(-1.0, 1.0), (1.0, 0.0)])
def test_a_learned_tau_stays_between_zero_and_one(sign, end):
    """However hard it is pushed."""
    remedy, X = DeEscalate(0.5, learnable=True), torch.ones(1, 5, 4)
    optimizer = torch.optim.SGD(remedy.parameters(), lr=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        (-sign * remedy(X).square().sum()).backward()
        optimizer.step()
        assert 0 < remedy.tau.item() <= 1
    assert abs(remedy.tau.item() - end) < 0.2


def test_the_causal_form_is_sink_and_a_chosen_causal_form_is_kept():
    assert repr(DeEscalate(0.5).causal_form()) == "DeEscalate(tau=0.5, form=sink)"
    assert DeEscalate(0.5, form="past").causal_form().form == "past"
    learned = DeEscalate(0.5, learnable=True).double()
    learned.raw_tau.data.add_(1.0)
    assert torch.equal(learned.causal_form().tau, learned.tau), "in its dtype, too"


@over(
    "call, error, message",
    [
        (lambda: DeEscalate(-0.1), UsageError, r"DeEscalate: tau must lie in \[0, 1\]; got -0.1. 1 removes"),
        (lambda: DeEscalate(torch.nan), UsageError, "got nan"),
        (lambda: DeEscalate(0.0, learnable=True), UsageError, "must start in .*got 0, where it could not move"),
        (
            lambda: DeEscalate(form="prefx"),
            UnknownNameError,
            "DeEscalate: no form is called 'prefx'. Did you mean prefix?",
        ),
    ],
)
def test_wrong_use_is_answered(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_full_form_is_differentiable_in_every_way():
    X = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    remedy = DeEscalate(0.7)
    assert torch.autograd.gradcheck(remedy, X, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda X: remedy(X).pow(3), X)
    torch.testing.assert_close(torch.func.vmap(remedy)(X), remedy(X))
    slow = torch.func.grad(lambda X: (X - 0.7 * X.mean(-2, keepdim=True)).pow(3).sum())(X)
    torch.testing.assert_close(torch.func.grad(lambda X: remedy(X).pow(3).sum())(X), slow)
