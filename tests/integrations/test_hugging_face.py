"""The monitor in real runs of the Hugging Face Trainer: unnoticed, logged where the Trainer logs, alarmed in time."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import Trainer, TrainingArguments

from depthscope.errors import DepthscopeError, MonitorWarning
from depthscope.integrations import TrainerCallback
from monitored import batch, bert, net, rows, same, words

ROWS = rows(256)
PROBE = batch(5)


def trainer(model: Any, folder: Path, callback: Any = None, **arguments: Any) -> Trainer:
    choices = {"max_steps": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "logging_steps": 2, "seed": 3}
    quiet = {"use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "report_to": "none"}
    found = Trainer(model, TrainingArguments(str(folder), **{**choices, **quiet, **arguments}), train_dataset=ROWS)
    found.remove_callback(transformers.PrinterCallback)
    if callback is not None:
        found.add_callback(callback)
    return found


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "checkpoints and mixed precision": {"gradient_checkpointing": True, "bf16": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_training_does_not_notice_it(way: str, tmp_path: Path) -> None:
    found = []
    for callback in (None, TrainerCallback(probe=PROBE, every=3)):
        run = trainer(bert(3), tmp_path, callback, **WAYS[way])
        run.train()
        losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        found.append((run.model, losses, callback, run))
    assert same(found[0][0], found[1][0]) and found[0][1] == found[1][1] and len(found[0][1]) == 4
    monitor = found[1][2].monitor
    assert monitor.history.steps == [0, 3, 6, 8] and monitor.history.total == 8 and not monitor.notes
    looks = [entry for entry in found[1][3].state.log_history if "depthscope/verdict" in entry]
    assert [entry["step"] for entry in looks] == [0, 3, 6, 8]
    assert looks[1]["depthscope/t_div/block_03"] == float(monitor.history["t_div"][1, 3])


def test_three_lines_are_enough_and_values_reach_the_trainers_loggers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trainer(bert(2), tmp_path, report_to=["tensorboard"])
    run.add_callback(TrainerCallback(probe=PROBE, every=4))
    run.train()
    folder = next(path.parent for path in tmp_path.rglob("events.out.tfevents.*"))
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("train/depthscope/t_div/block_02")] == [0, 4, 8]
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6, 8]


def test_without_a_probe_it_looks_at_the_training_batch(tmp_path: Path) -> None:
    callback = TrainerCallback(every=4)
    run = trainer(bert(2), tmp_path, callback)
    run.train()
    assert callback.monitor.history.steps == [1, 4, 8] and callback.monitor.last.samples == 8
    assert not run.model._forward_pre_hooks


def test_the_console_is_left_alone_and_other_callbacks_are_told(tmp_path: Path, capsys: Any) -> None:
    heard: list[int] = []

    class Ear(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            heard.extend([state.global_step] * ("depthscope/verdict" in logs))

    run = trainer(bert(2), tmp_path, TrainerCallback(probe=PROBE, every=4))
    run.add_callback(Ear())
    run.add_callback(transformers.PrinterCallback())
    run.train()
    assert heard == [0, 4, 8]
    printed = capsys.readouterr().out
    assert "loss" in printed and "depthscope" not in printed


def early(depth: int, folder: Path, steps: int = 24, **choices: Any) -> tuple[Trainer, TrainerCallback, torch.Tensor]:
    callback = TrainerCallback(probe=PROBE, every=4, **choices)
    run = trainer(bert(depth), folder, callback, max_steps=steps, logging_steps=1, lr_scheduler_type="constant")
    run.train()
    return run, callback, torch.tensor([entry["loss"] for entry in run.state.log_history if "loss" in entry])


def test_the_alarm_comes_while_the_losses_of_a_failing_and_a_slow_run_are_alike(tmp_path: Path) -> None:
    """24 blocks, which never learn this task, and 2, which begin to after some 300 steps: docs/findings.md.

    The failing one is told to stop.
    """
    with pytest.warns(MonitorWarning, match=r"From block \d+ on less than 1 % of the signal differs .*ds\.fix_\(model"):
        run, failing, bad = early(24, tmp_path, action="stop")
    _, slow, good = early(2, tmp_path, action="stop")
    (alarm,) = failing.monitor.alarms
    assert run.state.global_step == alarm.step < len(good)
    assert alarm.kind == "diversity" and alarm.step <= 16 and alarm.driver and not slow.monitor.alarms
    upto = alarm.step
    noise = float((good[:upto].var() + bad[:upto].var()).sqrt())
    assert abs(float(good[:upto].mean() - bad[:upto].mean())) < noise


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a probe": (bert, {"probe": {"input_ids": torch.full((1, 4), 10**6)}}, "TrainerCallback: the model must run on"),
    "an action": (bert, {"action": "halt"}, "TrainerCallback: .*action"),
    "a choice": (bert, {"flor": 0.1}, "TrainerCallback: .*flor.*floor"),
    "a floor": (bert, {"floor": 7}, "TrainerCallback: floor must lie between 0 and 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_watched_is_told_before_the_first_step(case: str, tmp_path: Path) -> None:
    make, choices, says = BAD[case]
    model = make(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(DepthscopeError, match=says):
        trainer(model, tmp_path, TrainerCallback(**{"probe": PROBE, **choices})).train()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_one_who_is_called_by_nobody_asks_for_the_trainer() -> None:
    callback = TrainerCallback(probe=words())
    state = transformers.TrainerState(max_steps=3)
    with pytest.raises(DepthscopeError, match=r"a Trainer must call it; none was found. Pass trainer="):
        callback.on_train_begin(None, state, transformers.TrainerControl(), model=net())
    told: list[int] = []
    callback = TrainerCallback(probe=words(), log=lambda values, step: told.append(step))
    callback.on_train_begin(None, state, transformers.TrainerControl(), model=net())
    assert told == [0]
