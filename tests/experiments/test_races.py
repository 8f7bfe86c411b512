"""Experiments that train: curves on one grid of steps, claims that fail when the paper's result is absent."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.experiments import races
from depthscope.experiments.beyond import depth_race, learning_rate, placement
from depthscope.experiments.races import Race, draw_bands, more_than_noise, run_race, training_curves
from depthscope.experiments.run import configured, module_of
from depthscope.experiments.yu2023 import fig6
from depthscope.reports.training_curves import smooth
from depthscope.training.arms import arm
from depthscope.training.build import Build
from depthscope.training.lane import Lane, thinned
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from loops import over

SMALL = Race(("post_norm",), (0,), {"depth": 2, "d": 8, "h": 2, "q": 8}, {"epochs": 1}, options={"train": 64})


def run_of(steps: int, status: str = "done") -> Run:
    """A run whose loss is its step."""
    run = Run(Build(), Recipe(), "digits", "f", status)
    run.history |= {name: [float(step) for step in range(steps)] for name in run.history}
    return run


def lane_of(*runs: Run) -> Lane:
    return Lane(arm("post_norm"), 1e-3, dict(enumerate(runs)), {})


def test_a_seed_that_diverged_is_on_the_steps_of_the_others() -> None:
    runs = [thinned(run, 1000) for run in (run_of(1000), run_of(101, "diverged"))]  # stretches of three steps
    assert runs[1].history["step"] == runs[0].history["step"][:34] and runs[0].history["step"][-1] == 999
    steps, mean, _, _ = lane_of(*runs).curve("batch_loss")
    assert len(steps) == 334 and mean[:33] == [3.0 * i + 1 for i in range(33)] and mean[34] == 103.0


def test_curves_are_put_together_by_step() -> None:
    short, whole = run_of(3, "diverged"), run_of(6)
    short.history["loss"][1] = math.nan
    steps, bands = training_curves([lane_of(short), lane_of(whole)])
    assert steps.tolist() == [0, 1, 2, 3, 4, 5] and bands[1, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert bands[0, 0].nan_to_num(-1).tolist() == [0, -1, 2, -1, -1, -1]


def test_lines_of_batches_are_smoothed_as_in_reports() -> None:
    drawn: list[Any] = []
    ax = SimpleNamespace(plot=lambda *line, **_: drawn.append(line), fill_between=lambda *_, **__: 0, axhline=lambda *_, **__: 0)  # fmt: skip
    line = torch.arange(30.0) ** 2
    line[25:] = math.nan
    draw_bands(ax, torch.arange(30), line.expand(1, 3, 30), ["a"], batches=True)
    ((steps, mean),) = drawn
    assert steps.tolist() == [*range(25)] and mean == smooth([i**2 for i in range(25)])


def test_an_interrupt_of_a_training_ends_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "train", lambda *_: run_of(1, "stopped"))
    with pytest.raises(KeyboardInterrupt):
        run_race(replace(SMALL, side_by_side=False))


def test_a_folder_is_never_ignored() -> None:
    with pytest.raises(UsageError, match="runs are kept only when each is a process of its own"):
        run_race(replace(SMALL, side_by_side=False, folder="out/x"))


@over("module", [fig6, depth_race, learning_rate, placement])
def test_one_trial_is_enough_to_train(module: Any) -> None:
    name = module.__name__.removeprefix("depthscope.experiments.").replace(".", "/")
    assert configured(name, module.Config(), {"trials": 1, "side_by_side": False}).trials == 1
    with pytest.raises(UsageError, match="trials must be 1 or more"):
        configured(name, module.Config(), {"trials": 0})
    with pytest.raises(UsageError, match="trials must be 2 or more"):
        configured("yu2023/fig2", module_of("yu2023/fig2").Config(), {"trials": 1})


def test_a_part_of_the_images_can_be_taken() -> None:
    assert fig6.race(fig6.Config()).options == {} and fig6.race(fig6.Config(train=500)).options == {"train": 500}
    part = fig6.race(fig6.Config(data="cifar10.npz", train=500, test=200))
    assert part.options == {"data": "cifar10.npz", "train": 500, "test": 200} and part.task == "cifar10"


def failed(module: Any, numbers: dict[str, Any], cfg: Any) -> list[str]:
    """What does not hold and was expected to."""
    tensors = {name: torch.as_tensor(value) for name, value in numbers.items()}
    return [claim.says for claim in module.claims(tensors, cfg) if claim.expected and not claim.holds]


FIG6 = {  # of the run in docs/findings.md
    "train_loss": [[0.0816, 0.1299, 0.1020], [0.0241, 0.0280, 0.0242], [0.0186, 0.0185, 0.0187]],
    "test_accuracy": [[0.9750, 0.9778, 0.9778], [0.9861, 0.9750, 0.9861], [0.9833, 0.9861, 0.9889]],
    "t_sim": [[0.5, 0.356], [0.5, 0.155], [0.0, 0.0]],
}


@over(
    "name, worse, says",
    [
        ("train_loss", [0.02] * 3, "post-norm (half the rate) over de-escalated"),
        ("train_loss", [0.027] * 3, "pre-norm above de-escalated"),
        ("train_loss", [0.0241, 0.0280, 0.0242], "pre-norm above de-escalated"),  # the same
        ("train_loss", [0.0240, 0.0279, 0.0262], "pre-norm above de-escalated"),  # better in two seeds of three
        ("test_accuracy", [0.975, 0.99, 0.99], "de-escalated above post-norm"),  # no better in one seed
        ("test_accuracy", [0.9750, 0.9778, 0.9778], "de-escalated above post-norm"),
    ],
)
def test_figure_6_fails_where_the_papers_result_is_absent(name: str, worse: list[float], says: str) -> None:
    assert failed(fig6, FIG6, fig6.Config()) == []
    place = 0 if "half" in says else 2
    numbers = FIG6 | {name: [worse if i == place else row for i, row in enumerate(FIG6[name])]}
    assert any(says in one for one in failed(fig6, numbers, fig6.Config()))


RATES = {
    "train_loss": [[2.30] * 3, [0.178, 0.225, 0.209], [0.50, 0.63, 0.62], [0.024, 0.028, 0.024], [0.019] * 3],
    "valid_loss": [[2.30] * 3, [0.20, 0.23, 0.21], [0.52, 0.65, 0.64], [0.09] * 3, [0.07] * 3],
    "test_accuracy": [[0.1, 0.08, 0.08], [0.972, 0.967, 0.978], [0.947, 0.925, 0.925], [0.98] * 3, [0.983, 0.986, 0.989]],
}  # fmt: skip


def test_a_rate_that_hardly_recovers_is_not_enough() -> None:
    assert failed(learning_rate, RATES, learning_rate.Config()) == []
    slow = RATES | {"train_loss": [[2.30] * 3, [1.5] * 3, [1.9] * 3, *RATES["train_loss"][3:]]}
    assert failed(learning_rate, slow, learning_rate.Config()) == ["post-norm at its best rate: the same"]
    short = replace(learning_rate.Config(), epochs=2)
    (ahead,) = failed(learning_rate, slow, short)  # by one to two points, as chance may have it with 360 images
    assert ahead == "test accuracy, de-escalated above post-norm at its best rate by"
    behind = [RATES["test_accuracy"][0], [0.8] * 3, *RATES["test_accuracy"][2:]]
    assert failed(learning_rate, slow | {"test_accuracy": behind}, short) == []


@over("module, numbers", [(fig6, FIG6), (learning_rate, RATES)])
def test_arms_that_are_alike_meet_no_claim(module: Any, numbers: dict[str, Any]) -> None:
    same = {name: [value[0]] * len(value) for name, value in numbers.items()}
    for given in (numbers, same):
        tensors = {name: torch.as_tensor(value) for name, value in given.items()}
        counted = [claim for claim in module.claims(tensors, module.Config()) if claim.counted]
        assert len(counted) >= 3
        if given is numbers:
            assert all(claim.can_fail for claim in counted)
        else:
            assert not [claim.says for claim in counted if claim.holds and "a guess" not in claim.says]


def test_fewer_than_three_seeds_are_asked_for_no_p() -> None:
    one, other = torch.tensor([0.9, 0.8]), torch.tensor([0.7, 0.7])
    (claim,) = more_than_noise("x above y", one, other)
    assert claim.reported and claim.says == "x above y by" and claim.value == pytest.approx(0.15)
    (claim,) = more_than_noise("x above y", torch.tensor([0.9, 0.8, math.nan]), torch.zeros(3))
    assert claim.counted and not claim.holds
    (claim,) = more_than_noise("x above y", torch.tensor([0.9, 0.8, 0.85]), torch.zeros(3))
    assert claim.holds and claim.says == "x above y, paired p"


def test_the_best_rate_is_chosen_on_the_validation_split() -> None:
    accuracy = [*RATES["test_accuracy"]]
    accuracy[2] = [0.999] * 3  # the best on test alone
    assert failed(learning_rate, RATES | {"test_accuracy": accuracy}, learning_rate.Config()) == []
    lost = [[math.nan] * 3, *RATES["valid_loss"][1:]]
    assert failed(learning_rate, RATES | {"valid_loss": lost}, learning_rate.Config()) == []


@over("rates", [[1e-3], [1e-3, 1e-3], [1e-4, 1e-3]])
def test_rates_must_fall(rates: list[float]) -> None:
    with pytest.raises(UsageError, match="rates must be two or more, each below the one before"):
        ds.reproduce("beyond/learning_rate", smoke=True, rates=rates)


def test_half_trained_is_not_trained_at_full_size() -> None:
    full = placement.Config()
    losses = torch.tensor([[2.3]] + [[0.23]] * (len(placement.arms(full)) - 1))
    assert failed(placement, {"train_loss": losses}, full) == []
    losses[2] = 1.0  # 43 % of a guess
    assert failed(placement, {"train_loss": losses}, full) == [
        "tau 1 on the residual stream: largest training loss over ln 10"
    ]
    assert failed(placement, {"train_loss": losses}, replace(full, epochs=1)) == []


def test_a_race_searches_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text tasks search by default; the arms of a race have the rates that it gives them."""
    asked: dict[str, Any] = {}

    def compare(*_: Any, **settings: Any) -> Any:
        asked.update(settings)
        return SimpleNamespace(lanes=[])

    monkeypatch.setattr("depthscope.experiments.races.compare", compare)
    assert run_race(Race(("post_norm",), (0,), {}, {}, task="pydoc")) == [] and asked["search"] == 0
