"""What the experiments compute, against slower ways to compute it."""

import scipy.stats
import torch

from depthscope.experiments.random import KINDS, drawn_xi, random_attention, random_tokens
from depthscope.experiments.yu2023 import fig3, section_2_3
from depthscope.metrics import t_sim, xi


def test_the_short_draws_of_figure_3_have_the_law_of_whole_matrices() -> None:
    n, d, h, draws = 6, 16, 4, 3000
    X, P = torch.randn(n, d), torch.randn(h, n, n).softmax(-1)
    slow = []
    for _ in range(draws):
        W = torch.randn(d, d) * d**-0.5
        heads = [P[k] @ X @ W[:, k * d // h : (k + 1) * d // h] for k in range(h)]
        xi_1, xi_2 = xi(X, X + torch.cat(heads, -1))
        slow.append(xi_1 / xi_2)
    fast = fig3.ratios_of_draws(X, P, draws)
    assert fast.shape == (draws,)
    assert scipy.stats.ks_2samp(torch.stack(slow).numpy(), fast.numpy()).pvalue > 0.01


def test_more_tokens_than_channels_will_do_too() -> None:
    X, P = torch.randn(20, 4), torch.randn(2, 20, 20).softmax(-1)
    assert fig3.ratios_of_draws(X, P, 7).isfinite().all()


def test_tokens_of_prescribed_similarity() -> None:
    t = torch.tensor([0.02, 0.5, 0.999], dtype=torch.float64)
    X = section_2_3.tokens(t, 3, 7, 5)
    torch.testing.assert_close(t_sim(X), t.expand(3, 3), rtol=1e-5, atol=0)


def test_random_attention_is_of_its_kind() -> None:
    for kind in KINDS:
        P = random_attention(kind, 50, 6)
        assert (P >= 0).all()
        torch.testing.assert_close(P.sum(-1), torch.ones(50, 6, dtype=P.dtype))
        if kind in ("doubly stochastic", "symmetric"):
            torch.testing.assert_close(P.sum(-2), torch.ones(50, 6, dtype=P.dtype), rtol=0, atol=1e-6)
        if kind == "symmetric":
            torch.testing.assert_close(P, P.transpose(-1, -2))
        if kind == "causal":
            assert P.triu(1).eq(0).all()


def test_drawn_steps_are_the_paper_s_step() -> None:
    """With one draw replayed by hand: Y = X + alpha [P_1 X W_1 ... P_h X W_h]."""
    X, P = random_tokens(2, 5, 6), torch.stack([random_attention("row stochastic", 3, 5) for _ in range(2)])
    alpha, sigma = torch.tensor([0.5, 2.0]).double(), torch.tensor([0.3, 0.1]).double()
    torch.manual_seed(1)
    found = drawn_xi(X, P, alpha, sigma, 1)
    torch.manual_seed(1)
    W = torch.randn(1, 2, 3, 6, 2, dtype=torch.float64)
    for case in range(2):
        heads = [P[case, k] @ X[case] @ (sigma[case] * W[0, case, k]) for k in range(3)]
        truth = xi(X[case], X[case] + alpha[case] * torch.cat(heads, -1))
        for a, b in zip(found, truth, strict=True):
            torch.testing.assert_close(a[0, case], b)
