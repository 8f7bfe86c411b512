"""Stable and effective rank against the singular values of numpy."""

import numpy as np
import pytest
import torch

from depthscope.metrics.rank import effective_rank, stable_rank
from loops import over


def stable_by_definition(X):
    return np.linalg.norm(X, "fro") ** 2 / np.linalg.norm(X, 2) ** 2


def effective_by_definition(X):
    s = np.linalg.svd(X, compute_uv=False)
    p = s / s.sum()
    return np.exp(-sum(q * np.log(q) for q in p if q > 0))


DEFINITIONS = {stable_rank: stable_by_definition, effective_rank: effective_by_definition}
each_metric = over("f", DEFINITIONS)


@each_metric
@over("shape", [(2, 1), (9, 4), (4, 9), (2, 3, 6, 5)])
def test_is_its_definition(f, shape):
    X = torch.randn(shape, dtype=torch.float64)
    truth = [DEFINITIONS[f](x) for x in X.reshape(-1, *shape[-2:]).numpy()]
    np.testing.assert_allclose(f(X).reshape(-1), truth, rtol=1e-11)
    assert f(X).shape == shape[:-2]


@each_metric
def test_tokens_on_one_line_have_rank_one_and_orthogonal_ones_full_rank(f):
    line = torch.tensor([1.0, -2.0, 3.0, 0.5])[:, None] * torch.randn(6)
    assert float(f(line)) == pytest.approx(1, abs=1e-4)
    square = torch.linalg.qr(torch.randn(8, 5, dtype=torch.float64)).Q
    assert float(f(square)) == pytest.approx(5, rel=1e-12)
    assert float(f(7 * square.mT)) == pytest.approx(5, rel=1e-12)


@each_metric
def test_a_mask_leaves_the_tokens_it_keeps_wherever_they_stand(f):
    X = torch.randn(2, 7, 4, dtype=torch.float64)
    keep = torch.tensor([[0, 1, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0]]).bool()
    truth = [DEFINITIONS[f](X[i, keep[i]].numpy()) for i in range(2)]
    np.testing.assert_allclose(f(X, mask=keep), truth, rtol=1e-11)


@each_metric
@over("bad", [torch.nan, torch.inf])
def test_a_sample_that_is_not_finite_is_nan_and_spoils_no_other(f, bad):
    X = torch.randn(3, 6, 4)
    X[1, 2, 3] = bad
    found = f(X)
    assert found.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(found[[0, 2]], f(X[[0, 2]]))
    assert f(X[1]).isnan()
