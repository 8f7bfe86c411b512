"""Claims of theorems fail when what they are about is broken: a projection, a bound, a kind of matrix, a remedy.

That the claims hold with nothing broken is in test_every_experiment.py.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import depthscope as ds
from depthscope.experiments.random import random_attention, random_tokens
from depthscope.experiments.run import module_of
from depthscope.experiments.spectra import random_H
from depthscope.experiments.yu2023 import proposition_2_3
from depthscope.metrics import xi
from depthscope.metrics.chunks import Chunk, Energies
from depthscope.theory import (
    always_smooths,
    attention_bound,
    doubly_stochastic_bound,
    expected_rate,
    expected_ratio,
    expected_xi,
    mu_bounds,
    never_smooths,
    rate_estimate,
    ratio_estimate,
    ratio_lower_bound,
    skip_bound,
)
from depthscope.theory.depth import limit_factor
from depthscope.theory.split_attention import SplitTokens
from loops import over


def first_token(X: Tensor) -> tuple[Tensor, Tensor]:
    """|Pi X|^2 and |X - Pi X|^2 of a wrong projection: on the first token's place, not on the mean of all."""
    return X[..., 0, :].square().sum(-1), X[..., 1:, :].square().sum((-2, -1))


def wrong_t_sim(X: Tensor) -> Tensor:
    common, rest = first_token(X)
    return common / (common + rest)


def not_squared(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    xi_1, xi_2 = xi(X, Y)
    return xi_1.sqrt(), xi_2.sqrt()


def rows_alone(kind: str, count: int, n: int) -> Tensor:
    """Attention whose columns do not sum to 1, whatever is asked for."""
    return (random_attention("row stochastic", count, n) + 1 / n) / 2


def other_sign(law: str, cases: int, d: int) -> tuple[Tensor, Tensor]:
    return random_H({"in [-1, 0)": "positive", "positive": "in [-1, 0)"}.get(law, law), cases, d)


def linear(X: SplitTokens, *_: Any, **__: Any) -> SplitTokens:
    """A layer that halves all differences: its power is 1."""
    return SplitTokens.of(0.5 * X.R)


class Idle:
    """A remedy that does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, X: Tensor) -> Tensor:
        return X


def too_large(omega: Tensor, delta: Tensor, **rest: Any) -> Any:
    """The bound for omega and delta of zero."""
    return ratio_lower_bound(0 * omega, 0 * delta, **rest)


def nothing(X: Tensor, P: Tensor, **_: Any) -> Tensor:
    return torch.ones(X.shape[:-2], dtype=X.dtype)


def half_of_it(X: Tensor, P: Tensor, **rest: Any) -> Tensor:
    return 1 + 0.5 * (expected_ratio(X, P, **rest) - 1)


FEW = {"trials": 200}
BROKEN: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    # experiment, settings, what is broken, the claims that must fail
    ("yu2023/proposition_2_3", FEW, {"xi": not_squared}, ["(6)", "odds form"]),
    ("yu2023/proposition_2_3", FEW, {"t_sim": wrong_t_sim}, ["(6)", "odds form"]),
    ("yu2023/lemma_2_4", {"cases": 4, "draws": 300, "pairs": 200}, {"expected_xi": lambda m, *, alpha, **law: expected_xi(m, alpha=alpha.sqrt(), **law)}, ["(9): E", "(9) is not"]),
    ("yu2023/lemma_2_4", {"cases": 4, "draws": 300, "pairs": 200}, {"mu_bounds": lambda w, d: mu_bounds(0.99 * w, 0.99 * d)}, ["mu_2 <= delta"]),
    ("yu2023/lemma_2_4", {"cases": 4, "draws": 300, "pairs": 200}, {"mu_bounds": lambda w, d: mu_bounds(0 * w, 1.01 * d)}, ["mu_1 >=", "mu_2 <= delta"]),
    ("yu2023/corollary_2_7", {"pairs": 40}, {"random_attention": rows_alone}, ["mu_1 = 1", "omega = 0", "delta = |lambda_2|"]),
    ("yu2023/corollary_2_7", {"pairs": 40}, {"doubly_stochastic_bound": lambda t, d: doubly_stochastic_bound(t, 0 * d)}, ["the bound by delta"]),
    ("yu2023/corollary_2_7", {"pairs": 40}, {"rate_estimate": lambda t, second: rate_estimate(t, 0 * second)}, ["(17) holds"]),
    ("yu2023/theorem_2_6", {"pairs": 80}, {"ratio_lower_bound": too_large}, ["(16) bounds", "even with (15)"]),
    ("yu2023/theorem_2_6", {"pairs": 80}, {"expected_ratio": nothing}, ["(16) bounds", "tokens do grow", "even with (15)"]),
    ("yu2023/proposition_2_9", {"cases": 4, "draws": 300}, {"mu_bar": lambda m: m[..., 0]}, ["h = 2", "h = 4", "h = 8", "no bias"]),
    ("yu2023/proposition_2_9", {"cases": 4, "draws": 300}, {"expected_rate": lambda *m, eta=0.0, **law: 1.05 * expected_rate(*m, **law)}, ["h = 1", "no bias"]),
    ("yu2023/fig3", {"trials": 100, "n": 16, "d": 32, "q": 32, "depth": 5}, {"expected_ratio": half_of_it}, ["(18)", "Estimate 1 is a lower bound"]),
    ("yu2023/fig3", {"trials": 100, "n": 16, "d": 32, "q": 32, "depth": 5}, {"ratio_estimate": lambda second: 0.9 * ratio_estimate(second)}, ["share of blocks", "mean gap", "the three curves"]),
    ("yu2023/remark_2_8", {"alphas": (1.0,), "n": 8, "d": 64, "q": 64}, {"limit_factor": lambda alpha: limit_factor(alpha**0.5 + 0.2)}, ["alpha = 1"]),
    ("beyond/finite_width", {"pairs": 20, "widths": (8,)}, {"ratio_lower_bound": too_large}, ["softmax attention"]),
    ("beyond/critical_tau", {"trials": 4}, {"DeEscalate": Idle}, ["alpha = 0.5", "alpha = 1", "alpha = 2", "above it they shrink"]),
    ("dong2021/bounds", {"networks": 20}, {"attention_bound": lambda *a, **b: attention_bound(*a, **b) - 2}, ["pure attention: largest residual over the bound that holds", "two heads: residual over the bound"]),
    ("dong2021/bounds", {"networks": 20}, {"skip_bound": lambda *a, **b: skip_bound(*a, **b) - 0.5}, ["with skips: largest residual over the bound that holds", "with skip: residual over the bound"]),
    ("dong2021/bounds", {"networks": 20}, {"split_attention": linear}, ["after 1 layers", "after 2 layers", "after 3 layers"]),
    ("dovonon2024/changing_layers", {"cases": 6, "depth": 200}, {"random_H": other_sign}, ["H fixed with lambda_H in", "H fixed with lambda_H > 0"]),
    ("dovonon2024/eigen_asymptotics", {"cases": 40, "depth": 400}, {"random_H": other_sign}, ["all lambda_H in", "all lambda_H > 0"]),
    ("dovonon2024/eigen_asymptotics", {"cases": 40, "depth": 400}, {"always": never_smooths, "never_smooths": always_smooths}, ["lambda_H of largest modulus", "that of largest |1 + lambda_H|"]),
]  # fmt: skip


@over("name, settings, broken, says", BROKEN, every=4)
def test_a_broken_part_makes_its_claims_fail(
    name: str, settings: dict[str, Any], broken: dict[str, Any], says: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for part, wrong in broken.items():
        monkeypatch.setattr(module_of(name), part, wrong)
    failed = [
        claim.says for claim in ds.reproduce(name, smoke=True, **settings).claims if claim.counted and not claim.holds
    ]
    missed = [words for words in says if not any(words in one for one in failed)]
    assert not missed, f"{name} with a broken {', '.join(broken)} still holds: {missed}"


def test_an_identity_does_not_hide_a_wrong_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    """xi, t_sim and the rate agree with each other about any projection; that they are about the mean must be seen."""
    monkeypatch.setattr(Chunk, "energies", property(lambda chunk: Energies(*first_token(chunk.wide))))
    claims = ds.reproduce("yu2023/proposition_2_3", smoke=True, **FEW).claims
    assert len(claims) == 3 and not any(claim.holds for claim in claims)


def test_t_sim_by_products_is_its_definition_and_needs_no_projection() -> None:
    X = random_tokens(3, 4, 5)
    pairs = torch.stack([torch.stack([(X[:, i] * X[:, j]).sum(-1) for j in range(4)]) for i in range(4)])
    squares = torch.stack([X[:, i].square().sum(-1) for i in range(4)])
    torch.testing.assert_close(proposition_2_3.by_products(X), pairs.mean((0, 1)) / squares.mean(0))
