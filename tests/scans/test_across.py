"""Two processes that each scan their own batches get the scan of one process that has them all."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import depthscope as ds
from depthscope.errors import DepthscopeError
from two import WORLD, in_two_processes


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return ds.models.classic(3, 16, 2, q=32).eval()


def drawn() -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(rows, 6, 16, generator=draw) for rows in (2, 2, 5, 1, 3, 4)]


def shared(rank: int) -> dict[str, Any]:
    return ds.scan(model(), drawn()[rank::WORLD], across="world").to_dict()


def mistakes(rank: int) -> list[str]:
    said = []
    batches = drawn()
    unequal = batches[: 3 if rank else 2]
    for inputs, across in (
        (unequal, "world"),
        ([] if rank else batches[:2], "world"),
        ([batches[0], batches[1] if rank else torch.randn(2, 6, 7)], "world"),  # process 0 has a batch that is wrong
        (batches, "everybody"),
    ):
        try:
            ds.scan(model(), inputs, across=across)
        except DepthscopeError as error:
            said.append(str(error))
    single = [dist.new_group([0]), dist.new_group([1])]
    said.append(str(ds.scan(model(), batches[:2], across=single[rank]).batches))
    return said


@pytest.mark.long
def test_two_processes_equal_one(tmp_path: Path) -> None:
    one = ds.scan(model(), drawn())
    found = [ds.Scan.from_dict(record) for record in in_two_processes(shared, tmp_path)]
    assert found[0].to_dict() == found[1].to_dict()
    both = found[0]
    assert (both.batches, both.samples, both.tokens) == (6, 17, 6)
    for name in one.keys():
        torch.testing.assert_close(both[name], one[name], rtol=1e-10, atol=1e-13, msg=name)
        torch.testing.assert_close(both.errors[name], one.errors[name], rtol=1e-6, atol=1e-12, msg=name)
    for table in ("spread", "sequences", "heads", "final_norm"):
        for name, values in getattr(one, table).items():
            torch.testing.assert_close(getattr(both, table)[name], values, rtol=1e-9, atol=1e-12, msg=name)
    assert both.verdict == one.verdict or both.verdict.text == one.verdict.text
    assert both.notes == one.notes and both.massive == one.massive


@pytest.mark.long
def test_mistakes_are_told_on_both_and_nobody_waits(tmp_path: Path) -> None:
    first, second = in_two_processes(mistakes, tmp_path)
    assert "process 0 ended after 2, and others have more" in first[0] == second[0]
    assert second[1].startswith("scan: inputs must hold at least one batch")
    assert "process 1 raised UsageError: inputs must hold at least one batch" in first[1]
    assert first[2].startswith("transformer: X must be embedded tokens")
    assert "process 0 raised ShapeError: transformer: X must be embedded tokens" in second[2]
    assert """must be "world" or a torch.distributed group that this process is in; got 'everybody'""" in first[3]
    assert first[4] == second[4] == "2"  # a group of one
