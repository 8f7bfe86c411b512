"""torchrun -m depthscope scan: processes share the sequences, and there is one report."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.cli.processes import part_of
from depthscope.errors import UsageError

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SCAN = ("scan", "bert", "--depth", "3", "--width", "32", "--heads", "2", "--tokens", "9", "--batch", "5")


@pytest.mark.long
def test_two_processes_give_one_report_with_the_numbers_of_one(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, "-m", "depthscope", *SCAN, "--fix", "de_escalate", "--json", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("before and after DeEscalate") == 1 and done.stderr.count("wrote") == 1
    alone = tmp_path / "one.json"
    assert CliRunner().invoke(app, [*SCAN, "--fix", "de_escalate", "--json", str(alone)]).exit_code == 0
    two, one = ds.Scan.load(path), ds.Scan.load(alone)
    assert two.samples == one.samples == 5 and two.batches == 2
    for after, before in ((two, one), (two.before, one.before)):
        for name in before.keys():
            torch.testing.assert_close(after[name], before[name], rtol=1e-6, atol=1e-6, msg=name)
        assert after.verdict.status == before.verdict.status


def test_inputs_are_cut_into_parts_that_are_all_of_them() -> None:
    ids, mask = torch.arange(10).reshape(5, 2), torch.ones(5, 2)
    assert torch.equal(torch.cat([part_of(ids, rank, 2) for rank in range(2)]), ids)
    parts = [part_of({"input_ids": ids, "attention_mask": mask, "use_cache": False}, rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([part["input_ids"] for part in parts]), ids) and not parts[1]["use_cache"]
    assert [len(part["attention_mask"]) for part in parts] == [3, 2]
    assert [list(part_of([1, 2, 3, 4], rank, 2)) for rank in range(2)] == [[1, 3], [2, 4]]
    with pytest.raises(UsageError, match=r"every process must have a sequence; got 1 for 2 processes\. Give more"):
        part_of(ids[:1], 0, 2)


def test_a_batch_whose_first_axis_may_be_the_tokens_is_not_cut() -> None:
    for given in (
        torch.randn(8, 3, 16),
        torch.randn(8, 16),
        {"ids": torch.ones(4, 6).long(), "bias": torch.ones(4, 4)},
    ):
        with pytest.raises(UsageError, match="list of batches"):
            part_of(given, 0, 2)
    assert part_of(torch.randn(4, 3, 8, 8), 0, 2).shape == (2, 3, 8, 8)
