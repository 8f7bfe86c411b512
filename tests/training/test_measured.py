"""The monitor sees what a scan sees, and the training does not notice it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import BUILD, RECIPE, tiny_task

import depthscope as ds
from depthscope.monitors.probe import Probe
from depthscope.training.loop import train
from depthscope.training.measured import measured

FIXED = replace(BUILD, remedy="de_escalate", remedy_settings={"tau": 1.0})


def test_it_logs_the_tokens_and_the_gradients_of_every_block() -> None:
    task = tiny_task()
    model, _ = BUILD.model(task, 0)
    inputs = task.probe(torch.device("cpu"))
    model(inputs).square().sum().backward()
    entry = measured(Probe(model, inputs, every=0), 7)
    assert entry["step"] == 7 and entry["t_sim"] == ds.scan(model, inputs, attention=False)["t_sim"].tolist()
    assert len(entry["t_div"]) == BUILD.depth + 1
    blocks = model.transformer.blocks  # type: ignore[union-attr]
    by_hand = [sum(p.grad.double().square().sum() for p in block.parameters()) ** 0.5 for block in blocks]  # type: ignore[union-attr]
    assert entry["gradient_norm"] == pytest.approx([float(norm) for norm in by_hand], rel=1e-12)


def test_it_looks_at_the_first_the_last_and_every_so_many_steps() -> None:
    probe = Probe(torch.nn.Identity(), None, every=4)
    assert [step for step in range(11) if probe.due(step, 10)] == [0, 4, 8, 10]
    assert not probe.due(7, None, since=5) and probe.due(9, None, since=7), "steps that are left out"
    assert [step for step in range(11) if Probe(torch.nn.Identity(), None, every=0).due(step, 10)] == [0, 10]


def test_a_de_escalated_model_has_no_similar_tokens() -> None:
    run = train(FIXED, tiny_task(), RECIPE)
    assert [entry["step"] for entry in run.logs] == [0, 4, 8, 11]
    assert all(value < 1e-10 for entry in run.logs for value in entry["t_sim"][1:])


@pytest.mark.long
def test_the_training_does_not_notice_it(tmp_path: Path) -> None:
    runs, weights = [], []
    for every in (1, 0):
        recipe = replace(RECIPE, log_every=every, augment="flip_crop")
        runs.append(train(FIXED, tiny_task(), recipe, folder=tmp_path / str(every)))
        weights.append(load_file(tmp_path / str(every) / "step_000012" / "model.safetensors"))
    assert len(runs[0].logs) == 12 and len(runs[1].logs) == 2 and runs[0].history == runs[1].history
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
