"""lambda_2 as scans measure it, by thin powers: its stated error holds, and is small, against scipy's eigenvalues."""

import numpy as np
import scipy.linalg
import torch

from depthscope.metrics.mixing import centred_rows
from depthscope.metrics.pattern import pattern_of
from depthscope.metrics.spectrum import SMALL, lambda_2, lambda_2_of
from depthscope.metrics.thin_powers import _growth, thin_bracket
from loops import over


def rows(P):
    return P / P.sum(-1, keepdim=True)


def looking_at(tokens):
    return torch.eye(len(tokens), dtype=torch.float64)[tokens]


def softmax(n, temperature):
    return (temperature * torch.randn(n, n, dtype=torch.float64)).softmax(-1)


def low_rank(n):
    """A head at initialisation: scores q k^T of few channels."""
    return (0.3 * torch.randn(n, 16, dtype=torch.float64) @ torch.randn(16, n, dtype=torch.float64) / 4).softmax(-1)


def one_before(n):
    return looking_at((torch.arange(n) - 1).clamp_min(0))


KINDS = {
    "low rank": low_rank,
    "soft": lambda n: softmax(n, 0.01),
    "plain": lambda n: softmax(n, 1),
    "sharp": lambda n: softmax(n, 10),
    "permutation": lambda n: looking_at(torch.randperm(n)),
    "permutation and all": lambda n: 0.9 * looking_at(torch.randperm(n)) + 0.1 / n,
    "two groups": lambda n: torch.block_diag(softmax(n // 2, 3), softmax(n - n // 2, 3)),
    "sink": lambda n: (2 * torch.randn(n, n, dtype=torch.float64) + 8 * (torch.arange(n) == 0)).softmax(-1),
    "window": lambda n: rows(torch.rand(n, n, dtype=torch.float64).tril(3).triu(-3)),
    "the one before, and noise": lambda n: 0.98 * one_before(n) + 0.02 * softmax(n, 1),
    "the one before, and little noise": lambda n: (1 - 1e-6) * one_before(n) + 1e-6 * softmax(n, 1),
    "the one before": one_before,
    "uniform": lambda n: torch.full((n, n), 1 / n, dtype=torch.float64),
}


def truth_of(P):
    whole = rows(P.double()).numpy()  # a row of float32 does not quite sum to 1
    return torch.tensor([np.abs(scipy.linalg.eigvals(p - p.mean(0))).max() for p in whole])


def of(P, mask=None):
    return pattern_of(P, mask=mask, where="test", trusted=True)[0]


@over("kind", KINDS)
@over("n", [33, 64, 128])
@over("dtype", [torch.float64, torch.float32])
def test_the_error_of_a_scan_holds(kind, n, dtype):
    P = torch.stack([KINDS[kind](n) for _ in range(3)]).to(dtype)
    found, error = lambda_2_of(of(P))
    assert ((found - (0.0 if kind == "the one before" else truth_of(P))).abs() <= error + 1e-7).all()
    if "noise" not in kind:  # one number in a million decides there
        assert (error <= 0.2 * found.clamp_min(SMALL)).all()


@over("kind", ["low rank", "plain", "sharp", "two groups", "permutation and all", "the one before, and noise"])
@over("n", [40, 128])
def test_a_bracket_of_thin_powers_alone_holds(kind, n):
    """Without the other ways that take over where it is wide."""
    P = torch.stack([KINDS[kind](n) for _ in range(4)]).float()
    found = thin_bracket(P - P.mean(-2, keepdim=True), tolerance=0.1, floor=SMALL)
    truth = truth_of(P)
    assert (found.low <= truth + 1e-6).all() and (truth <= found.high + 1e-6).all()
    assert (found.low <= found.value).all() and (found.value <= found.high).all()


def test_heads_at_initialisation_are_known_well_without_a_second_look():
    P = torch.stack([low_rank(128) for _ in range(16)]).float()
    found = thin_bracket(centred_rows(of(P)), tolerance=0.1, floor=SMALL)
    assert (found.error <= 0.1 * found.value).all()
    torch.testing.assert_close(found.value, truth_of(P), rtol=2e-3, atol=0)


def test_a_bracket_that_is_too_narrow_would_be_seen():
    """What low-rank powers miss is measured: with tokens beside the many directions of a sharp head it is not little."""
    P = torch.stack([KINDS["permutation"](128) for _ in range(4)]).float()
    found = thin_bracket(P - P.mean(-2, keepdim=True), tolerance=0.1, floor=SMALL)
    assert (found.high >= 1 - 1e-5).all() and (found.low <= 1 + 1e-5).all()


@over("rest", [0.0, 1e-4])
@over("n", [33, 64, 128])
def test_trees_have_powers_of_rounding_alone_and_are_not_known_by_them(n, rest):
    """Every path ends in one token after some log n steps: all thin products would agree on what rounding left."""
    order = torch.randperm(n)
    trees = [looking_at((torch.rand(n) * torch.arange(n)).long())[order][:, order] for _ in range(4)]
    P = torch.stack([(1 - rest) * tree + rest * softmax(n, 1) for tree in trees]).float()
    truth = torch.zeros(4) if rest == 0 else truth_of(P)
    found = thin_bracket(P - P.mean(-2, keepdim=True), tolerance=0.1, floor=SMALL)
    assert ((found.value - truth).abs() <= found.error + 1e-6).all()


def test_padding_is_left_out():
    P = torch.stack([low_rank(90), softmax(90, 3)]).float()
    keep = torch.arange(90) < torch.tensor([[70], [50]])
    found, error = lambda_2_of(of(P, keep))
    for i, n in enumerate((70, 50)):
        assert abs(found[i] - truth_of(P[i : i + 1, :n, :n])) <= error[i] + 1e-7
        assert error[i] <= 0.11 * found[i]


def test_a_head_that_is_not_finite_spoils_no_other():
    P = torch.stack([low_rank(64), low_rank(64), softmax(64, 3)]).float()
    truth = truth_of(P)
    P[1, 3, 5] = torch.nan
    found, error = lambda_2_of(of(P))
    assert found.isnan().tolist() == error.isnan().tolist() == [False, True, False]
    assert ((found - truth).abs() <= error)[[0, 2]].all()


@over("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_states_what_its_rows_are_off_by(dtype):
    P = torch.stack([low_rank(64), softmax(64, 3)]).to(dtype)
    found, error = lambda_2_of(of(P))
    assert ((found - truth_of(P)).abs() <= error).all()


def test_the_same_heads_give_the_same_number_in_any_company():
    P = torch.stack([low_rank(64) for _ in range(6)]).float()
    together, alone = lambda_2_of(of(P))[0], torch.cat([lambda_2_of(of(P[i : i + 1]))[0] for i in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=0)


@over("k", [14, 20, 24])
@over("dtype", [torch.float64, torch.float32])
def test_a_chain_of_tokens_is_not_taken_for_what_its_rounding_makes_of_it(k, dtype):
    """Eigenvalues of chains move by the k-th root of what P is off by: rows that do not quite sum to 1 would be seen."""
    P = torch.zeros(k + 13, k + 13, dtype=torch.float64)
    i = torch.arange(k)
    P[i, i], P[i, i + 1] = 0.7, 0.3
    P[k:, k:] = 1 / 13
    P = P[None].to(dtype)
    for found, error in (lambda_2_of(of(P)), lambda_2(P, return_residual=True)):
        assert abs(float(found) - float(rows(P.double())[0, i, i].max())) <= float(error) + 1e-7


def test_the_growth_of_powers_is_the_radius_where_one_eigenvalue_leads() -> None:
    V, radius = torch.randn(5, 8, 8, dtype=torch.float64), torch.tensor([1e-3, 0.5, 1.0, 2.0, 30.0]).double()
    shares = torch.tensor([1.0, 0.5, 0.4, -0.3, 0.2, 0.1, 0.0, 0.0]).double()  # 2^-16 is left of the second
    M = radius[:, None, None] * (V * shares) @ torch.linalg.inv(V)
    torch.testing.assert_close(_growth(M), radius.log(), rtol=0, atol=1e-3)
