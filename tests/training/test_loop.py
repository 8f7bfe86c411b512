"""The loop learns, notices when it does not, and leaves what is not its own alone."""

import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import BUILD, RECIPE, tiny_task
from typer.testing import CliRunner

from depthscope.cli.main import app
from depthscope.errors import MissingExtraError, UnknownNameError, UsageError
from depthscope.training.lock import lock_or_refuse
from depthscope.training.loop import train
from depthscope.training.run import Run
from depthscope.training.step import Stepper, adamw
from depthscope.training.stopping import divergence, not_finite_end
from loops import over

LONGER = replace(RECIPE, epochs=40, lr=1e-2, log_every=0, eval_every=10)


def test_a_tiny_model_learns_its_task() -> None:
    seen: list[tuple] = []
    logged: list[dict] = []
    run = train(BUILD, tiny_task(), LONGER, progress=lambda *now: seen.append(now), on_log=logged.append)
    assert run.status == "done" and run.final["test"]["accuracy"] > 0.9 and run.final["train"]["loss"] < 0.5
    assert run.history["step"] == list(range(160)) and run.history["rate"][-1] == pytest.approx(1e-2 * 0.04)
    assert [(e["epoch"], e["split"]) for e in run.evaluations] == [
        *((epoch, split) for epoch in (10, 20, 30) for split in ("train", "valid")),
        *((40, split) for split in ("train", "valid", "test")),  # test data is seen once, when all is over
    ]
    assert len(seen) == 160 and seen[-1][:3] == (160, 160, run.history["loss"][-1])
    assert [entry for entry in logged if "split" in entry] == run.evaluations
    assert [entry for entry in logged if "t_sim" in entry] == run.logs


def test_the_loss_of_a_step_is_the_mean_over_its_batch() -> None:
    """Against a loop of ten lines: the same batches, the loss as torch writes it, AdamW as torch has it by default."""
    from depthscope.training.image_batches import ImageBatches

    task = tiny_task()
    model, _ = BUILD.model(task, RECIPE.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.lr, weight_decay=0.1)
    batches, losses = ImageBatches(task, RECIPE, torch.device("cpu")), []
    for step in range(8):
        images, labels = batches.at(step)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = RECIPE.lr * RECIPE.rate(step, 12)
        optimizer.step()
        losses.append(loss.item())
    run = train(BUILD, task, RECIPE)
    assert run.history["loss"][:8] == pytest.approx(losses, abs=1e-6)


@over("change", [{"accumulate": 16}], long=[{"accumulate": 3}])
def test_accumulated_parts_make_the_same_step(change: dict) -> None:
    """16 parts of a last batch of 4 images: twelve parts have none."""
    whole, parts = train(BUILD, tiny_task(), RECIPE), train(BUILD, tiny_task(), replace(RECIPE, **change))
    assert parts.history["loss"] == pytest.approx(whole.history["loss"], abs=1e-6)


def test_clipping_bounds_the_step_and_not_the_record() -> None:
    free, clipped = train(BUILD, tiny_task(), RECIPE), train(BUILD, tiny_task(), replace(RECIPE, clip=1e-3))
    assert clipped.history["grad_norm"][0] == pytest.approx(free.history["grad_norm"][0])
    assert clipped.history["loss"][1] != free.history["loss"][1]


def test_bfloat16_is_near_and_not_the_same() -> None:
    exact, rough = train(BUILD, tiny_task(), RECIPE), train(BUILD, tiny_task(), replace(RECIPE, precision="bf16"))
    assert rough.history["loss"] == pytest.approx(exact.history["loss"], rel=0.05)
    assert rough.history["loss"] != exact.history["loss"]


def test_a_learned_remedy_is_trained_and_not_decayed() -> None:
    build = replace(BUILD, remedy="de_escalate", remedy_settings={"tau": 0.5, "learnable": True})
    model, _ = build.model(tiny_task(), 0)
    plain, own = adamw(model, RECIPE).param_groups
    assert plain["weight_decay"] == 0.1 and own["weight_decay"] == 0.0 and len(own["params"]) == BUILD.depth
    assert train(build, tiny_task(), RECIPE).status == "done"


def test_a_rate_out_of_bounds_is_reported_as_divergence(tmp_path: Path) -> None:
    run = train(replace(BUILD, wiring="pre_norm"), tiny_task(), replace(RECIPE, lr=1e30, epochs=30), folder=tmp_path)
    assert run.status == "diverged" and " was " in run.reason and len(run.history["step"]) < 120
    assert Run.load(tmp_path / "run.json").to_dict() == run.to_dict()


@over("epochs", [1, 3])
def test_weights_that_are_not_finite_at_the_end_are_divergence(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step breaks them, when no later loss can tell."""
    last, update = RECIPE.epoch_steps(52) * epochs - 1, Stepper.update

    def broken(self: Stepper, step: int) -> tuple[float, float]:
        done = update(self, step)
        if step == last:
            next(self.bare.parameters()).data.view(-1)[0] = math.nan
        return done

    monkeypatch.setattr(Stepper, "update", broken)
    run = train(BUILD, tiny_task(), replace(RECIPE, epochs=epochs))
    assert run.status == "diverged" and run.reason == "weights were not finite at the end" and "test" in run.final
    assert (
        not_finite_end({"train": {"loss": 1.0}, "valid": {"loss": math.inf}}, True)
        == "the valid loss was inf at the end"
    )


@over("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_changes_no_weight(clip: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = Stepper.gradient

    def broken(self: Stepper, step: int) -> float:
        loss = gradient(self, step)
        if step == 5:
            next(self.bare.parameters()).grad.view(-1)[0] = math.inf  # type: ignore[union-attr]
        return loss

    monkeypatch.setattr(Stepper, "gradient", broken)
    run = train(BUILD, tiny_task(), replace(RECIPE, clip=clip))
    assert (run.status, run.reason) == ("diverged", "the norm of the gradient was inf at step 5")
    assert run.history["grad_norm"][-1] == math.inf and math.isfinite(run.final["test"]["loss"])


def test_divergence_is_told_by_the_losses() -> None:
    assert divergence([2.3, 1.0], 1, 10) == "" and divergence([2.3, math.inf], 7, 10) == "the loss was inf at step 7"
    assert divergence([30.0] * 19, 18, 10) == ""
    assert divergence([30.0] * 20, 40, 10) == "the loss was above 23.0 for 20 steps, 30 at step 40"
    assert divergence([30.0] * 19 + [2.0] + [30.0] * 10, 29, 10) == ""


@over("sent", [signal.SIGTERM], long=[signal.SIGINT])
def test_an_interrupt_ends_the_step_and_leaves_a_checkpoint(tmp_path: Path, sent: signal.Signals) -> None:
    def interrupt(done: int, *_: float) -> None:
        if done == 5:
            os.kill(os.getpid(), sent)

    before = signal.getsignal(sent)
    run = train(BUILD, tiny_task(), RECIPE, folder=tmp_path, progress=interrupt)
    assert run.status == "stopped" and run.reason == "asked to stop after 5 of 12 steps" and run.final == {}
    assert (tmp_path / "step_000005" / "state.json").exists() and signal.getsignal(sent) is before
    assert Run.load(tmp_path / "run.json").status == "stopped"
    on = train(BUILD, tiny_task(), RECIPE, folder=tmp_path)
    assert on.status == "done" and on.history == train(BUILD, tiny_task(), RECIPE).history


def test_a_second_interrupt_is_obeyed_at_once() -> None:
    def insist(done: int, *_: float) -> None:
        for _ in range(2):  # in this very thread: two that wait for another one may be taken for one
            signal.raise_signal(signal.SIGINT)

    was = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background begin with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            train(BUILD, tiny_task(), RECIPE, progress=insist)
    finally:
        signal.signal(signal.SIGINT, was)


def test_the_random_numbers_of_the_user_are_his_own() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(BUILD, tiny_task(), replace(RECIPE, augment="flip_crop"))
    assert torch.equal(torch.rand(3), expected)


def test_wrong_use_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"2 processes must train together; 1 do \(WORLD_SIZE is 1\).*torchrun"):
        train(BUILD, tiny_task(), RECIPE, processes=2)
    with pytest.raises(UnknownNameError, match=r"no way to train in parallel is called 'dpp'. Did you mean ddp"):
        train(BUILD, tiny_task(), RECIPE, parallel="dpp")
    with pytest.raises(UsageError, match="a tracker must have a folder"):
        train(BUILD, tiny_task(), RECIPE, log_with="tensorboard")
    with pytest.raises(UsageError, match="every_steps must be 1 or more"):
        train(BUILD, tiny_task(), RECIPE, every_steps=0)
    with pytest.raises(UnknownNameError, match=r"no tracker is called 'tensorbord'. Did you mean tensorboard"):
        train(BUILD, tiny_task(), RECIPE, folder=tmp_path, log_with="tensorbord")
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: [])
    with pytest.raises(MissingExtraError, match=r"the tracker wandb is not installed. pip install wandb"):
        train(BUILD, tiny_task(), RECIPE, folder=tmp_path, log_with="wandb")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="its folder must be writable"):
        train(BUILD, tiny_task(), RECIPE, folder=tmp_path / "file")


def test_two_trainers_never_share_a_folder(tmp_path: Path) -> None:
    def second(*_: float) -> None:
        with pytest.raises(UsageError, match="only one process may train there; another does"):
            lock_or_refuse(tmp_path)

    assert train(BUILD, tiny_task(), replace(RECIPE, epochs=1), folder=tmp_path, progress=second).status == "done"
    with lock_or_refuse(tmp_path / "other"):
        with pytest.raises(UsageError, match="only one process may train there"):
            train(BUILD, tiny_task(), RECIPE, folder=tmp_path / "other")
        run = train(BUILD, tiny_task(), replace(RECIPE, epochs=1), folder=tmp_path / "other", lock=False)
    with lock_or_refuse(tmp_path):  # it was given back
        assert run.status == "done"


def test_one_process_copies_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.Accelerator.reduce", lambda *_, **__: pytest.fail("nobody is there to add up with"))
    assert train(BUILD, tiny_task(), replace(RECIPE, epochs=1)).status == "done"


def test_a_tracker_is_told(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(BUILD, tiny_task(), RECIPE, folder=tmp_path, log_with="tensorboard")
    assert list(tmp_path.rglob("events.out.tfevents*"))


def test_the_command_trains_and_says_how_well(tmp_path: Path) -> None:
    call = ["train", "digits", "--remedy", "de_escalate", "--tau", "0.5", "--depth", "1", "--epochs", "1"]
    call += ["--set", "clip=1", "--set", "weights=xavier", "--folder", str(tmp_path)]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0 and "done after 19 steps" in done.stdout and "test " in done.stdout
    run = Run.load(tmp_path / "run.json")
    assert run.build.remedy_settings == {"tau": 0.5} and run.build.weights == "xavier" and run.recipe.clip == 1
    assert str(run) in done.stdout.replace("\n", "")
    smaller = ["train", "digits", "--depth", "1", "--epochs", "1", "--set", "train=128"]
    assert "done after 2 steps" in CliRunner().invoke(app, smaller).stdout
    assert "done after 2 steps" in CliRunner().invoke(app, [*smaller, "--remedy", "de_escalate"]).stdout
    with pytest.raises(UnknownNameError, match=r"digits: no option is called 'data'"):
        CliRunner().invoke(app, ["train", "digits", "--data", "x"], catch_exceptions=False)
    with pytest.raises(UnknownNameError, match=r"no setting is called 'clp'. Did you mean clip"):
        CliRunner().invoke(app, ["train", "digits", "--set", "clp=1"], catch_exceptions=False)
    with pytest.raises(UsageError, match=r"none was named. Add --remedy de_escalate"):
        CliRunner().invoke(app, ["train", "digits", "--tau", "1"], catch_exceptions=False)
    with pytest.raises(UsageError, match="must be a file; it is a folder"):
        CliRunner().invoke(app, ["train", "digits", "--json", str(tmp_path)], catch_exceptions=False)
