"""What one gain per block comes to over depth, against the recursion done step by step."""

import math

import pytest
import torch

from depthscope.errors import UsageError
from depthscope.metrics import t_sim
from depthscope.theory import block_gain, collapse_depth, critical_tau, limit_factor, odds, similarity_after
from loops import over

F = torch.float64


def one_block(t, gain):
    """Token similarity after one block, from the two energies."""
    return gain * t / (gain * t + 1 - t)


@over("gain", [0.0, 0.5, 1.0, 2.0, 9.0])
def test_similarity_after_is_the_recursion_block_by_block(gain):
    t, curve = 0.02, []
    for _ in range(31):
        curve.append(t)
        t = one_block(t, gain)
    found = similarity_after(0.02, gain=gain, depth=torch.arange(31))
    assert found.dtype == F
    assert found.tolist() == pytest.approx(curve, rel=1e-11, abs=1e-300)
    assert similarity_after(0.02, gain=gain, depth=30) == pytest.approx(curve[30], rel=1e-11, abs=1e-300)


def test_depth_never_overflows():
    assert similarity_after(0.5, gain=2.0, depth=100_000) == 1.0
    assert similarity_after(0.0, gain=2.0, depth=100_000) == 0.0
    assert similarity_after(1.0, gain=0.5, depth=100_000) == 1.0
    assert math.isnan(similarity_after(1.0, gain=0.0, depth=1))  # nothing is left


def test_odds_of_a_step_are_multiplied_by_the_ratio_of_growths():
    X = torch.randn(6, 5, dtype=F)
    mean = X.mean(0)
    Y = 3.0 * mean + 0.5 * (X - mean)
    assert float(odds(t_sim(Y))) == pytest.approx(36 * float(odds(t_sim(X))), rel=1e-12)
    assert odds(0.75) == 3.0
    assert odds(1.0) == math.inf
    assert odds(0.0) == 0.0


@over("tau", [0.0, 0.2, 1.0])
def test_block_gain_is_what_a_drawn_block_with_uniform_attention_does(tau):
    n, d, alpha = 8, 1500, 0.7
    X = torch.randn(n, d, dtype=F)
    Y = X + alpha * (X.mean(0, keepdim=True) @ torch.randn(d, d, dtype=F) / math.sqrt(d))
    Y = Y - tau * Y.mean(0, keepdim=True)
    found = block_gain(alpha=alpha, tau=tau)
    assert float(odds(t_sim(Y))) == pytest.approx(found * float(odds(t_sim(X))), rel=0.05, abs=1e-12)
    assert found == pytest.approx(1.49 * (1 - tau) ** 2)


def test_the_papers_numbers():
    assert limit_factor() == 0.5
    assert limit_factor(2.0) == 0.2
    assert limit_factor(d=512, sigma=math.sqrt(8 / 512)) == pytest.approx(1 / 9)
    assert block_gain(d=512, sigma=math.sqrt(8 / 512)) == pytest.approx(9)
    found = [collapse_depth(1 / 64, threshold=t) for t in (0.5, 0.99, 0.999)]
    assert [round(blocks, 1) for blocks in found] == [6.0, 12.6, 15.9]
    assert critical_tau() == pytest.approx(0.293, abs=5e-4)
    assert critical_tau(alpha=3**-0.5) == pytest.approx(0.134, abs=5e-4)


@over("t, gain, threshold", [(0.01, 1.3, 0.9), (0.3, 2.0, 0.99), (1e-9, 5.0, 0.5)])
def test_collapse_depth_is_where_the_recursion_passes_the_threshold(t, gain, threshold):
    depth = collapse_depth(t, gain=gain, threshold=threshold)
    blocks = 0
    while t < threshold:
        t, blocks = one_block(t, gain), blocks + 1
    assert math.ceil(depth) == blocks


def test_collapse_depth_at_its_ends():
    assert collapse_depth(0.995) == 0.0
    assert collapse_depth(0.99) == 0.0
    assert collapse_depth(0.995, gain=0.5) == 0.0
    assert collapse_depth(0.5, gain=1.0) == math.inf
    assert collapse_depth(0.5, gain=0.0) == math.inf
    assert collapse_depth(0.0) == math.inf
    assert collapse_depth(0.5, tau=0.5) == math.inf
    assert collapse_depth(0.5, alpha=2.0, tau=0.1) == collapse_depth(0.5, gain=5 * 0.9**2)
    found = collapse_depth(torch.tensor([0.5, 0.999, 0.5]), gain=torch.tensor([2.0, 2.0, 0.9]))
    assert found.dtype == F
    assert found.tolist() == [pytest.approx(math.log2(99)), 0.0, math.inf]


def test_at_critical_tau_similarity_stands_still_and_beside_it_moves():
    for gain in (1.5, 2.0, 9.0):
        tau = critical_tau(gain)
        assert gain * (1 - tau) ** 2 == pytest.approx(1)
    assert critical_tau(1.0) == 0.0
    assert critical_tau(0.5) == 0.0
    assert critical_tau(torch.tensor([4.0, 0.25])).tolist() == [0.5, 0.0]
    tau = critical_tau(alpha=1.5)
    assert collapse_depth(0.1, alpha=1.5, tau=tau - 0.01) < math.inf
    assert collapse_depth(0.1, alpha=1.5, tau=tau + 0.01) == math.inf


@over(
    "call, message",
    [
        (lambda: odds(-0.1), r"^odds: t_sim must lie in \[0, 1\]; got -0\.1\. It is a share of the energy"),
        (lambda: similarity_after(0.1, gain=-1, depth=3), r"^similarity_after: gain must lie in \[0, inf\); got -1\."),
        (lambda: similarity_after(0.1, gain=2, depth=-3), r"^similarity_after: depth must lie .* It counts blocks"),
        (lambda: block_gain(tau=1.5), r"^block_gain: tau must lie in \[0, 1\]; got 1\.5\. 1 removes the mean token"),
        (lambda: block_gain(sigma=1.0), r"^block_gain: sigma must come with the width d"),
        (lambda: limit_factor(0.0), r"^limit_factor: alpha must lie"),
        (lambda: limit_factor(sigma=1.0), r"^limit_factor: sigma must come with the width d"),
        (lambda: collapse_depth(0.1, threshold=1.0), r"^collapse_depth: threshold must lie in \(0, 1\); got 1\. It is"),
        (lambda: collapse_depth(2.0), r"^collapse_depth: t_sim must lie"),
        (lambda: collapse_depth(0.1, tau=-1.0), r"^collapse_depth: tau must lie"),
        (lambda: collapse_depth(0.1, gain=2, alpha=2.0), r"^collapse_depth: gain must come without alpha, which it "),
        (lambda: collapse_depth(0.1, gain=2, alpha=2.0, tau=0.5), r"without alpha and tau, which .* got both\. Leave"),
        (lambda: critical_tau(2.0, alpha=0.5), r"^critical_tau: gain must come without alpha"),
        (lambda: critical_tau(alpha=-0.5), r"^critical_tau: alpha must lie"),
        (lambda: critical_tau(math.inf), r"^critical_tau: gain must lie in \[0, inf\); got inf"),
    ],
)
def test_wrong_arguments_are_named_with_their_value(call, message):
    with pytest.raises(UsageError, match=message):
        call()
