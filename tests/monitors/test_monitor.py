"""ds.Monitor sees what a scan sees at the steps it should, and an own loop does not notice it."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import depthscope as ds
from depthscope.errors import MonitorWarning
from depthscope.monitors.alarms import Alarm
from loops import over
from monitored import Net, batch, bert, loss_of, net, same, words

LOADED = words(48)


def trained(
    model: nn.Module, steps: int = 6, monitor: Callable[[nn.Module], ds.Monitor] | None = None, **ways: Any
) -> tuple[nn.Module, list[Any], ds.Monitor | None]:
    """A loop written by hand: shuffled loading, dropout, python's and numpy's random numbers; the model, its draws."""
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    called = ways.get("compiled", model)
    watched = None if monitor is None else monitor(called)
    optimizer, done, micro, draws = torch.optim.AdamW(model.parameters(), lr=1e-2), 0, 0, []
    model.train()
    model.bn.eval()  # a flag that is not its parent's
    while done < steps:
        for ids in DataLoader(LOADED, batch_size=8, shuffle=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=ways.get("autocast", False)):
                loss_of(called, ids).backward()
            micro += 1
            draws.append((random.random(), np.random.rand(), float(torch.rand(()))))
            if micro % ways.get("accumulate", 1) == 0 and done < steps:
                optimizer.step(), optimizer.zero_grad()
                done += 1
                if watched is not None:
                    watched.step(done)
    assert model.training and not model.bn.training
    return model, draws, watched


def checkpointed(**choices: Any) -> Net:
    model = net(**choices)
    model.checkpoints = True
    return model


WAYS: dict[str, tuple[Callable[..., Net], dict[str, Any]]] = {
    "plain": (net, {}),
    "gradient checkpoints": (checkpointed, {}),
    "accumulation": (net, {"accumulate": 2}),
    "mixed precision": (net, {"autocast": True}),
}


@over("way", WAYS)
@over("probe", ["fixed", "last batch"])
def test_a_loop_does_not_notice_it(way: str, probe: str) -> None:
    make, ways = WAYS[way]
    given = words(seed=9) if probe == "fixed" else None
    alone, draws, _ = trained(make(), **ways)
    watched, same_draws, monitor = trained(make(), monitor=lambda model: ds.Monitor(model, given, every=2), **ways)
    assert same(alone, watched) and draws == same_draws
    assert monitor is not None and not monitor.notes
    assert monitor.history.steps == ([0, 2, 4, 6] if probe == "fixed" else [1, 2, 4, 6])
    monitor.close()
    assert not watched._forward_pre_hooks


def test_a_compiled_model_is_not_compiled_again_for_it() -> None:
    found = []
    for watch in (False, True):
        graphs: list[Any] = []

        def count(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return graph.forward

        torch.compiler.reset()
        model = net()
        monitor = (lambda model: ds.Monitor(model, None, every=2)) if watch else None
        trained(model, monitor=monitor, compiled=torch.compile(model, backend=count))
        found.append((model, len(graphs)))
    assert same(found[0][0], found[1][0]) and found[0][1] == found[1][1] > 0


def test_a_look_is_a_scan_without_dropout_and_every_look_is_kept() -> None:
    model, probe, told = net(), words(seed=9), []
    monitor = ds.Monitor(model.train(), probe, every=5, log=lambda values, step: told.append((step, values)))
    quiet = ds.scan(model.eval(), probe, attention=False)
    model.train()
    assert monitor.last is not None and torch.equal(monitor.last["t_sim"], quiet["t_sim"])
    seen = [n for n in range(1, 12) if monitor.step() is not None]
    assert seen == [5, 10] and monitor.history.steps == [0, 5, 10]
    assert [step for step, _ in told] == [0, 5, 10]
    names = [f"depthscope/{name}/block_{i:02d}" for name in ("t_sim", "t_div") for i in range(4)]
    assert list(told[0][1]) == [*names, "depthscope/diversity", "depthscope/verdict"]
    assert told[0][1]["depthscope/t_div/block_03"] == float(quiet["t_div"][3])
    assert told[0][1]["depthscope/verdict"] == 0.0 and quiet.verdict.status == "diverse"
    history = monitor.history
    assert history["t_sim"].shape == (3, 4) and torch.equal(history["t_sim"][2], quiet["t_sim"])


def test_more_metrics_and_heads_are_measured_when_asked_for() -> None:
    monitor = ds.Monitor(net(), words(), metrics=["token_norm", "xi"], attention=True)
    assert {*monitor.history.curves} == {"t_sim", "t_div", "token_norm", "xi_1", "xi_2", "attention_entropy"}
    assert monitor.history["attention_entropy"].shape == (1, 3)


def test_steps_that_are_left_out_or_told_twice() -> None:
    monitor = ds.Monitor(net(), words(), every=10, total=33)
    assert [n for n in (3, 8, 12, 12, 19, 21, 33, 33) if monitor.step(n) is not None] == [12, 21, 33]
    resumed = ds.Monitor(net(), words(), every=10, start=25)
    assert [n for n in (26, 30) if resumed.step(n) is not None] == [30] and resumed.history.steps == [25, 30]


def test_the_last_batch_is_what_the_model_was_trained_on() -> None:
    model = bert(2).train()
    monitor = ds.Monitor(model, every=3)
    given = batch(4)
    model(given["input_ids"], labels=given["labels"])
    monitor.step(1)
    model.eval()
    assert monitor.last is not None
    assert torch.equal(monitor.last["t_sim"], ds.scan(model, given, attention=False)["t_sim"])


@pytest.mark.filterwarnings("ignore::depthscope.errors.MonitorWarning")
def test_its_history_is_a_record_with_a_heat_map(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    model = net()
    monitor = ds.Monitor(model, words(), every=1, floor=0.99)
    monitor.step(1)
    again = ds.load(monitor.history.save(tmp_path / "h.json"))
    assert again.to_dict() == monitor.history.to_dict() and str(again) == str(monitor.history)
    assert "diversity" in str(again) and again.alarms == monitor.alarms != []
    figure = Figure()
    assert monitor.draw(figure) is figure
    mesh = figure.axes[0].collections[0]
    assert mesh.get_array().shape == (4, 2) and np.allclose(mesh.get_array().T, again["t_sim"])
    ds.report(again, to=tmp_path / "h.html")
    assert "monitor" in (tmp_path / "h.html").read_text()


def test_a_look_that_fails_is_told_once_and_the_training_goes_on() -> None:
    model = net()
    monitor = ds.Monitor(model, words(), every=1)
    good, model.embed = model.embed, nn.Embedding(2, 16)
    with pytest.warns(MonitorWarning, match="step 1: a look at the model failed, and the training goes on"):
        assert monitor.step(1) is None
    assert monitor.step(2) is None  # a second warning would be an error here
    model.embed = good
    assert monitor.step(3) is not None
    model.embed = nn.Embedding(2, 16)
    monitor.step(4), monitor.step(5)
    with pytest.warns(MonitorWarning, match="the monitor gives up"):
        monitor.step(6)
    for n in range(7, 9):
        monitor.step(n)
    assert monitor.history.steps == [0, 3] and len(monitor.notes) == 5 and "gives up" in monitor.notes[-1]
    assert monitor.history.notes == monitor.notes and not monitor.should_stop


def test_a_logger_that_fails_is_told_once() -> None:
    def broken(values: dict[str, float], step: int) -> None:
        raise OSError("no such host")

    with pytest.warns(MonitorWarning, match="step 0: the logger failed: OSError: no such host"):
        monitor = ds.Monitor(net(), words(), every=1, log=broken)
    assert monitor.step(1) is not None and len(monitor.notes) == 2


def test_a_logger_that_fails_hides_no_look_that_fails() -> None:
    def broken(values: dict[str, float], step: int) -> None:
        raise OSError("no such host")

    model = net()
    with pytest.warns(MonitorWarning, match="the logger failed"):
        monitor = ds.Monitor(model, words(), every=1, log=broken)
    model.embed = nn.Embedding(2, 16)
    with pytest.warns(MonitorWarning, match="step 1: a look at the model failed"):
        monitor.step(1)


def test_an_alarm_without_a_scan_of_all_metrics_is_of_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = ds.Monitor(net(), words(), every=1, action=lambda alarm: None)
    scan = monitor._probe.scan

    def narrow(**settings: Any) -> Any:
        if settings:
            raise MemoryError("no room")
        return scan()

    monkeypatch.setattr(monitor._probe, "scan", narrow)
    monkeypatch.setattr("depthscope.monitors.monitor.alarms_of", lambda *_: [Alarm("diversity", 1, 1, "", "", "")])
    with pytest.warns(MonitorWarning, match="a scan of all metrics at the alarm failed: no room"):
        monitor.step(1)
    assert monitor.alarmed is monitor.last and len(monitor.alarms) == 1


class Writer:
    """TensorBoard's."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.seen.append((name, value, step))


class Logger(Writer):
    """Lightning's and MLflow's."""

    add_scalar = None  # type: ignore[assignment]

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.seen += [(name, value, step) for name, value in values.items()]


class Run(Logger):
    """W&B's and accelerate's."""

    log_metrics = None  # type: ignore[assignment]

    def log(self, values: dict[str, float], step: int) -> None:
        Logger.log_metrics(self, values, step)


@over("kind", [Writer, Logger, Run])
def test_it_logs_to_what_people_have(kind: type[Writer]) -> None:
    writer = kind()
    ds.Monitor(net(), words(), log=writer, start=7)
    assert len(writer.seen) == 10 and writer.seen[0][0] == "depthscope/t_sim/block_00" and writer.seen[0][2] == 7
