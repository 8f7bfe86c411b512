"""Which numbers a letter may be, by what it stands for: a share, a count, a variance, a correlation."""

import math

import pytest
import torch

from depthscope.errors import UsageError
from depthscope.theory.numbers import _RANGES, as_tensors, checked
from loops import over

SHARES = {"tau", "kappa_0", "common", "t_sim", "lambda_2"}
COUNTS = {"d", "n", "d_qk", "heads"}
POSITIVE = {"alpha", "hidden_variance", "q", "spread", "gamma"}
OF_ANY_SIGN = {"eta"}
OTHERS = {"rho": (-1.0, 1.0)}
BOUNDS = {"lipschitz", "D", "mu", "mu_1", "mu_2", "omega", "delta", "energy", "mixed_energy"}  # may have no end
TINY = 1e-300


def allowed(name: str) -> tuple[float, float]:
    """The least and the largest number that a letter may be."""
    if name in SHARES:
        return 0.0, 1.0
    if name == "threshold":
        return TINY, 1 - 1e-15
    if name in OTHERS:
        return OTHERS[name]
    if name in OF_ANY_SIGN:
        return -math.inf, math.inf
    least = 1.0 if name in COUNTS else TINY if name in POSITIVE else 0.0
    return least, math.inf if name in BOUNDS else 1e300


@over("name", _RANGES)
def test_a_letter_is_a_share_a_count_a_variance_or_a_correlation(name: str) -> None:
    low, high = allowed(name)
    assert checked("here", **{name: low}) == [low] and checked("here", **{name: high}) == [high]
    outside = [low - 1e-5 if low != TINY else 0.0, {1.0: 1 + 1e-5, 1 - 1e-15: 1.0, 1e300: math.inf}.get(high, math.nan)]
    for wrong in outside:
        if math.isinf(low) or (math.isnan(wrong) and _RANGES[name].measured):
            continue
        with pytest.raises(UsageError, match=f"here: {name} must lie in"):
            checked("here", **{name: wrong})


def test_numbers_keep_all_their_digits() -> None:
    (one,), (x, y) = checked("here", alpha=torch.tensor(0.5)), as_tensors(0.1, torch.ones(2))
    assert one.dtype == x.dtype == y.dtype == torch.float64 and x.tolist() == [0.1, 0.1]
