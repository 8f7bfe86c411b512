"""prefix_diversity against t_div of every prefix, by its definition and in fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depthscope.errors import MaskError, ShapeError
from depthscope.metrics import chunks
from depthscope.metrics.prefix import prefix_diversity
from depthscope.metrics.similarity import t_div
from loops import over


def by_definition(X):
    """|Pi_2 X_t|_F^2 / |X_t|_F^2 of the first t rows, for every t."""
    out = []
    for t in range(1, len(X) + 1):
        Pi_2 = np.eye(t) - np.ones((t, t)) / t
        out.append(np.linalg.norm(Pi_2 @ X[:t]) ** 2 / np.linalg.norm(X[:t]) ** 2)
    return out


def in_fractions(X):
    rows = [[Fraction(float(x)) for x in row] for row in X]
    out = []
    for t in range(1, len(rows) + 1):
        mean = [sum(column) / t for column in zip(*rows[:t], strict=True)]
        centred = sum((x - m) ** 2 for row in rows[:t] for x, m in zip(row, mean, strict=True))
        out.append(float(centred / sum(x**2 for row in rows[:t] for x in row)))
    return out


@over("shape", [(2, 3), (9, 4), (2, 3, 6, 5)])
@over("offset", [0.0, 1.0])
def test_is_its_definition(shape, offset):
    X = torch.randn(shape, dtype=torch.float64) + offset
    truth = [by_definition(x) for x in X.reshape(-1, *shape[-2:]).numpy()]
    found = prefix_diversity(X)
    assert found.shape == shape[:-1] and found.dtype == torch.float64
    np.testing.assert_allclose(found.reshape(-1, shape[-2]), truth, rtol=1e-11, atol=1e-15)
    torch.testing.assert_close(found[..., -1], t_div(X), rtol=1e-12, atol=0)


@over("size", [1e-2, 1e-5, 1e-7])
def test_near_collapse_keeps_its_digits(size):
    X = torch.rand(5, dtype=torch.float64) + 0.5 + size * torch.randn(40, 5, dtype=torch.float64)
    truth = in_fractions(X)
    assert truth[-1] == pytest.approx(size**2, rel=0.9)  # down to 1e-14: the case is what it says
    np.testing.assert_allclose(prefix_diversity(X), truth, rtol=1e-7, atol=0)


def test_a_first_token_far_from_the_others_keeps_its_digits():
    X = 1 + 1e-6 * torch.randn(20, 4, dtype=torch.float64)
    X[0] *= 1000
    np.testing.assert_allclose(prefix_diversity(X), in_fractions(X), rtol=1e-12, atol=0)


def test_float32_tokens_are_summed_in_float64():
    X = torch.rand(6) + 1e-5 * torch.randn(100, 6)
    np.testing.assert_allclose(prefix_diversity(X), in_fractions(X), rtol=1e-9, atol=0)


def test_padding_on_either_side_does_not_count():
    X = torch.randn(3, 7, 4, dtype=torch.float64) + 1
    keep = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 0, 0]]).bool()
    garbage = torch.where(keep[..., None], X, torch.nan)
    found = prefix_diversity(garbage, mask=keep)
    assert torch.equal(found.isnan(), ~keep)
    for i in range(3):
        np.testing.assert_allclose(found[i, keep[i]], by_definition(X[i, keep[i]].numpy()), rtol=1e-11, atol=1e-15)


def test_what_comes_later_changes_no_prefix():
    X = torch.randn(2, 10, 4)
    changed = X.clone()
    changed[:, 6:] = torch.randn(2, 4, 4) * 50
    assert torch.equal(prefix_diversity(X)[:, :6], prefix_diversity(changed)[:, :6])
    changed[:, 6:] = torch.nan
    assert prefix_diversity(changed).isnan().sum() == 8


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 9), d=st.integers(1, 6), scale=st.floats(1e-3, 1e3))
def test_scale_and_rotation_change_nothing(seed, n, d, scale):
    torch.manual_seed(seed)
    X = torch.randn(2, n, d, dtype=torch.float64) + 1
    Q = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    found = prefix_diversity(X)
    torch.testing.assert_close(prefix_diversity(scale * X @ Q), found, rtol=1e-9, atol=1e-12)
    assert (found[:, 0] == 0).all() and (found <= 1).all()


def test_the_size_of_a_chunk_does_not_matter(monkeypatch):
    X = torch.randn(5, 6, 4)
    whole = prefix_diversity(X)
    monkeypatch.setattr(chunks, "CHUNK", 2 * 6 * 4)
    assert torch.equal(prefix_diversity(X), whole)


def test_wrong_input_is_refused_with_the_reason():
    with pytest.raises(ShapeError, match=r"^prefix_diversity: X must .* n >= 2 tokens; got \(1, 5\)"):
        prefix_diversity(torch.randn(1, 5))
    with pytest.raises(MaskError, match=r"^prefix_diversity: mask must .* shape \(2, 4\); got \(4,\)"):
        prefix_diversity(torch.randn(2, 4, 3), mask=torch.ones(4))
