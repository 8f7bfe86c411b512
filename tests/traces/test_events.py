"""A sum with the stream of which one part is left out: what takes its place."""

import pytest
import torch

from depthscope.traces.events import Join
from depthscope.traces.operations import Operation
from loops import over

STREAM, BRANCH = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])


@over("in_place", [True, False])
@over("first", [True, False])  # is the stream
@over("alpha", [1, 3])
def test_the_stream_alone_has_its_factor_and_stands_where_the_sum_would(
    in_place: bool, first: bool, alpha: int
) -> None:
    pair = (STREAM.clone(), BRANCH.clone()) if first else (BRANCH.clone(), STREAM.clone())
    name = "add_" if in_place else "add"
    op = Operation(getattr(torch.Tensor, name), name, "add", pair, {"alpha": alpha})
    assert op.in_place == in_place
    found = Join(op, [first, not first]).stream_alone()
    assert torch.equal(found, STREAM if first else alpha * STREAM)
    assert (found.data_ptr() == pair[0].data_ptr()) == (in_place or first)


@over("first", [True, False])
def test_the_branch_alone_is_the_sum_with_nothing_for_the_stream(first: bool) -> None:
    pair = (STREAM, BRANCH) if first else (BRANCH, STREAM)
    op = Operation(torch.Tensor.add, "add", "add", pair, {"alpha": 3})
    assert torch.equal(Join(op, [first, not first]).branch_alone(), 3 * BRANCH if first else BRANCH)


def test_a_sum_in_another_dtype_keeps_the_dtype_of_the_sum() -> None:
    op = Operation(torch.Tensor.add, "add", "add", (STREAM, BRANCH.double()), {})
    assert Join(op, [True, False]).stream_alone().dtype == torch.float64
    assert pytest.approx(Join(op, [True, False]).branch_factor) == 1.0
