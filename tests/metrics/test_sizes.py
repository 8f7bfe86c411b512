"""Sizes of a state and of its residual against Dong et al. 2021, with loops and n x n projectors."""

import numpy as np
import pytest
import torch

from depthscope.metrics.similarity import t_div, t_sim
from depthscope.metrics.sizes import composite_norm, hfc_lfc, relative_residual, token_norm
from loops import over


def composite_by_definition(X):
    n, d = X.shape
    columns = [sum(abs(X[i, j]) for i in range(n)) for j in range(d)]
    rows = [sum(abs(X[i, j]) for j in range(d)) for i in range(n)]
    return np.sqrt(max(columns) * max(rows))


def residual_by_definition(X):
    n = len(X)
    return composite_by_definition((np.eye(n) - np.ones((n, n)) / n) @ X) / composite_by_definition(X)


def hfc_lfc_by_definition(X):
    n = len(X)
    Pi_1 = np.ones((n, n)) / n
    return np.linalg.norm((np.eye(n) - Pi_1) @ X) / np.linalg.norm(Pi_1 @ X)


def token_norm_by_definition(X):
    return sum(np.sqrt(sum(x**2 for x in token)) for token in X) / len(X)


DEFINITIONS = {
    composite_norm: composite_by_definition,
    relative_residual: residual_by_definition,
    hfc_lfc: hfc_lfc_by_definition,
    token_norm: token_norm_by_definition,
}
each_metric = over("f", DEFINITIONS)


@each_metric
@over("shape", [(2, 1), (7, 5), (5, 9), (2, 3, 6, 4)])
def test_is_its_definition(f, shape):
    X = torch.randn(shape, dtype=torch.float64) + 0.5
    truth = [DEFINITIONS[f](x) for x in X.reshape(-1, *shape[-2:]).numpy()]
    np.testing.assert_allclose(f(X).reshape(-1), truth, rtol=1e-12)
    assert f(X).shape == shape[:-2]


@each_metric
def test_a_mask_leaves_the_tokens_it_keeps_wherever_they_stand(f):
    X = torch.randn(2, 7, 4, dtype=torch.float64) + 1
    keep = torch.tensor([[0, 1, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0]]).bool()
    truth = [DEFINITIONS[f](X[i, keep[i]].numpy()) for i in range(2)]
    np.testing.assert_allclose(f(X, mask=keep), truth, rtol=1e-12)


def test_composite_norm_of_a_worked_example():
    X = torch.tensor([[1.0, -2.0], [3.0, 0.0], [0.0, 5.0]])  # columns 4, 7; rows 3, 3, 5
    assert float(composite_norm(X)) == pytest.approx(np.sqrt(7 * 5))


def test_composite_norm_breaks_the_triangle_inequality():
    A = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert composite_norm(A + A.T) > composite_norm(A) + composite_norm(A.T)


@over("dtype", [torch.float16, torch.float32, torch.float64])
def test_equal_tokens_leave_exactly_no_residual(dtype):
    X = torch.randn(2, 1, 9).to(dtype).expand(2, 7, 9) * 0.1
    assert (relative_residual(X) == 0).all()
    assert (hfc_lfc(X) == 0).all()


def test_hfc_lfc_is_the_square_root_of_diversity_over_similarity():
    X = torch.randn(3, 6, 4, dtype=torch.float64) + 1
    torch.testing.assert_close(hfc_lfc(X), (t_div(X) / t_sim(X)).sqrt())
