"""The maps of the token covariance: against the maps of two numbers, against draws of tokens and weights, by invariance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depthscope.errors import UsageError
from depthscope.registry import TABLES
from depthscope.theory.kernels import kernel
from depthscope.theory.stacks import (
    SITES,
    covariances_by_depth,
    overlaps_by_depth,
    similarities,
    similarity_by_depth,
)
from depthscope.theory.token_matrix import TokenMatrix, attended, de_escalated, networked, normed
from loops import over

N = 12
WIRINGS = [name for name, wiring in TABLES["wiring"].items() if wiring.junctions(1, 1) is not None]
NUMBERS = {"s_A": 0.8, "k": 0.3, "score_variance": 0.7, "hidden_variance": 0.4, "alpha": 0.9}


def some_tokens(d: int = 400, equal: bool = True) -> torch.Tensor:
    """Overlaps of tokens of which neighbours are alike."""
    X = torch.randn(N, d, dtype=torch.float64).cumsum(0) + torch.randn(d, dtype=torch.float64)
    X = X / X.square().mean(-1, keepdim=True).sqrt() if equal else X
    return X @ X.T / d


@over("activation", ["relu", "gelu", "swiglu"])
@over("wiring", sorted(WIRINGS))
def test_two_numbers_are_the_case_of_tokens_all_alike(wiring: str, activation: str) -> None:
    """Within what the two tables of participation differ by, 1e-4."""
    numbers = {**NUMBERS, "wiring": wiring, "activation": activation}
    S = 0.9 * torch.eye(N, dtype=torch.float64) + 0.1
    numbers |= {"tau": 0.2, "site": "block_out" if wiring == "b2t" else "ffn_in"}
    found = covariances_by_depth(S, depth=9, **numbers)
    expected = overlaps_by_depth(depth=9, n=N, t_sim=0.1 + 0.9 / N, **numbers)
    assert [float(S[0, 0]) for S in found] == pytest.approx([x.q for x in expected], rel=3e-4)
    assert [float(S[0, 1]) for S in found] == pytest.approx([x.p for x in expected], rel=1e-3, abs=1e-4)
    assert similarities(found).tolist() == pytest.approx([x.t_sim(N) for x in expected], abs=1e-4)


@over("site", SITES)
def test_and_so_at_every_site(site: str) -> None:
    S = torch.eye(N, dtype=torch.float64)
    found = similarities(covariances_by_depth(S, depth=6, tau=0.4, site=site, **NUMBERS))
    torch.testing.assert_close(
        found, similarity_by_depth(depth=6, n=N, tau=0.4, site=site, **NUMBERS), atol=1e-4, rtol=0
    )


@over("activation", ["relu", "gelu", "silu", "tanh"])
def test_the_table_is_the_kernel(activation: str) -> None:
    S = some_tokens()
    found = networked(TokenMatrix(S), k=1.0, activation=activation, hidden_variance=0.7).S
    expected = kernel(activation, 0.7 * S)
    torch.testing.assert_close(found, expected / expected[0, 0], atol=2e-6, rtol=0)


@over("causal", [False, True])
def test_attention_is_the_mean_over_draws_of_weights(causal: bool) -> None:
    """X W_q W_k^T X^T / sqrt(d) drawn 300 times; the mean of (P X W)(P X W)^T within 4 of its own errors and 3 %."""
    d, draws, v = 256, 300, 0.6
    X = torch.randn(N, d, dtype=torch.float64)
    X = X / X.square().mean(-1, keepdim=True).sqrt()
    scores = torch.stack([_scores(X, v) for _ in range(draws)])
    if causal:
        scores = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
    P = scores.softmax(-1)
    drawn = P @ (X @ X.T / d) @ P.mT
    found = attended(TokenMatrix(X @ X.T / d, causal), n=N, s_A=1.0, score_variance=v).S
    error = drawn.std(0) / draws**0.5
    assert bool(((found - drawn.mean(0)).abs() < 4 * error + 0.03 * found.diagonal().mean()).all())


def _scores(X: torch.Tensor, v: float) -> torch.Tensor:
    d = X.shape[-1]
    W_q, W_k = (torch.randn(d, d, dtype=X.dtype) * (v**0.5 / d) ** 0.5 for _ in range(2))
    return X @ W_q @ W_k.T @ X.T / d**0.5


@given(st.floats(0, 1), st.booleans(), st.integers(0, 10**6))
def test_what_holds_for_all_tokens(tau: float, causal: bool, seed: int) -> None:
    torch.manual_seed(seed)
    x = TokenMatrix(some_tokens(equal=False), causal)
    assert torch.allclose(normed(x.of(7 * x.S)).S, normed(x).S)
    assert torch.allclose(de_escalated(x, n=N, tau=0.0).S, x.S)
    for y in (attended(x, n=N, s_A=1.0, score_variance=0.3), networked(x, k=0.5), de_escalated(x, n=N, tau=tau)):
        assert torch.allclose(y.S, y.S.T) and float(torch.linalg.eigvalsh(y.S).min()) > -1e-6 * float(
            x.S.diagonal().max()
        )
    if not causal:
        assert float(similarities([de_escalated(x, n=N, tau=1.0).S])) < 1e-12


def test_wrong_use_is_answered() -> None:
    with pytest.raises(UsageError, match=r"S must be \(n, n\), overlaps of tokens; got \(3, 4\)"):
        covariances_by_depth(torch.ones(3, 4), depth=2)
