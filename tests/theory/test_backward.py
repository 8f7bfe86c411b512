"""Growth of token gradients: the means behind it against direct draws, its limits, and real models by autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depthscope.errors import UnknownNameError, UsageError
from depthscope.models.design import Design
from depthscope.models.transformer import Transformer
from depthscope.theory.backward import gradient_growth, growth_of_diverse_tokens
from depthscope.theory.backward.network import kernel_of
from depthscope.theory.backward.rows import row_means
from depthscope.theory.backward.states import Gradient, Tokens, e_after
from depthscope.theory.kernels import kernel
from depthscope.theory.participation import participation
from loops import over

XAVIER = {"n": 16, "d": 64, "h": 4, "width": 256, "s": 1.0, "v": 1.0, "k": 0.32}


def growth(depth: int = 24, **changes) -> torch.Tensor:
    return gradient_growth(depth, **XAVIER | changes)


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# rows of attention


@over("n, w", [(8, 0.3), (16, 1.0), (64, 1.0)])
def test_rows_of_many_dimensions_participate_like_independent_scores(n: int, w: float) -> None:
    means = row_means(w, 0.0, 1e-5, n, 100_000)
    assert means.Y == pytest.approx(participation(n, w), rel=0.015)
    assert means.B_o == pytest.approx(means.Y_o * (1 - 1 / n))


@over("w, d", [(0.5, 48), (1.5, 48), (1.5, 96)])
def test_means_over_rows_are_those_of_real_attention(w: float, d: int) -> None:
    """Tokens, queries and keys are drawn as a model has them; nothing of the row model is used."""
    n, d_h, draws = 12, 16, 3000
    X = normals(draws, n, d)
    X = X / X.square().mean(-1, keepdim=True).sqrt()
    q, k = (X @ (normals(draws, d, d_h, seed=s) / math.sqrt(d)) for s in (1, 2))
    P = (math.sqrt(w) * q @ k.mT / math.sqrt(d_h)).softmax(-1)
    C = X @ X.mT / d
    H = torch.eye(n) - P.unsqueeze(-2)  # (draws, row, n, n): A -> A - P A in every row
    HCH = H @ C.unsqueeze(1) @ H.mT
    diagonal = HCH.diagonal(dim1=-2, dim2=-1)
    keys = (k @ k.mT / d_h).unsqueeze(1)
    other = (P.unsqueeze(1) * P.unsqueeze(2)).sum(-1)
    means = row_means(w, 0.0, 1 / d, n, d_h)
    B_q = (P.unsqueeze(-1) * P.unsqueeze(-2) * HCH * keys).sum((-2, -1)).mean()
    B_k = (q.square().mean(-1) * (P.square() * diagonal).sum(-1)).mean()
    assert means.Y == pytest.approx(float(P.square().sum(-1).mean()), rel=0.03)
    assert means.mix == pytest.approx(float((P @ X).square().mean()), rel=0.03)
    assert means.Y_o == pytest.approx(
        float((other.sum((-2, -1)) - P.square().sum((-2, -1))).mean() / n / (n - 1)), rel=0.03
    )
    assert means.B_q == pytest.approx(float(B_q), rel=0.06)
    assert means.B_k == pytest.approx(float(B_k), rel=0.06)


@over("d", [16, 48])
def test_sharp_rows_of_few_dimensions(d: int) -> None:
    """Rows of one sequence by themselves: their lengths vary as queries and keys do, and B_q leans along the query."""
    n, d_h, w, draws = 12, 4, 4.0, 3000
    X = normals(draws, n, d)
    X = X / X.square().mean(-1, keepdim=True).sqrt()
    q, k = (X @ (normals(draws, d, d_h, seed=s) / math.sqrt(d)) for s in (1, 2))
    P = (math.sqrt(w) * q @ k.mT / math.sqrt(d_h)).softmax(-1)
    H = torch.eye(n) - P.unsqueeze(-2)
    keys = (k @ k.mT / d_h).unsqueeze(1)
    B_q = (P.unsqueeze(-1) * P.unsqueeze(-2) * (H @ (X @ X.mT / d).unsqueeze(1) @ H.mT) * keys).sum((-2, -1)).mean()
    means = row_means(w, 0.0, 1 / d, n, d_h)
    assert means.Y == pytest.approx(float(P.square().sum(-1).mean()), rel=0.025)
    assert means.mix == pytest.approx(float((P @ X).square().mean()), rel=0.025)
    assert means.B_q == pytest.approx(float(B_q), rel=0.06)


def test_calm_rows_are_uniform() -> None:
    means, eta, n = row_means(0.0, 0.3, 0.02, 10, 16), 0.02, 10
    assert means.Y == pytest.approx(1 / n) and means.Y_o == pytest.approx(1 / n) and means.V_o == pytest.approx(0.0)
    assert means.B_q == pytest.approx(1 / n + eta, rel=0.25)  # tr C^2 / n^2 of Noci et al., to the first order in 1/n
    assert row_means(0.0, 0.3, 0.02, 10_000, 16).Y == pytest.approx(1e-4)  # more dimensions than Sobol's points have


# the network's kernel


@given(st.floats(1e-9, 1.8))
def test_kappa_of_relu(gap: float) -> None:
    rho = 1 - gap
    found = kernel_of("relu")(gap)
    C = torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64)
    assert 1 - found.lost == pytest.approx(2 * float(kernel("relu", C)[0, 1]), abs=1e-12)
    assert found.first == pytest.approx(1 - math.acos(rho) / math.pi, abs=1e-6)
    assert found.second == pytest.approx(1 / (math.pi * math.sqrt(1 - rho**2)), rel=1e-4)
    assert found.own == 1.0


@over("activation", ["gelu", "silu", "swiglu"])
@over("rho", [-0.1, 0.0, 0.4, 0.95])
def test_kappa_by_its_series(activation: str, rho: float) -> None:
    kappa, step = kernel_of(activation, 0.8), 1e-4
    found, below, above = kappa(1 - rho), kappa(1 - rho + step), kappa(1 - rho - step)
    assert found.first == pytest.approx((below.lost - above.lost) / (2 * step), rel=1e-5)
    assert found.second == pytest.approx((above.first - below.first) / (2 * step), rel=1e-5)
    f = activation.replace("swiglu", "silu")
    C = 0.64 * torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64)
    K = kernel(f, C) * (C / 0.64 if activation == "swiglu" else 1.0)
    assert 1 - found.lost == pytest.approx(float(K[0, 1] / K[0, 0]), abs=1e-9)


def test_nothing_is_lost_to_rounding_when_tokens_are_alike() -> None:
    for activation in ("relu", "gelu"):
        kappa = kernel_of(activation)(1e-20)
        assert kappa.lost == pytest.approx(kappa.own * 1e-20, rel=1e-6)


# de-escalation


@given(st.floats(0, 1))
def test_de_escalation_of_tokens_and_gradients(tau: float) -> None:
    n, d = 7, 5
    X, g = normals(n, d) + normals(1, d, seed=1), normals(n, d, seed=2)
    Y, back = (A - tau * A.mean(0) for A in (X, g))

    def tokens(X: torch.Tensor) -> Tokens:
        c = X @ X.T / d
        q = float(c.diagonal().mean())
        return Tokens(q, q - float(c.sum() - c.trace()) / (n * (n - 1)), 0.1)

    def gradient(g: torch.Tensor) -> Gradient:
        return Gradient(float(g.square().sum()), float(g.sum(0).square().sum()) / n, 0.0)

    assert tokens(X).without_mean(tau, n) == pytest.approx(tokens(Y))
    assert gradient(g).without_mean(tau) == pytest.approx(gradient(back), abs=1e-12)
    assert tokens(X).common(n) == pytest.approx(float(X.mean(0).square().mean()))
    assert gradient(g).pairs(n) == pytest.approx(float((g @ g.T).sum() - g.square().sum()))


# growth


def test_the_closed_form_is_the_recursion_of_diverse_tokens() -> None:
    for n, s, v, k in [(16, 1.0, 0.5, 0.3), (64, 1.0, 1.0, 0.3), (32, 0.11, 0.11, 0.06), (64, 0.5, 0.2, 0.4)]:
        found = gradient_growth(24, n=n, d=1024, h=8, width=4096, s=s, v=v, k=k, tau=1.0)
        assert float(found[12]) == pytest.approx(growth_of_diverse_tokens(n, s=s, v=v, k=k), abs=0.015)


def test_the_closed_form_takes_tensors() -> None:
    tau = torch.tensor([0.5, 1.0])
    rows = growth_of_diverse_tokens(16, s=1.0, v=torch.ones(3, 1), k=0.3, tau=tau)
    assert rows.shape == (3, 2) and rows.dtype == torch.float64
    assert float(rows[0, 1]) == growth_of_diverse_tokens(16, s=1.0, v=1.0, k=0.3)
    assert growth_of_diverse_tokens(16, s=0.0, v=1.0, k=0.0) == 1.0
    mu = 0.3 / math.pi / 1.3
    assert growth_of_diverse_tokens(16, s=1.0, v=0.0, k=0.3) == pytest.approx(1 / math.sqrt(1 - mu))


@over("activation", ["relu", "gelu", "silu"])
def test_collapsed_tokens_keep_their_gradient(activation: str) -> None:
    found = growth(200, d=1024, tau=0.0, k=0.1, activation=activation)
    assert found.isfinite().all() and bool((found[100:180] - 1 < 0.05).all())
    if activation == "relu":  # norms and branches cancel, the scores are dead; chance takes O(1/d)
        assert bool(((found[100:180] - 1).abs() < 0.002).all())


def test_no_branches_leave_the_gradient_alone() -> None:
    for wiring in ("post_norm", "pre_norm"):
        torch.testing.assert_close(growth(5, s=0.0, k=0.0, wiring=wiring), torch.ones(5, dtype=torch.float64))


@given(
    n=st.sampled_from([2, 3, 16, 200]),
    d=st.sampled_from([2, 32, 512]),
    s=st.floats(0, 20),
    v=st.floats(0, 100),
    k=st.floats(0, 20),
    tau=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    rho=st.sampled_from([0.0, 0.9, 0.999]),
    wiring=st.sampled_from(["post_norm", "pre_norm"]),
    activation=st.sampled_from(["relu", "gelu", "swiglu"]),
)
@settings(max_examples=60, deadline=None)
def test_growth_is_a_number_far_beyond_its_reach(**numbers) -> None:
    found = gradient_growth(5, h=1, width=64, **numbers)
    assert found.shape == (5,) and bool((found > 0).all()) and found.isfinite().all()


def test_gains_of_each_block() -> None:
    s = torch.linspace(0.2, 1.0, 24)
    found = growth(24, s=s, tau=1.0)
    assert float(found[3]) < float(found[20])
    torch.testing.assert_close(growth(24, s=torch.ones(24), tau=1.0), growth(24, tau=1.0))
    torch.testing.assert_close(growth(24, activation="relu", spread=3.0), growth(24))


@over("wiring, tau, activation", [("post_norm", 0.7, "relu"), ("pre_norm", 1.0, "gelu")])
def test_the_forecast_is_what_autograd_finds(wiring: str, tau: float, activation: str) -> None:
    depth, n, d, logs = 16, 12, 64, []
    torch.manual_seed(0)
    for _ in range(6):
        model = Transformer(Design(depth, d, 4, wiring=wiring, activation=activation, weights="xavier", output=True))
        states = [torch.randn(4, n, d).requires_grad_()]
        for block in model:
            Y = block(states[-1])
            states.append(Y - tau * Y.mean(-2, keepdim=True))
        found = torch.autograd.grad((states[-1][:, 0] * torch.randn(4, d)).sum(), states)
        norms = torch.stack([g.double().norm() for g in found])
        logs.append((norms[:-1] / norms[1:]).log()[4:12].mean())
    reads = 2 / 5  # d Var(W_1) under Xavier's law, for a width of 4 d; then 4 d Var(W_2) = 8 / 5
    k = 8 / 5 * float(kernel(activation, torch.tensor([[reads]], dtype=torch.float64)))
    numbers = {"wiring": wiring, "tau": tau, "activation": activation, "spread": reads**0.5}
    forecast = gradient_growth(depth, n=n, d=d, h=4, width=4 * d, s=1.0, v=1.0, k=k, **numbers)
    assert float(forecast[4:12].log().mean().exp()) == pytest.approx(float(torch.stack(logs).mean().exp()), abs=0.02)


@over("n, d, tau", [(16, 64, 1.0), (16, 48, 0.6)])
def test_and_so_for_sharp_scores(n: int, d: int, tau: float) -> None:
    """v = 4, where overlaps of tokens and of gradients (e and R) carry a tenth of the growth; a standard error of .004."""
    depth, logs = 20, []
    torch.manual_seed(1)
    for _ in range(8):
        model = Transformer(Design(depth, d, 4, weights="xavier", output=True))
        with torch.no_grad():
            for block in model:
                block.attention.W_q.weight.mul_(2**0.5)
                block.attention.W_k.weight.mul_(2**0.5)
        states = [torch.randn(6, n, d).requires_grad_()]
        for block in model:
            Y = block(states[-1])
            states.append(Y - tau * Y.mean(-2, keepdim=True))
        found = torch.autograd.grad((states[-1][:, 0] * torch.randn(6, d)).sum(), states)
        norms = torch.stack([g.double().norm() for g in found])
        logs.append((norms[:-1] / norms[1:]).log()[5:15].mean())
    forecast = gradient_growth(depth, n=n, d=d, h=4, width=4 * d, s=1.0, v=4.0, k=0.32, tau=tau)
    assert float(forecast[5:15].log().mean().exp()) == pytest.approx(float(torch.stack(logs).mean().exp()), abs=0.02)


# wrong use


@over(
    "call, error, message",
    [
        (lambda: growth(tau=1.0, common=1.0), UsageError, "more than the mean token when tau = 1"),
        (lambda: growth(tau=1.0, rho=1.0), UsageError, "tokens must differ when tau = 1"),
        (lambda: growth(wiring="post_nrm"), UnknownNameError, "post_norm"),
        (lambda: growth(activation="tanh"), UnknownNameError, "no activation is called 'tanh'"),
        (lambda: growth(n=1), UsageError, "n must be a whole number, 2 or more; got 1"),
        (lambda: growth(h=5), UsageError, "heads must divide the width"),
        (lambda: growth(s=-1.0), UsageError, r"s must lie in \[0, inf\)"),
        (lambda: growth(v=torch.ones(3)), UsageError, "v must be a number or one for each of 24 blocks"),
        (lambda: growth(tau=1.5), UsageError, "tau must lie in"),
        (lambda: growth_of_diverse_tokens(16, s=1.0, v=1.0, k=1.0, kappa_0=2.0), UsageError, "kappa_0 must lie in"),
    ],
)
def test_wrong_use_is_answered(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_branch_of_equal_tokens_takes_nothing_from_what_random_weights_add() -> None:
    stream = Tokens(q=1.0, D=0.5, eta=0.4)  # e = eta D^2 = 0.1
    assert e_after(stream, 0.0, 0.0, 0.2) == pytest.approx(0.1 + 0.2)
    assert e_after(stream, 1.0, 0.5, 0.2) == pytest.approx(
        0.1 * 1.5**2 + 0.2 * (1 - 3 * (0.5 * 0.5) * 0.1 * 1.5**2 / 1.5**2)
    )
