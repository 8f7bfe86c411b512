"""What one step of Adam does to the output: the formula against a step that is taken."""

import math

import pytest
import torch
import torch.nn.functional as F

import depthscope as ds
from loops import over

N, D, H, Q = 17, 32, 4, 64


def measured(depth: int, wiring: str, tau: float, weights: str) -> float:
    """Relative change of the first token at the output by a step of rate 1e-7 along minus the gradient's signs."""
    torch.manual_seed(0)
    model = ds.models.classic(depth, D, H, q=Q, wiring=wiring, weights=weights, output=True).double()
    head, places = torch.randn(10, D, dtype=torch.float64) / D**0.5, torch.randn(N, D, dtype=torch.float64)
    X = places + 0.3 * torch.randn(32, N, D, dtype=torch.float64)  # tokens of all sequences share their places
    labels = torch.randint(10, (32,))
    handle = ds.fix_(model, ds.remedies.DeEscalate(tau)) if tau else None
    before = model(X)[:, 0]
    F.cross_entropy(before @ head.T, labels).backward()
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            if parameter.grad is not None:
                parameter.sub_(1e-7 * parameter.grad.sign())
        moved = model(X)[:, 0] - before.detach()
    if handle is not None:
        handle.undo()
    return float(moved.norm() / before.detach().norm()) / 1e-7


@over(
    "wiring, tau, weights",
    [
        ("post_norm", 1.0, "torch_default"),
        ("post_norm", 0.0, "torch_default"),
        ("pre_norm", 0.0, "torch_default"),
        ("deep_norm", 0.0, "xavier"),
        ("depth_scaled", 0.0, "torch_default"),
        ("layer_scale", 0.0, "torch_default"),
    ],
)
def test_a_step_changes_the_output_by_what_is_forecast(wiring: str, tau: float, weights: str) -> None:
    """Within a factor of 2.2: which signs agree is not known, only that most do."""
    sizes = {"d": D, "h": H, "q": Q, "wiring": wiring, "weights": weights, "output": True}
    limit = ds.forecast(depth=12, n=N, tau=tau, **sizes).rate_limit
    assert limit is not None
    assert abs(math.log(measured(12, wiring, tau, weights) / limit.update)) < math.log(2.2)


def test_gains_of_norms_add_up_where_branches_do_not() -> None:
    """DeepNorm's branches move the output by a root of the depth, its norms by 4 for each block (measured in
    docs/notebook/training.md: 1,400 of 300 blocks)."""
    limits = [ds.forecast(depth=L, n=N, d=D, h=H, q=Q, wiring="deep_norm", output=True).rate_limit for L in (100, 400)]
    assert all(limit is not None and limit.update > 4 * limit.depth for limit in limits)
    branches = [limit.local - 4 * limit.depth for limit in limits if limit]
    assert branches[1] / branches[0] == pytest.approx(2.0, abs=0.2)


def test_a_branch_that_is_written_with_zero_moves_by_its_factor_alone() -> None:
    limit = ds.forecast(depth=10, n=N, d=D, h=H, wiring="rezero", output=True).rate_limit
    plain = ds.forecast(depth=10, n=N, d=D, h=H, wiring="pre_norm", output=True).rate_limit
    assert limit is not None and plain is not None and limit.update < plain.update / 20
