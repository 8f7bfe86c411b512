"""A state times a number is measured as the state, from 1e-300 to 1e300 in float64 and wherever narrower dtypes reach."""

import pytest
import torch

from depthscope.registry import TABLES
from loops import over

SIZES = ("composite_norm", "token_norm", "difference_size")  # they grow with the state
SCALES = {
    torch.float64: (1e-300, 1e-200, 1e-160, 1e-80, 1e80, 1e160, 1e200, 1e300),
    torch.float32: (1e-36, 1e-30, 1e30),
    torch.bfloat16: (1e-30, 1e30),
    torch.float16: (1e-2, 1e2),
}
RTOL = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}

CASES = [  # metrics of attention take it in both precisions
    (name, narrow)
    for name, f in TABLES["metric"].items()
    for narrow in (torch.float32, torch.float64)
    if "X" in f.facts.takes and ("P" in f.facts.takes or narrow == torch.float32)
]


def measured(name, X, Y, P, mask):
    function = TABLES["metric"][name]
    found = function(*({"X": X, "Y": Y, "P": P}[letter] for letter in function.facts.takes), mask=mask)
    return torch.stack(found if isinstance(found, tuple) else (found,))


@over("name, narrow", CASES)
@over("dtype", SCALES)
@over("masked", [False, True])
def test_no_metric_minds_the_scale(name, dtype, narrow, masked):
    X = torch.randn(2, 6, 5, dtype=dtype) + 1
    Y = X + 0.3 * torch.randn(2, 6, 5).to(dtype)
    P = torch.randn(2, 3, 6, 6).to(narrow).softmax(-1)
    if name == "eta":
        P = P[:, 0]
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]) if masked else None
    truth = measured(name, X, Y, P, mask)
    for scale in SCALES[dtype]:
        found = measured(name, X * scale, Y * scale, P, mask)
        found = found / scale if name in SIZES else found
        torch.testing.assert_close(found, truth, rtol=RTOL[dtype], atol=1e-9)


def test_one_sample_of_a_batch_may_be_huge_and_another_tiny():
    X = torch.randn(3, 6, 5, dtype=torch.float64) + 1
    scales = torch.tensor([1e-200, 1.0, 1e200], dtype=torch.float64)[:, None, None]
    for name in ("t_sim", "t_cos", "relative_residual", "effective_rank", "first_token_similarity"):
        f = TABLES["metric"][name]
        torch.testing.assert_close(f(X * scales), f(X), rtol=1e-9, atol=0)


def test_growth_between_huge_states_is_a_number():
    X = torch.randn(6, 5, dtype=torch.float64) + 1
    xi = TABLES["metric"]["xi"]
    for size in (1e-200, 1e200):
        assert float(xi(size * X, 3 * size * X)[0]) == pytest.approx(9)
