"""The trainings of Dovonon et al.: arms that are what they are called, draws per seed, tests that are paired, claims."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.experiments import smoothing_arms
from depthscope.experiments.dovonon2024 import corrupted, deeper, less_data, text
from depthscope.experiments.races import Race
from depthscope.experiments.run import configured
from depthscope.experiments.smoothing_arms import ARMS, PAIRS, Setting, compared, high_to_low, races_of, train_all
from depthscope.training.arms import arm
from depthscope.training.build import Build
from depthscope.training.lane import Lane
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from loops import over


def test_arms_are_what_they_are_called() -> None:
    found = {name: arm(words) for name, words in ARMS.items()}
    assert {one.wiring for one in found.values()} == {"pre_norm"} and found["free"].remedy is None
    assert found["FeatScale"].remedy == "feat_scale"
    modes = {name: found[name].settings for name in ("sharpen", "smooth", "symmetric")}
    assert modes == {"sharpen": {"mode": "sharpen"}, "smooth": {"mode": "smooth"}, "symmetric": {"mode": "free"}}
    assert {name for pair in PAIRS for name in pair} == {*ARMS}
    assert {*text.ARMS.items()} < {*ARMS.items()}


def test_what_is_drawn_is_drawn_anew_with_each_seed_and_the_same_for_all_arms() -> None:
    cfg = less_data.Config(trials=3, seed=4)
    few, *_, whole = (races_of(cfg, "digits", setting) for setting in less_data.settings(cfg))
    assert [(list(race.seeds), race.options) for race in few] == [
        ([seed], {"share": 0.1, "data_seed": seed}) for seed in (4, 5, 6)
    ]
    assert {tuple(race.arms) for race in (*few, *whole)} == {tuple(ARMS.values())}
    assert len(whole) == 1 and list(whole[0].seeds) == [4, 5, 6] and whole[0].options == {}


def test_all_shares_have_the_same_steps() -> None:
    cfg = less_data.Config()
    epochs = [races_of(cfg, "digits", setting)[0].recipe["epochs"] for setting in less_data.settings(cfg)]
    steps = [Recipe(epochs=one, batch=cfg.batch).steps(round(1200 * s)) for one, s in zip(epochs, cfg.shares, strict=True)]  # fmt: skip
    assert epochs == [100, 40, 20, 10] and max(steps) / min(steps) < 1.06


def test_cifar_is_trained_on_where_it_is_given() -> None:
    cfg = deeper.Config(cifar="folder", cifar_train=500)
    assert smoothing_arms.data_of(cfg) == {"digits": 360, "CIFAR-10": 2000}
    (race,) = races_of(cfg, "CIFAR-10", Setting(24))
    assert race.task == "cifar10" and race.options == {"data": "folder", "train": 500, "test": 2000}
    assert race.model["depth"] == 24 and race.recipe["epochs"] == 8
    assert [*smoothing_arms.data_of(deeper.Config())] == ["digits"]


@pytest.mark.long
def test_a_whole_experiment_on_both_data_sets(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    parts = (("train", 60), ("test", 20))
    arrays: dict[str, Any] = {f"{part}_images": draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for part, n in parts}  # fmt: skip
    np.savez(tmp_path / "c.npz", **arrays, **{f"{part}_labels": np.arange(n) % 10 for part, n in parts})
    sizes = {"cifar": str(tmp_path / "c.npz"), "cifar_train": 32, "cifar_test": 20, "cifar_epochs": 1, "epochs": 1}
    found = ds.reproduce("dovonon2024/deeper", smoke=True, depths=(1,), **sizes)
    assert {tuple(value.shape) for value in found.numbers.values()} == {(2, 1, len(ARMS), 1)}
    assert [claim.says.partition(":")[0] for claim in found.claims] == ["digits", "CIFAR-10"]
    assert found.save(tmp_path).stat().st_size > 10_000


def made_up(race: Race, *, done: int, total: int) -> list[Lane]:
    """Runs whose numbers tell their arm, depth and seed."""
    lanes = []
    for place, words in enumerate(race.arms):
        runs = {seed: Run(Build(), Recipe(seed=seed), race.task, "f", "done") for seed in race.seeds}
        for seed, run in runs.items():
            run.final["test"] = {
                "accuracy": place + 10 * race.model["depth"] + 1000 * seed + race.options.get("share", 0)
            }
            run.logs.append({"t_sim": [1.0, 0.2], "t_div": [0.0, 0.8]})
        lanes.append(Lane(arm(words), 1e-3, runs, {}))
    told.append((done, total))
    return lanes


told: list[tuple[int, int]] = []


def test_lanes_are_put_together_by_data_setting_arm_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing_arms, "run_race", made_up)
    told.clear()
    cfg = less_data.Config(trials=2, seed=1)
    lanes = train_all(cfg, [Setting(3), Setting(5, {"share": 0.5})])
    accuracy = smoothing_arms.measured(lanes, "test", "accuracy")
    expected = [[[a + 10 * depth + 1000 * seed + share for seed in (1, 2)] for a in range(5)] for depth, share in ((3, 0), (5, 0.5))]  # fmt: skip
    assert accuracy.tolist() == [expected] and told == [(0, 20), (10, 20), (15, 20)]
    torch.testing.assert_close(high_to_low(lanes), torch.full((1, 2, 5, 2), 2.0))


def test_pairs_are_compared_as_scipy_does_and_corrected_within_a_setting() -> None:
    from scipy.stats import ttest_rel

    torch.manual_seed(0)
    scores = torch.randn(3, 5, 6).double()
    found = compared(scores, list(ARMS), PAIRS)
    for row, values in zip(found, scores, strict=True):
        of = dict(zip(ARMS, values.numpy(), strict=True))
        p = [ttest_rel(of[a], of[b]).pvalue for a, b in PAIRS]
        order, largest = np.argsort(p), 0.0
        for rank, place in enumerate(order):
            largest = max(largest, min(1.0, p[place] * (len(p) - rank)))
            assert row[place].p == pytest.approx(largest, rel=1e-6)
        for one, (a, b) in zip(row, PAIRS, strict=True):
            assert one.mean == pytest.approx((of[a] - of[b]).mean()) and one.clear == (one.p < 0.05)
            assert one.p_above == (one.p if of[a].mean() > of[b].mean() else 1.0)


def scores(*arms: float, settings: int = 2, seeds: int = 5) -> Tensor:
    """(1, settings, arms, seeds): the same means in all settings, and noise of a tenth of a point over seeds."""
    noise = torch.tensor([0.001, -0.0007, 0.0004, -0.0009, 0.0002])[:seeds]
    order = torch.stack([noise.roll(turn) for turn in range(len(arms))])
    return (torch.tensor(arms).unsqueeze(1) + order).expand(1, settings, -1, -1).clone()


RATIO = scores(2.0, 3.0, 1.0, 2.0, 2.0)
# free, sharpen, smooth, FeatScale, symmetric
FIRST_IS_RIGHT, LATER_IS_RIGHT, NOTHING = (0.95, 0.97, 0.95, 0.95, 0.95), (0.95, 0.95, 0.97, 0.95, 0.95), (0.95,) * 5


def failed(module: Any, numbers: dict[str, Tensor], cfg: Any) -> list[str]:
    """What does not hold, whether it was expected to or not."""
    return [claim.says for claim in module.claims(numbers, cfg) if not claim.holds]


@over("module", [deeper, less_data])
@over(
    "means, missed",
    [
        (FIRST_IS_RIGHT, ["smooth above free (later ones)", "smooth above sharpen (later ones)"]),
        (LATER_IS_RIGHT, ["sharpen above free (first version)", "sharpen above FeatScale (first version)"]),
        (NOTHING, ["sharpen above free", "sharpen above FeatScale", "smooth above free", "smooth above sharpen"]),
    ],
)
def test_claims_hold_for_the_version_that_is_right(module: Any, means: tuple[float, ...], missed: list[str]) -> None:
    numbers = {"test_accuracy": scores(*means), "hfc_lfc": RATIO}
    numbers["test_accuracy"][:, 0] -= 0.02 * (module is less_data)
    found = failed(module, numbers, module.Config())
    assert len(found) == len(missed) and all(part in one for part, one in zip(missed, found, strict=True))


def test_a_sign_that_is_not_seen_and_an_arm_that_does_not_train_are_told() -> None:
    numbers = {"test_accuracy": scores(0.95, 0.97, 0.8, 0.95, 0.95), "hfc_lfc": scores(2.0, 1.0, 3.0, 2.0, 2.0)}
    found = failed(deeper, numbers, deeper.Config())
    assert "sharpen over smooth" in found[0] and "worst arm and depth" in found[1]
    less = {"test_accuracy": scores(*FIRST_IS_RIGHT), "hfc_lfc": RATIO}
    for more in (0.01, 0.0, -0.001):  # worse, the same, better by less than one image
        less["test_accuracy"][:, 0] = less["test_accuracy"][:, 1] + more
        assert any("better than fewest in every arm" in one for one in failed(less_data, less, less_data.Config()))


def test_corruption_is_compared_at_its_worst() -> None:
    cfg = corrupted.Config()
    worse = torch.tensor([0.0, 0.1, 0.2, 0.3]).view(1, 4, 1, 1)
    damage = {kind: scores(*FIRST_IS_RIGHT, settings=4) - worse for kind in ("noise", "blur")}
    numbers = {**damage, "label_noise": scores(*NOTHING, settings=3) - worse[:, :3], "hfc_lfc": scores(2.0, 3.0, 1.0, 2.0, 2.0, settings=3)}  # fmt: skip
    found = failed(corrupted, numbers, cfg)
    first = [f"digits, {where}: smooth above {other} (later ones), paired p" for where in ("noise 0.4", "blur 1") for other in ("free", "sharpen")]  # fmt: skip
    assert found[:4] == first and len(found) == 8 and all("labels wrong 0.4" in one for one in found[4:])
    names = corrupted.rows_of(numbers, cfg, 0)
    assert [*names] == ["as they are", "noise 0.1", "noise 0.2", "noise 0.4", "blur 0.5", "blur 0.75", "blur 1", "labels wrong 0.2", "labels wrong 0.4"]  # fmt: skip
    torch.testing.assert_close(names["blur 1"], numbers["blur"][0, -1])
    for more in (0.0, 0.001, 0.1):  # damage that changes nothing, less than one image, or makes it better
        numbers["noise"] = numbers["noise"][:, :1] + more / 0.3 * worse
        assert any("costs every arm accuracy" in one for one in failed(corrupted, numbers, cfg))


def test_forcing_that_does_not_hurt_text_is_told() -> None:
    numbers = {"gap": torch.zeros(4, 3), "hfc_lfc": RATIO[0, 0, :4, :3], "by_frequency": torch.tensor(3.25)}
    for means, missed in (((2.3, 2.4, 2.4, 2.3), 0), ((2.3, 2.2, 2.4, 2.3), 1), ((2.3, 2.3, 2.3, 2.3), 2)):
        found = failed(text, numbers | {"test_loss": scores(*means, seeds=3)[0, 0]}, text.Config())
        assert len(found) == missed and all("forcing hurts" in one for one in found)
    leaky = numbers | {"test_loss": scores(2.3, 2.4, 2.4, 2.3, seeds=3)[0, 0], "gap": torch.full((4, 3), 0.1)}
    assert failed(text, leaky, text.Config()) == ["no arm sees the future: honest and forced loss, apart by"]


@over("module", [deeper, less_data])
def test_two_seeds_are_asked_for_no_p(module: Any) -> None:
    numbers = {"test_accuracy": scores(*NOTHING, seeds=2), "hfc_lfc": RATIO}
    found = module.claims(numbers, module.Config(trials=2))
    assert len(found) == 1 + (module is deeper) and not any(math.isnan(claim.value) for claim in found)


@over("module", [deeper, less_data, corrupted])
def test_no_claim_is_met_by_arms_that_are_all_alike(module: Any) -> None:
    names = ("test_accuracy", "noise", "blur", "label_noise", "hfc_lfc")
    numbers = {name: torch.full((1, 3 if name == "label_noise" else 4, len(ARMS), 5), 0.5) for name in names}
    claims = [claim for claim in module.claims(numbers, module.Config()) if claim.counted]
    assert claims and not any(claim.holds for claim in claims) and all(claim.can_fail for claim in claims)


@over("module", [deeper, less_data, corrupted])
def test_a_few_epochs_are_only_asked_whether_the_sign_is_seen(module: Any) -> None:
    numbers = {name: scores(*NOTHING) for name in ("test_accuracy", "noise", "blur", "label_noise")} | {
        "hfc_lfc": RATIO
    }
    assert len(module.claims(numbers, replace(module.SMOKE, trials=5))) == 1


@over("module", [deeper, less_data])
def test_each_data_set_is_judged_by_its_own_epochs(module: Any) -> None:
    numbers = {"test_accuracy": scores(*NOTHING).repeat(2, 1, 1, 1), "hfc_lfc": RATIO.repeat(2, 1, 1, 1)}
    says = [claim.says for claim in module.claims(numbers, module.Config(cifar="folder", cifar_epochs=1))]
    assert len([one for one in says if "digits" in one]) == 6 and len([one for one in says if "CIFAR-10" in one]) == 1


def test_settings_that_cannot_be_meant_are_told() -> None:
    with pytest.raises(UsageError, match=r"shares must rise, above 0 and up to 1; got \(1.0, 0.5\)"):
        less_data.settings(less_data.Config(shares=(1.0, 0.5)))
    with pytest.raises(UsageError, match="corrupted: blur must rise, from above 0; got"):
        corrupted.settings(corrupted.Config(blur=(0.0, 1.0)))
    for module in (deeper, less_data, corrupted, text):
        name = module.__name__.removeprefix("depthscope.experiments.").replace(".", "/")
        assert configured(name, module.Config(), {"trials": 1}).trials == 1


def test_damage_costs_no_training() -> None:
    first, *others = corrupted.settings(corrupted.Config())
    assert first.options == {"noise": [0.1, 0.2, 0.4], "blur": [0.5, 0.75, 1.0]} and len(others) == 2
    assert [setting.options for setting in others] == [{"label_noise": 0.2}, {"label_noise": 0.4}]
