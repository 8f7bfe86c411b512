"""Every block of code of docs/how-to/monitor.md runs, one after another, and its tables say what is so."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from depthscope.monitors.alarms import NARROW
from depthscope.monitors.choices import Choices
from depthscope.monitors.names import VERDICTS
from monitored import batch, bert, rows

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "monitor.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def hugging_face(folder: Path) -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(str(folder), max_steps=2, use_cpu=True, report_to="none", disable_tqdm=True)
    return {"trainer": Trainer(bert(2), arguments, train_dataset=rows(16)), "batch": batch(5)}


def lightning(folder: Path) -> dict[str, Any]:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = bert(2)

        def forward(self, **given: Any) -> Any:
            return self.net(**given)

        def training_step(self, given: Any, index: int) -> torch.Tensor:
            return self(**given).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    names = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger")
    settings = {"max_steps": 2, "accelerator": "cpu", **dict.fromkeys(names, False)}
    loader = DataLoader(rows(16), batch_size=8)
    return {"Trainer": Trainer, "settings": settings, "module": Module(), "loader": loader, "batch": batch(5)}


def own_loop(folder: Path) -> dict[str, Any]:
    model = bert(2).train()
    loader = [batch(seed) for seed in range(3)]
    return {"model": model, "batch": batch(5), "loader": loader, "optimizer": torch.optim.AdamW(model.parameters())}


GIVEN = {"TrainerCallback": hugging_face, "LightningCallback": lightning, "ds.Monitor": own_loop}


@pytest.mark.filterwarnings("ignore")
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: dict[str, Any] = {}
    for code in BLOCKS:
        seen |= next((make(tmp_path) for word, make in GIVEN.items() if word in code), {})
        exec(code, seen)
    assert seen["monitor"].history.steps == [0] and len(BLOCKS) == 4
    assert {"history.json", "heat.png", "history.html"} <= {file.name for file in tmp_path.iterdir()}


def test_the_tables_are_so() -> None:
    row = next(line for line in PAGE.splitlines() if "depthscope/verdict" in line)
    told = re.findall(r"(\d) (\w+)", row.partition("|")[2].partition("|")[2])
    assert [int(number) for number, _ in told] == list(range(len(VERDICTS)))
    short = {"at": "at the numerical floor", "NaN": "not a number"}
    assert [short.get(word, word) for _, word in told] == list(VERDICTS)
    options = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE.partition("## Options")[2], re.MULTILINE)
    named = {name for cell in options for name in re.findall(r"\w+", cell)}
    assert named == {*Choices.__dataclass_fields__, "probe"} - {"log", "entropy_floor", "across"}
    assert all(f"`{name}" in PAGE for name in ("log", "entropy_floor", "across"))
    assert (Choices().every, Choices().action, Choices().patience, NARROW) == (100, "warn", 1, 0.05)


def test_lines_are_short() -> None:
    assert [line for line in PAGE.splitlines() if len(line) > 100] == []
