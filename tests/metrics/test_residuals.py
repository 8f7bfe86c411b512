"""The residual in other norms and without the best rank-one part, against numpy's own norms and loops."""

import numpy as np
import torch

from depthscope.metrics.rank import stable_rank
from depthscope.metrics.residuals import (
    rank_one_residual,
    relative_residual_l1,
    relative_residual_l2,
    relative_residual_linf,
)
from depthscope.metrics.sizes import relative_residual
from loops import over


def without_mean(X):
    n = len(X)
    return (np.eye(n) - np.ones((n, n)) / n) @ X


def by_norm(order):
    return lambda X: np.linalg.norm(without_mean(X), order) / np.linalg.norm(X, order)


def composite(X):
    return np.sqrt(np.linalg.norm(X, 1) * np.linalg.norm(X, np.inf))


def rank_one_by_power_iteration(X):
    v = np.ones(X.shape[1]) + 0.1 * np.arange(X.shape[1])
    for _ in range(20_000):
        v = X.T @ (X @ v)
        v /= np.linalg.norm(v)
    return composite(X - np.outer(X @ v, v)) / composite(X)


DEFINITIONS = {
    relative_residual_l1: by_norm(1),
    relative_residual_l2: by_norm(2),
    relative_residual_linf: by_norm(np.inf),
    rank_one_residual: rank_one_by_power_iteration,
}
each_metric = over("f", DEFINITIONS)


@each_metric
@over("shape", [(2, 1), (7, 5), (5, 9), (2, 3, 6, 4)])
def test_is_its_definition(f, shape):
    X = torch.randn(shape, dtype=torch.float64) + 0.5
    truth = [DEFINITIONS[f](x) for x in X.reshape(-1, *shape[-2:]).numpy()]
    np.testing.assert_allclose(f(X).reshape(-1), truth, rtol=1e-9, atol=1e-13)
    assert f(X).shape == shape[:-2]


@each_metric
def test_a_mask_leaves_the_tokens_it_keeps_wherever_they_stand(f):
    X = torch.randn(2, 7, 4, dtype=torch.float64) + 1
    keep = torch.tensor([[0, 1, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0]]).bool()
    truth = [DEFINITIONS[f](X[i, keep[i]].numpy()) for i in range(2)]
    np.testing.assert_allclose(f(X, mask=keep), truth, rtol=1e-9)


def test_the_composite_form_is_the_geometric_mean_of_the_l1_and_the_l_infinity_form():
    X = torch.randn(4, 9, 6, dtype=torch.float64)
    both = (relative_residual_l1(X) * relative_residual_linf(X)).sqrt()
    torch.testing.assert_close(both, relative_residual(X))


def test_the_mean_leaves_least_in_the_spectral_norm():
    X = torch.randn(6, 5, dtype=torch.float64) + 1
    least = relative_residual_l2(X) * torch.linalg.matrix_norm(X, 2)
    for _ in range(200):
        other = X.mean(0) + 0.3 * torch.randn(5, dtype=torch.float64)
        assert torch.linalg.matrix_norm(X - other, 2) >= least


def test_tokens_of_one_direction_and_different_lengths_are_rank_one_and_not_equal():
    X = torch.tensor([1.0, 2.0, -3.0, 4.0], dtype=torch.float64)[:, None] * torch.randn(6, dtype=torch.float64)
    assert rank_one_residual(X) < 1e-14
    assert min(f(X) for f in (relative_residual_l1, relative_residual_l2, relative_residual_linf)) > 0.5


@each_metric
@over("dtype", [torch.float16, torch.float32, torch.float64])
def test_equal_tokens_leave_nothing(f, dtype):
    X = torch.randn(2, 1, 9).to(dtype).expand(2, 7, 9) * 0.1
    assert (f(X) < 1e-14).all()
    if f is not rank_one_residual:
        assert (f(X) == 0).all()


def test_the_rank_one_residual_in_frobenius_norm_would_be_the_stable_rank():
    X = torch.randn(6, 5, dtype=torch.float64)
    U, s, Vh = torch.linalg.svd(X)
    left = torch.linalg.norm(X - s[0] * torch.outer(U[:, 0], Vh[0])) / torch.linalg.norm(X)
    torch.testing.assert_close(left, (1 - 1 / stable_rank(X)).sqrt())


@over("f", [relative_residual_l2, rank_one_residual])
@over("bad", [torch.nan, torch.inf])
def test_a_sample_that_is_not_finite_is_nan_and_spoils_no_other(f, bad):
    X = torch.randn(3, 6, 4)
    X[1, 2, 3] = bad
    assert f(X).isnan().tolist() == [False, True, False]
    torch.testing.assert_close(f(X)[[0, 2]], f(X[[0, 2]]))
