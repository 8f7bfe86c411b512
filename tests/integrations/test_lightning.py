"""The monitor in real runs of Lightning: unnoticed, logged where Lightning logs, alarmed in time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from depthscope.errors import DepthscopeError, MonitorWarning
from depthscope.integrations import LightningCallback
from monitored import batch, bert, rows, same

ROWS = rows(256)
PROBE = batch(5)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*"),
    pytest.mark.filterwarnings("ignore:.*treespec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.*LeafSpec.*"),
]


class Module(LightningModule):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.net, self.losses = bert(depth), []

    def training_step(self, given: Any, index: int) -> torch.Tensor:
        loss = self.net(**given).loss
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fit(depth: int, folder: Path, callback: Any = None, steps: int = 8, **choices: Any) -> Module:
    module = Module(depth)
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    callbacks = [] if callback is None else [callback]
    trainer = Trainer(
        max_steps=steps,
        callbacks=callbacks,
        enable_checkpointing=False,
        default_root_dir=folder,
        **{**quiet, **choices},
    )
    torch.manual_seed(3)
    trainer.fit(module, DataLoader(ROWS, batch_size=8, shuffle=True))
    module.steps_done = trainer.global_step
    return module


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation and mixed precision": {"accumulate_grad_batches": 3, "precision": "bf16-mixed"},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_training_does_not_notice_it_and_loggers_are_told(way: str, tmp_path: Path) -> None:
    callback, logger = (
        LightningCallback(probe=PROBE, every=3, model="net"),
        CSVLogger(tmp_path, flush_logs_every_n_steps=1),
    )
    alone = fit(3, tmp_path, **WAYS[way])
    watched = fit(3, tmp_path, callback, **{**WAYS[way], "logger": logger})
    assert same(alone, watched) and alone.losses == watched.losses
    monitor = callback.monitor
    assert monitor.history.steps == [0, 3, 6, 8] and monitor.history.total == 8 and not monitor.notes
    lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert "depthscope/t_div/block_03" in lines[0].split(",") and len(lines) == 5


def test_without_a_probe_it_looks_at_the_training_batch(tmp_path: Path) -> None:
    callback = LightningCallback(every=4, model="net")
    fit(2, tmp_path, callback)
    assert callback.monitor.history.steps == [1, 4, 8] and callback.monitor.last.samples == 8


def test_the_alarm_comes_while_losses_are_alike_and_stops_the_training(tmp_path: Path) -> None:
    failing, slow = (LightningCallback(probe=PROBE, every=4, model="net", action="stop") for _ in range(2))
    with pytest.warns(MonitorWarning, match=r"From block \d+ on less than 1 % .*ds\.fix_\(model"):
        bad = fit(24, tmp_path, failing, steps=24)
    good = fit(2, tmp_path, slow, steps=24)
    (alarm,) = failing.monitor.alarms
    assert bad.steps_done == alarm.step <= 16 and good.steps_done == 24 and not slow.monitor.alarms
    a, b = (torch.tensor(one.losses[: alarm.step]) for one in (bad, good))
    assert abs(float(a.mean() - b.mean())) < float((a.var() + b.var()).sqrt())


BAD = {
    "no forward": ({}, "LightningCallback: Module must have a forward that runs the model; it has none"),
    "a part": ({"model": "nett"}, "LightningCallback: model= must name a part of Module; 'nett' is none of: net"),
    "a probe": ({"model": "net", "probe": torch.rand(1, 4)}, "LightningCallback: the model must run on these inputs"),
    "an action": ({"action": "halt"}, "LightningCallback: .*action"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_watched_is_told_before_the_first_step(case: str, tmp_path: Path) -> None:
    choices, says = BAD[case]
    with pytest.raises(DepthscopeError, match=says):
        fit(2, tmp_path, LightningCallback(**{"probe": PROBE, **choices}))
