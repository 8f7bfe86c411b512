"""Models that are cut over two processes: scan, forecast and remedies give what one process gives, to 1e-6."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import CUT, DEPTH, HEADS, IDS, whole
from torch.distributed.device_mesh import init_device_mesh

import depthscope as ds
from depthscope.errors import UsageError
from two import WORLD, in_two_processes

REMEDY = ds.remedies.DeEscalate(0.5)


def told(function: Any) -> Any:
    """What a function gives, or what its error says."""
    try:
        return function()
    except UsageError as error:
        return str(error)


def every_way(rank: int) -> dict[str, dict[str, Any]]:
    mesh = init_device_mesh("cpu", (WORLD,))
    found: dict[str, dict[str, Any]] = {}
    for name, cut in CUT.items():
        model = cut(mesh)
        before = model(IDS)
        assert any(hasattr(p, "device_mesh") for p in model.parameters()), "nothing is cut"
        one: dict[str, Any] = {"scan": ds.scan(model, IDS).to_dict()}
        one["without attention"] = ds.scan(model, IDS, attention=False, stream=None).to_dict()
        one["across"] = ds.scan(model, [IDS[2 * rank : 2 * rank + 2]], across="world").to_dict()
        one["other inputs"] = told(lambda model=model: ds.scan(model, IDS + rank))
        one["gradients"] = told(lambda model=model: ds.scan(model, IDS, gradients=lambda out: out.sum()))
        one["forecast"] = ds.forecast(model, inputs=IDS).t_sim
        with ds.fix_(model, REMEDY):
            one["fixed"] = ds.scan(model, IDS).to_dict()
            one["fixed output"] = told(lambda model=model: model(IDS).detach())
        with ds.fix_(model, REMEDY, group=dist.group.WORLD):
            one["shared output"] = told(lambda model=model: model(IDS).detach()) if "sequence" in name else None
        assert torch.equal(model(IDS), before), "the model is not as it was"
        found[name] = one
    return found


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    return in_two_processes(every_way, tmp_path_factory.mktemp("two"))


def assert_same(record: dict[str, Any], one: ds.Scan) -> None:
    scan = ds.Scan.from_dict(record)
    assert scan.head_counts == one.head_counts == [HEADS] * DEPTH or not one.heads
    for table in ("states", "heads", "spread", "sequences"):
        for name, values in getattr(one, table).items():
            torch.testing.assert_close(getattr(scan, table)[name], values, rtol=1e-6, atol=1e-6, msg=name)
    assert scan.steps.keys() == one.steps.keys()
    for step, row in one.steps.items():
        for name, values in row.items():
            torch.testing.assert_close(scan.steps[step][name], values, rtol=1e-6, atol=1e-6, msg=f"{step} {name}")
    facts = ("tokens", "samples", "blocks", "block_names", "placement", "causal", "remedies")
    assert [getattr(scan, name) for name in facts] == [getattr(one, name) for name in facts]
    assert scan.verdict.status == one.verdict.status and set(one.notes) <= set(scan.notes)


@pytest.mark.parametrize("name", CUT)
def test_two_processes_equal_one(found: list[dict[str, dict[str, Any]]], name: str) -> None:
    one = ds.scan(whole(), IDS)
    for process in found:
        assert_same(process[name]["scan"], one)
        assert_same(process[name]["without attention"], ds.scan(whole(), IDS, attention=False))
        assert_same(process[name]["across"], one)
        torch.testing.assert_close(process[name]["forecast"], ds.forecast(whole(), inputs=IDS).t_sim, atol=1e-6, rtol=0)
    as_one = any("each process ran the whole model" in note for note in found[0][name]["scan"]["notes"])
    assert as_one == (name != "fsdp")


@pytest.mark.parametrize("name", CUT)
def test_remedies_act_on_whole_sequences_or_say_what_is_missing(
    found: list[dict[str, dict[str, Any]]], name: str
) -> None:
    model = whole()
    with ds.fix_(model, REMEDY):
        one, output = ds.scan(model, IDS), model(IDS).detach()
    for process in found:
        assert_same(process[name]["fixed"], one)
        seen = process[name]["fixed output"]
        if "sequence" in name:
            assert "processes hold parts of it (sequence-parallel). Pass group=" in seen
            seen = process[name]["shared output"]
        if "DTensors" in name:
            assert "use local outputs (use_local_output=True)" in seen
        else:
            torch.testing.assert_close(seen, output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CUT)
def test_what_would_wait_forever_or_be_missing_is_refused(found: list[dict[str, dict[str, Any]]], name: str) -> None:
    for process in found:
        assert "must give the same inputs; theirs differ" in process[name]["other inputs"]
        assert "gradients= needs the weights of the model at hand" in process[name]["gradients"]
