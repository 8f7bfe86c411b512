"""Comparisons of a model of one's own: the same weights and batches for all arms, and what is wrong is told at once."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import own_functions
import pytest
import torch
from own_functions import batch_fn, calm_fn, loss_fn, model_fn
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.errors import DepthscopeError
from depthscope.training.arms import arms
from depthscope.training.build import Build
from depthscope.training.loop import train
from depthscope.training.recipe import Recipe
from depthscope.training.tasks import task
from depthscope.training.tasks.own import _source, named

TINY: dict[str, Any] = {"steps": 4, "looks": 2}
HERE = Path(__file__).parent


def the_task(**options: Any) -> Any:
    return task("own", **named(model_fn, batch_fn, loss_fn), **TINY | options)


def test_functions_are_found_by_their_names() -> None:
    found = named(model_fn, batch_fn, loss_fn)
    assert found["model_fn"] == "own_functions:model_fn" and str(HERE) in found["path"].split(":")
    one, other = the_task(), task("own", setup="own_functions:setup", **TINY)
    assert one.fingerprint == other.fingerprint and len(one) == 4
    assert one.defaults["depth"] == 3 and one.defaults["d"] == 16 and one.defaults["h"] == 2


def test_a_run_is_a_plain_loop_over_the_users_functions() -> None:
    """Written out by hand: weights by the seed, batches by seed and step, AdamW."""
    own = task("own", **named(calm_fn, batch_fn, loss_fn), **TINY)
    build = Build(**{name: own.defaults[name] for name in ("depth", "d", "h")})
    recipe = Recipe(epochs=2, batch=1, lr=1e-2, seed=1, milestones=())
    run = train(build, own, recipe)
    torch.manual_seed(1)
    model, by_hand = calm_fn(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(8):
        loss = loss_fn(model, own.draw("train", 1, step))
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        by_hand.append(float(loss.detach()))
    assert run.status == "done" and run.history["loss"] == pytest.approx(by_hand, abs=1e-5)
    assert by_hand[0] - by_hand[-1] > 0.05, "nothing was learned"
    model.eval()
    ends = [float(loss_fn(model, own.draw("test", i, 2**40)).detach()) for i in range(2)]
    assert run.final["test"]["loss"] == pytest.approx(sum(ends) / 2, abs=1e-5)
    assert run.logs[0]["step"] == 0 and len(run.logs[0]["t_sim"]) == 3
    mended = train(replace(build, remedy="de_escalate", remedy_settings={"tau": 0.5}), own, recipe)
    assert mended.status == "done" and mended.history["loss"][0] != run.history["loss"][0]


def test_batches_depend_on_seed_step_and_split_alone() -> None:
    own = the_task()
    at = own.batches(Recipe(batch=1, seed=3), torch.device("cpu")).at
    assert torch.equal(at(5)[0].batch["ids"], at(5)[0].batch["ids"])
    others = [at(6)[0].batch, own.draw("train", 4, 5), own.draw("valid", 3, 5)]
    assert not any(torch.equal(at(5)[0].batch["ids"], other["ids"]) for other in others)


def test_an_evaluation_is_the_same_mean_however_many_processes_share_it() -> None:
    own, model = the_task(looks=3), model_fn()
    look = {"device": torch.device("cpu"), "final": True}
    whole = own.evaluate(model, "test", part=(0, 1), total=lambda sums: sums, **look)["loss"]
    parts = [own.evaluate(model, "test", part=(i, 2), total=lambda sums: sums, **look)["loss"] for i in range(2)]
    assert sum(parts) == pytest.approx(whole) and model.training
    model.eval()
    by_hand = [float(loss_fn(model, own.draw("test", i, 2**40)).detach()) for i in range(3)]
    assert whole == pytest.approx(sum(by_hand) / 3)


def test_plain_is_the_model_as_it_is() -> None:
    plain, mended = arms("plain,de_escalate:tau=0.5")
    assert plain.plain and plain.name == "plain" and mended.wiring == plain.wiring


BAD = {
    "a lambda": (lambda: ds.compare(lambda: 1, batch_fn, loss_fn), "model_fn must be a function at the top of a module"),
    "two functions": (lambda: ds.compare(model_fn, batch_fn), "takes model_fn, batch_fn, loss_fn; got 2"),
    "a wiring": (lambda: ds.compare(model_fn, batch_fn, loss_fn, arms="pre_norm", **TINY), "keeps its wiring"),
    "a size": (lambda: ds.compare(model_fn, batch_fn, loss_fn, depth=3), "compare: .*depth"),
    "a setup": (lambda: task("own", setup="own_functions:two"), "must return three functions"),
    "no model": (lambda: task("own", **named(own_functions.no_model, batch_fn, loss_fn)), "model_fn must return a torch"),
    "restless": (lambda: task("own", **named(model_fn, own_functions.restless, loss_fn)), "those of train differ"),
    "no tensors": (lambda: task("own", **named(model_fn, own_functions.no_tensors, loss_fn)), "of train are missing"),
    "a number": (lambda: task("own", **named(model_fn, batch_fn, own_functions.a_number)), "loss_fn must return one num"),
    "beside": (lambda: task("own", **named(model_fn, batch_fn, own_functions.beside_the_model)), "no call was seen"),
    "nothing": (lambda: task("own"), "needs setup=, or all of model_fn="),
    "no module": (lambda: ds.compare("nowhere.at_all:setup"), "the module must be importable"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told_before_anything_is_trained(case: str) -> None:
    act, says = BAD[case]
    with pytest.raises(DepthscopeError, match=says):
        act()


def test_other_steps_or_looks_are_other_work() -> None:
    names = named(model_fn, batch_fn, loss_fn)
    prints = {task("own", **names, steps=steps, looks=looks).fingerprint for steps, looks in ((2, 1), (3, 1), (2, 2))}
    assert len(prints) == 3


def test_other_data_are_other_work_though_the_functions_are_written_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    before = the_task().fingerprint
    assert the_task().fingerprint == before
    monkeypatch.setattr(own_functions, "WORDS", 30)
    assert the_task().fingerprint != before


def test_what_a_partial_has_fixed_is_part_of_the_work() -> None:
    one, other = (_source(partial(model_fn, depth=depth)) for depth in (2, 3))
    assert one != other and one.startswith(_source(model_fn))
    with pytest.raises(DepthscopeError, match="must be functions or classes of a file"):
        _source(object())


@pytest.mark.long
def test_a_comparison_in_processes_of_their_own_goes_on_where_it_was(tmp_path: Path) -> None:
    choices = {**TINY, "epochs": 2, "seeds": 2, "folder": tmp_path, "caveat": False}
    found = ds.compare(model_fn, batch_fn, loss_fn, arms="plain,de_escalate:tau=0.5", **choices)
    assert [lane.arm.name for lane in found.lanes] == ["plain", "de_escalate:tau=0.5"]
    assert all(len(lane.done) == 2 for lane in found.lanes), [lane.failed for lane in found.lanes]
    assert "test batches" in str(found) or "too few" in str(found)
    again = ds.compare(model_fn, batch_fn, loss_fn, arms="plain,de_escalate:tau=0.5", **choices)
    assert again.reused == 4 and again["plain"].values("test", "loss") == found["plain"].values("test", "loss")
    assert found.draw().axes


@pytest.mark.long
def test_the_command_takes_a_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent}:{Path(ds.__file__).parents[1]}")
    words = ["compare", "own_functions:setup", "--arms", "plain", "--seeds", "1", "--epochs", "1", "--no-caveat"]
    words += ["--set", "steps=2", "--set", "looks=1", "--folder", str(tmp_path), "--search", "1", "--json", "-"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["task"] == "own"


PAGE = (HERE.parents[1] / "docs" / "how-to" / "compare-your-model.md").read_text()


@pytest.mark.long
def test_the_page_on_it_runs(tmp_path: Path) -> None:
    """Its file, its command and its lines, in fewer steps."""
    module, command, python = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_task.py").write_text(module)
    few = " --set steps=2 --set looks=1 --seeds 1 --epochs 1"
    words = [sys.executable, "-m", *(command.strip().replace(" --set steps=200", "") + few).split()]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    script = python.replace("steps=200", "steps=2, looks=1, seeds=1, epochs=1, caveat=False")
    (tmp_path / "script.py").write_text(script)
    told = subprocess.check_output([sys.executable, "script.py"], cwd=tmp_path, text=True)
    assert "de_escalate:tau=0.5" in told
    assert [line for line in PAGE.splitlines() if len(line) > 100] == []
