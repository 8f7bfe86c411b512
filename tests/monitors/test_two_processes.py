"""Two gloo processes that train together: weights as without a monitor, one of them logs, all stop where one must."""

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import depthscope as ds
from loops import over
from monitored import batch, bert, loss_of, net, rows, words
from two import in_two_processes

pytestmark = pytest.mark.long
STEPS = 6


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fsdp(model: nn.Module) -> nn.Module:
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer)
    return fully_shard(model)


def trained(rank: int, way: Callable[..., nn.Module], monitor: Callable[..., Any] | None) -> dict[str, Any]:
    bare = net()
    bare.bn = nn.Identity()  # its running means are each process's own
    model = way(bare)
    torch.manual_seed(rank)
    watched = None if monitor is None else monitor(model)
    optimizer, done = torch.optim.AdamW(model.parameters(), lr=1e-2), 0
    model.train()
    for done in range(1, STEPS + 1):
        loss_of(model, words(4, seed=10 * done + rank)).backward()
        optimizer.step(), optimizer.zero_grad()
        if watched is not None:
            watched.step(done)
            if watched.should_stop:
                break
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]
    found: dict[str, Any] = {"weights": weights, "done": done, "draw": float(torch.rand(()))}
    if isinstance(watched, ds.Monitor):
        found |= {"steps": watched.history.steps, "t_sim": watched.history["t_sim"], "notes": watched.notes}
        found |= {"alarms": watched.alarms, "samples": watched.last.samples}  # type: ignore[union-attr]
    return found


class Scanner:
    """A plain scan after every step."""

    should_stop = False

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def step(self, n: int) -> None:
        ds.scan(self.model, words(seed=9), attention=False)


def loops(rank: int) -> dict[str, Any]:
    """Every way, alone and watched; then one in which the second process alone has reason to stop."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {"logged": []}
    log = lambda values, step: found["logged"].append(step)  # noqa: E731
    for name, way in {"ddp": ddp, "fsdp": fsdp}.items():
        found[name] = trained(rank, way, None)
        found[f"{name}, probe"] = trained(rank, way, lambda model: ds.Monitor(model, words(seed=9), every=2, log=log))
        found[f"{name}, scans"] = trained(rank, way, Scanner)
        found[f"{name}, last batch"] = trained(rank, way, lambda model: ds.Monitor(model, every=2))
    probe = words(seed=9) if rank == 0 else words(1, seed=9).expand(4, -1)[:, :1].repeat(1, 16)  # of one word alone
    found["stop"] = trained(rank, ddp, partial(ds.Monitor, probe=probe, every=2, floor=0.15, action="stop"))
    found["bad"] = []
    for wrong in (words(seed=9), words(seed=9).float()):
        try:
            ds.Monitor(net(), wrong if rank == 1 else words(seed=9))
        except Exception as error:
            found["bad"].append(f"{type(error).__name__}: {error}")
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_two_processes(loops, tmp_path_factory.mktemp("two"))


@over("way", ["ddp", "fsdp"])
@over("probe", ["probe", "last batch"])
def test_the_training_does_not_notice_it(found: list[dict[str, Any]], way: str, probe: str) -> None:
    for process in found:
        alone, watched = process[way], process[f"{way}, {probe}"]
        assert all(map(torch.equal, alone["weights"], watched["weights"])) and alone["draw"] == watched["draw"]
        assert watched["steps"] == ([0, 2, 4, 6] if probe == "probe" else [1, 2, 4, 6]) and not watched["notes"]
        assert torch.equal(watched["t_sim"], found[0][f"{way}, {probe}"]["t_sim"])
        assert watched["samples"] == 8  # the probe, or the batches of both processes
    torch.testing.assert_close(found[0]["ddp, probe"]["t_sim"], found[0]["fsdp, probe"]["t_sim"], atol=1e-6, rtol=0)


@over("way", ["ddp", "fsdp"])
def test_a_scan_alone_is_not_noticed_either(found: list[dict[str, Any]], way: str) -> None:
    for process in found:
        assert all(map(torch.equal, process[way]["weights"], process[f"{way}, scans"]["weights"]))


def test_the_first_process_logs(found: list[dict[str, Any]]) -> None:
    assert [process["logged"] for process in found] == [[0, 2, 4, 6] * 2, []]


def test_where_one_has_reason_to_stop_all_do(found: list[dict[str, Any]]) -> None:
    assert found[0]["stop"]["done"] == found[1]["stop"]["done"] < STEPS
    assert found[0]["stop"]["alarms"] == found[1]["stop"]["alarms"] != []


def test_what_is_wrong_on_one_process_is_told_on_both(found: list[dict[str, Any]]) -> None:
    (first,), (second,) = (process["bad"] for process in found)
    assert "Monitor: the model must run on these inputs" in second
    assert "Monitor: another process could not look at the model" in first


def run_of_the_trainer(rank: int, folder: Path) -> list[Any]:
    from transformers import Trainer, TrainingArguments

    from depthscope.integrations import TrainerCallback

    warnings.simplefilter("ignore")
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # not used: the group is there already
    found = []
    for watch in (False, True):
        callback = TrainerCallback(probe=batch(5), every=3)
        arguments = TrainingArguments(
            str(folder), max_steps=6, per_device_train_batch_size=4, logging_steps=2, seed=3, use_cpu=True,
            disable_tqdm=True, save_strategy="no", report_to="none", ddp_backend="gloo",
        )  # fmt: skip
        trainer = Trainer(bert(2), arguments, train_dataset=rows(64), callbacks=[callback] if watch else [])
        trainer.train()
        assert dist.get_world_size() == 2 and arguments.world_size == 2
        found.append([p.detach() for p in trainer.model.parameters()])
    looks = [entry["step"] for entry in trainer.state.log_history if "depthscope/verdict" in entry]
    return [*found, callback.monitor.history.steps, looks]  # type: ignore[union-attr]


def test_the_trainer_on_two_processes(tmp_path: Path) -> None:
    first, second = in_two_processes(run_of_the_trainer, tmp_path, tmp_path)
    for alone, watched, steps, _ in (first, second):
        assert all(map(torch.equal, alone, watched)) and steps == [0, 3, 6]
    assert all(map(torch.equal, first[0], second[0])), "they did not train together"
    assert first[3] == [0, 3, 6] and second[3] == []
