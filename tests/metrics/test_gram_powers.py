"""The largest singular value by powers of a Gram matrix, against numpy's singular values."""

import numpy as np
import torch

from depthscope.metrics.gram_powers import largest_by_gram
from loops import over


def softmax(n, m, temperature):
    return (temperature * torch.randn(n, m, dtype=torch.float64)).softmax(-1)


KINDS = {
    "soft": lambda n, m: softmax(n, m, 0.01),
    "plain": lambda n, m: softmax(n, m, 1),
    "sharp": lambda n, m: softmax(n, m, 10),
    "low rank": lambda n, m: torch.randn(n, 3, dtype=torch.float64) @ torch.randn(3, m, dtype=torch.float64),
    "all alike": lambda n, m: torch.eye(n, m, dtype=torch.float64)[torch.randperm(n)],
    "tiny": lambda n, m: 1e-9 * torch.randn(n, m, dtype=torch.float64),
}
FREE = torch.full((3,), torch.inf, dtype=torch.float64)


def of(kind, n, m, dtype):
    P = torch.stack([KINDS[kind](n, m) for _ in range(3)])
    return (P - P.mean(-2, keepdim=True)).to(dtype)


def gram(A):
    return A.mT @ A


def truth_of(A):
    return torch.tensor([np.linalg.norm(a, 2) for a in A.double().numpy()])


@over("kind", KINDS)
@over("sizes", [(33, 33), (128, 128), (40, 90), (90, 40)])
@over("dtype", [torch.float32, torch.float64])
def test_is_between_what_is_stated(kind, sizes, dtype):
    A = of(kind, *sizes, dtype)
    value, error = largest_by_gram(A, gram(A), FREE, 0.02)
    truth, rounding = truth_of(A), 64 * torch.finfo(dtype).eps
    assert (value <= truth * (1 + rounding)).all() and (truth <= (value + error) * (1 + rounding)).all()
    close = 1e-3 if dtype == torch.float32 else 1e-6
    torch.testing.assert_close(value, truth, rtol=close, atol=0)


@over("kind", ["soft", "plain", "sharp", "low rank"])
def test_the_error_is_small_where_directions_differ(kind):
    A = of(kind, 128, 128, torch.float32)
    value, error = largest_by_gram(A, gram(A), FREE, 0.02)
    assert (error <= 0.02 * value).all()


def test_what_is_known_before_bounds_where_all_directions_are_alike():
    A = of("all alike", 128, 128, torch.float32)
    wide, narrow = (
        largest_by_gram(A, gram(A), FREE, 0.02)[1],
        largest_by_gram(A, gram(A), torch.ones(3).double(), 0.02)[1],
    )
    assert (narrow < 1e-5).all() and (wide > 0.01).any()


def test_nothing_is_nothing():
    value, error = largest_by_gram(torch.zeros(2, 64, 64), torch.zeros(2, 64, 64), FREE[:2], 0.02)
    assert value.tolist() == [0, 0] and error.tolist() == [0, 0]


def test_a_matrix_that_is_not_finite_spoils_no_other():
    A = of("plain", 64, 64, torch.float32)
    truth = truth_of(A)
    A[1, 3, 5] = torch.nan
    value, error = largest_by_gram(A, gram(A), FREE, 0.02)
    assert value.isnan().tolist() == error.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(value[[0, 2]], truth[[0, 2]], rtol=1e-3, atol=0)
