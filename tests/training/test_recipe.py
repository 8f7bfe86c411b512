"""A recipe is checked once, and everything else follows from it."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import BUILD, tiny_task

from depthscope.errors import UnknownNameError, UsageError
from depthscope.traces.installed import OWN
from depthscope.training.arms import arm
from depthscope.training.batches import seeded, share
from depthscope.training.build import Build, scale_scores_
from depthscope.training.image_batches import ImageBatches, order
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from loops import over


def test_the_rate_falls_at_shares_of_all_steps_and_warms_up() -> None:
    recipe = Recipe(milestones=(0.7, 0.9), gamma=0.2, warmup=4)
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[69] == 1.0 and rates[70] == rates[89] == 0.2 and rates[90] == rates[99] == 0.2**2


def test_the_last_batch_of_an_epoch_may_be_short() -> None:
    recipe = Recipe(epochs=6, batch=64)
    assert recipe.epoch_steps(1200) == 19 and recipe.steps(1200) == 114 and recipe.steps(64) == 6


def test_a_recipe_survives_json_and_tells_what_differs() -> None:
    recipe = Recipe(lr=3e-4, milestones=(0.5,))
    assert Recipe(**json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert recipe.differences(recipe) == []
    assert recipe.differences(replace(recipe, lr=1e-3, seed=1)) == ["lr: 0.0003 became 0.001", "seed: 0 became 1"]


@over(
    "wrong, says",
    [
        ({"epochs": 0}, "epochs must be a whole number, 1 or more; got 0"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"lr": float("nan")}, "lr must be positive"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"milestones": (70, 90)}, "shares of all steps"),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more"),
        ({"batch": 2.5}, "batch must be a whole number"),
        ({"lr": "abc"}, "lr must be positive and finite; got 'abc'"),
        ({"clip": "abc"}, "clip must be positive"),
        ({"weight_decay": None}, "weight_decay must be 0 or more"),
        ({"betas": 1}, "betas must be a list of numbers; got 1"),
        ({"milestones": 0.5}, "milestones must be a list of numbers; got 0.5"),
        ({"milestones": ["a"]}, "milestones must be a list of numbers"),
        ({"seed": 2**63}, r"seed must be below 2\^63"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Recipe(**wrong)


def test_a_wrong_precision_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"no precision is called 'bf61'. Did you mean bf16"):
        Recipe(precision="bf61")
    with pytest.raises(UnknownNameError, match=r"no augmentation is called 'flip'. Did you mean flip_crop"):
        Recipe(augment="flip")


def test_an_epoch_sees_every_image_once_in_an_order_of_its_own() -> None:
    first, second = order(52, 0, 0), order(52, 0, 1)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(52))
    assert not torch.equal(first, second) and torch.equal(first, order(52, 0, 0))
    assert len({seeded(a, b) for a in range(50) for b in range(50)}) == 2500


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    task, recipe = tiny_task(), Recipe(batch=16, augment="flip_crop")
    images, labels = ImageBatches(task, recipe, torch.device("cpu")).at(6)
    torch.manual_seed(99)
    later = ImageBatches(task, recipe, torch.device("cpu"))
    later.at(3)
    again, same = later.at(6)
    assert (
        torch.equal(images, again)
        and torch.equal(labels, same)
        and len(ImageBatches(task, recipe, torch.device("cpu")).at(7)[1]) == 4
    )


@over("count, parts", [(64, 2), (7, 3), (1, 2), (2, 8)])
def test_the_parts_of_a_batch_are_the_batch(count: int, parts: int) -> None:
    images, labels = torch.arange(count).view(-1, 1, 1, 1), torch.arange(count)
    cut = [share(images, labels, index, parts) for index in range(parts)]
    assert torch.cat([y for _, y, weight in cut if weight]).tolist() == labels.tolist()
    assert all(len(x) == len(y) >= 1 for x, y, _ in cut)  # nobody may stay away when gradients are exchanged


@over("words", ["{}+de_escalate:tau=0.5", "{}+de_escalate:tau=0.5,learnable=true", "{}+feat_scale"])
@over("wiring", ["post_norm", "pre_norm"])
def test_arms_of_one_wiring_start_from_the_same_weights(wiring: str, words: str) -> None:
    task = tiny_task()
    plain, handle = arm(wiring).build(BUILD).model(task, 3)
    fixed, fix = arm(words.format(wiring)).build(BUILD).model(task, 3)
    assert handle is None and fix is not None
    own, same = plain.state_dict(), fixed.state_dict()
    assert own.keys() == {name for name in same if not name.startswith(OWN)}
    assert all(torch.equal(own[name], same[name]) for name in own)
    other, _ = arm(wiring).build(BUILD).model(task, 4)
    assert not torch.equal(plain.head.weight, other.head.weight)  # type: ignore[union-attr, arg-type]


def test_a_build_says_what_is_wrong_with_it() -> None:
    with pytest.raises(UsageError, match=r"none was named, and got \{'tau': 1.0\}"):
        Build(remedy_settings={"tau": 1.0})
    with pytest.raises(UnknownNameError, match="Did you mean DeEscalate"):
        replace(BUILD, remedy="de_escalat").model(tiny_task(), 0)
    with pytest.raises(UsageError, match=r"must be arguments of DeEscalate; .*'sigma'"):
        replace(BUILD, remedy="de_escalate", remedy_settings={"sigma": 1.0}).model(tiny_task(), 0)
    for word in ("no", "maybe", 1):
        with pytest.raises(UsageError, match="learnable of DeEscalate must be true or false; got"):
            replace(BUILD, remedy="de_escalate", remedy_settings={"learnable": word}).model(tiny_task(), 0)
    with pytest.raises(UsageError, match="output must be true or false; got 'no'"):
        Build(output="no")  # type: ignore[arg-type]


def test_scores_are_a_factor_on_what_the_softmax_reads() -> None:
    task = tiny_task()
    plain, small = (replace(BUILD, scores=scores).model(task, 3)[0].state_dict() for scores in (1.0, 0.25))
    for name, weight in plain.items():
        factor = 0.5 if name.endswith(("W_q.weight", "W_k.weight")) else 1.0  # a root of it on each of the two
        assert torch.equal(small[name], factor * weight), name
    with pytest.raises(UsageError, match="scores must be positive and finite; got 0"):
        Build(scores=0)
    with pytest.raises(UsageError, match="acts on W_q and W_k of reference models"):
        scale_scores_(torch.nn.Linear(2, 2), 0.5)


def test_alpha_and_activation_reach_the_blocks() -> None:
    model, _ = replace(BUILD, alpha=0.5, activation="swiglu").model(tiny_task(), 0)
    block: Any = next(module for module in model.modules() if type(module).__name__ == "Block")
    assert block.wiring.alpha == 0.5 and hasattr(block.ffn, "W_gate")


def test_a_record_survives_json_with_numbers_that_are_not_finite(tmp_path) -> None:
    run = Run(BUILD, Recipe(), "stripes", "abc", status="diverged", reason="the loss was nan at step 1")
    run.history["loss"] += [1.5, float("inf"), float("nan")]
    run.final = {"test": {"loss": float("nan"), "accuracy": 0.1}}
    run.save(tmp_path / "run.json")
    again = Run.load(tmp_path / "run.json")
    assert again.build == BUILD and again.recipe == Recipe() and again.history["loss"][:2] == [1.5, float("inf")]
    assert again.to_dict() == run.to_dict() and "diverged (the loss was nan" in str(again)


def test_the_cosine_falls_from_the_whole_rate_to_nothing() -> None:
    recipe = Recipe(schedule="cosine")
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert rates[0] == 1.0 and rates[50] == pytest.approx(0.5) and 0 < rates[99] < 3e-4
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    truth = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for rate in rates:
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        truth.step()
    with pytest.raises(UnknownNameError, match="schedule"):
        Recipe(schedule="linear")


def test_the_batches_of_two_epochs_hold_every_image_in_another_order() -> None:
    task = tiny_task()
    images = ImageBatches(task, Recipe(batch=16), torch.device("cpu"))
    names = {tuple(row): name for name, row in enumerate(task.train.images.flatten(1).tolist())}

    def epoch(number: int) -> list[int]:
        taken = torch.cat([images.taken(number * 4 + turn)[0] for turn in range(4)])
        return [names[tuple(row)] for row in taken.flatten(1).tolist()]

    assert sorted(epoch(0)) == sorted(epoch(1)) == list(range(52)) and epoch(0) != epoch(1)
