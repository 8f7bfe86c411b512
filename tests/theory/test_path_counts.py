"""Path counts against integers of any size, and against the binomial law."""

import math
from fractions import Fraction

import pytest
import torch

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.theory.path_counts import MODELS, path_counts
from loops import over


@over("name", MODELS)
def test_counts_are_binomial_in_exact_integers(name: str) -> None:
    L, H = MODELS[name]
    found = path_counts(L, H)
    exact = [math.comb(L, k) * H**k for k in range(L + 1)]
    assert found.log10_counts.tolist() == pytest.approx([math.log10(c) for c in exact], rel=1e-12)
    assert found.shares.tolist() == pytest.approx([float(Fraction(c, (1 + H) ** L)) for c in exact], rel=1e-9)
    assert found.log10_total == pytest.approx(L * math.log10(1 + H))
    assert found.mean_length == pytest.approx(L * H / (1 + H))


def test_gpt_3_does_not_overflow() -> None:
    found = ds.theory.path_counts(depth=96, heads=96)
    assert found.log10_total == pytest.approx(190.7, abs=0.1)
    assert found.shares.isfinite().all() and float(found.shares.sum()) == pytest.approx(1)
    assert found.mean_length == pytest.approx(95.01, abs=0.01)


def test_shares_too_small_for_a_number_have_a_logarithm() -> None:
    found = path_counts(200, 128)
    assert float(found.shares[0]) == 0 and float(found.log10_shares[0]) == pytest.approx(-200 * math.log10(129))


def test_blocks_may_have_different_heads() -> None:
    found = path_counts(heads=[2, 3, 5])
    elementary = [1, 2 + 3 + 5, 2 * 3 + 2 * 5 + 3 * 5, 2 * 3 * 5]
    assert (10**found.log10_counts).tolist() == pytest.approx(elementary)
    assert 10**found.log10_total == pytest.approx(3 * 4 * 6)


def test_without_skips_every_path_has_full_length() -> None:
    found = path_counts(4, 3, skips=False)
    assert found.log10_counts[:4].tolist() == [-math.inf] * 4
    assert 10 ** float(found.log10_counts[4]) == pytest.approx(81)
    torch.testing.assert_close(found.shares, torch.tensor([0.0, 0, 0, 0, 1], dtype=torch.float64))


def test_defaults_are_bert_base() -> None:
    assert path_counts().depth == 12 and path_counts().heads == (12,) * 12


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"got 2 for a depth of 3. Leave depth out"):
        path_counts(3, [4, 4])
    with pytest.raises(UsageError, match="there must be blocks, with one head or more; got depth 0"):
        path_counts(0, 4)
    with pytest.raises(UsageError, match="heads 0"):
        path_counts(3, 0)
