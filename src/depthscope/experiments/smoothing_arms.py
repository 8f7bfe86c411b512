"""What the trainings of Dovonon et al. 2024 have in common: arms forced to smooth or to sharpen, data, paired tests.

Two versions of the paper say opposite things of images: the first that sharpening helps, above all where data are few
or bad and models deep, and beats FeatScale; the later ones that smoothing rather than sharpening can help.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.races import TEST_IMAGES, Race, ends, run_race
from depthscope.experiments.trainings import Sizes
from depthscope.training.lane import Lane
from depthscope.training.significance import FEWEST, LEVEL, holm, paired

ARMS = {  # as the paper's ViT, all are pre-norm
    "free": "pre_norm",
    "sharpen": "pre_norm+spectral_h:mode=sharpen",
    "smooth": "pre_norm+spectral_h:mode=smooth",
    "FeatScale": "pre_norm+feat_scale",
    "symmetric": "pre_norm+spectral_h:mode=free",  # a control: the form of the two, and no sign forced upon it
}
FIRST = (("sharpen", "free"), ("sharpen", "FeatScale"))  # who is ahead of whom, by the first version
LATER = (("smooth", "free"), ("smooth", "sharpen"))  # by the later ones
CONTROL = (("symmetric", "free"), ("sharpen", "symmetric"), ("smooth", "symmetric"))  # the form, and the sign in it
PAIRS = (*FIRST, *LATER, ("FeatScale", "free"), *CONTROL)
TAUGHT = 5  # epochs, from which on it is asked who is better
APART = 1.1  # HFC/LFC of arms that sharpen over that of arms that smooth, at least: a tenth
Said = tuple[list[Row], dict[str, list["Ahead"]]]


@dataclass(frozen=True)
class ImageSizes(Sizes):
    """Of a ViT, trained on digits.

    cifar: where CIFAR-10 is (its folder, a .npz or a hub id), to train on a part of it too; "" leaves it out.
    """

    epochs: int = 10
    lr: float = 1e-3
    trials: int = 5
    cifar: str = ""
    cifar_train: int = 4000
    cifar_test: int = 2000
    cifar_epochs: int = 8


@dataclass(frozen=True)
class Setting:
    """What an experiment varies: the depth, options of the task, and how many times the epochs of the others."""

    depth: int
    options: dict[str, Any] = field(default_factory=dict)
    times: float = 1.0


def data_of(cfg: ImageSizes) -> dict[str, int]:
    """What is trained on, and how many test images it has."""
    return {"digits": TEST_IMAGES} | ({"CIFAR-10": cfg.cifar_test} if cfg.cifar else {})


def epochs_of(cfg: ImageSizes, data: str) -> int:
    return cfg.epochs if data == "digits" else cfg.cifar_epochs


def outcome(cfg: ImageSizes, settings: Sequence[Setting]) -> dict[str, Tensor]:
    """What is measured of all trainings at the end, each (data, settings, arms, seeds)."""
    lanes = train_all(cfg, settings)
    return {
        "test_accuracy": measured(lanes, "test", "accuracy"),
        "test_loss": measured(lanes, "test", "loss"),
        "train_loss": measured(lanes, "train", "loss"),
        "hfc_lfc": high_to_low(lanes),
    }


def train_all(cfg: ImageSizes, settings: Sequence[Setting]) -> list[list[list[Lane]]]:
    """Lanes of all arms with all seeds, by data and by setting."""
    races = [[races_of(cfg, data, setting) for setting in settings] for data in data_of(cfg)]
    done, total = 0, sum(race.runs for rows in races for row in rows for race in row)
    found = []
    for rows in races:
        found.append(list[list[Lane]]())
        for row in rows:
            parts = []
            for race in row:
                parts.append(run_race(race, done=done, total=total))
                done += race.runs
            found[-1].append([reduce(joined, lanes) for lanes in zip(*parts, strict=True)])
    return found


def joined(lane: Lane, other: Lane) -> Lane:
    """The runs of both, of the same arm with other seeds."""
    return replace(lane, runs=lane.runs | other.runs)


def races_of(cfg: ImageSizes, data: str, setting: Setting) -> list[Race]:
    """One race; or one for each seed where something is drawn, for the draw is then a part of the spread."""
    cifar = {"data": cfg.cifar, "train": cfg.cifar_train, "test": cfg.cifar_test} if data == "CIFAR-10" else {}
    epochs = max(1, round(setting.times * epochs_of(cfg, data)))
    recipe = {"epochs": epochs, "batch": cfg.batch, "lr": cfg.lr, "eval_every": epochs, "log_every": 0}
    options, task = {**cifar, **setting.options}, "cifar10" if cifar else "digits"
    race = cfg.race(ARMS.values(), cfg.model(setting.depth), recipe, task, **options)
    if not setting.options:
        return [race]
    return [replace(race, seeds=(seed,), options=race.options | {"data_seed": seed}) for seed in cfg.seeds]


def measured(lanes: list[list[list[Lane]]], split: str, what: str) -> Tensor:
    """A number of the end, (data, settings, arms, seeds)."""
    return torch.stack([torch.stack([ends(row, split, what) for row in rows]) for rows in lanes])


def high_to_low(lanes: list[list[list[Lane]]]) -> Tensor:
    """HFC/LFC = sqrt(t_div / t_sim) after the last block of the trained model, (data, settings, arms, seeds).

    How large the differences between tokens are beside their mean: it falls where a model smooths.
    """
    return torch.stack([torch.stack([_high_to_low(row) for row in rows]) for rows in lanes])


def _high_to_low(lanes: list[Lane]) -> Tensor:
    last = [[run.logs[-1] for run in lane.runs.values()] for lane in lanes]
    return torch.tensor([[math.sqrt(one["t_div"][-1] / one["t_sim"][-1]) for one in row] for row in last])


@dataclass(frozen=True)
class Ahead:
    """By how much the first of two arms is above the other: mean and deviation over seeds, and p, corrected."""

    mean: float
    spread: float
    p: float

    @property
    def p_above(self) -> float:
        """p where the first is above; 1 where it is not."""
        return self.p if self.mean > 0 else 1.0

    @property
    def clear(self) -> bool:
        """Whether it is more than noise, in either direction."""
        return self.p < LEVEL


def compared(
    scores: Tensor, arms: Sequence[str] = tuple(ARMS), pairs: Sequence[tuple[str, str]] = PAIRS, resolution: float = 0.0
) -> list[list[Ahead]]:
    """scores (settings, arms, seeds) -> for each setting and pair of arms who is ahead: paired t-tests over seeds.

    p is corrected by Holm's method for the pairs of a setting. resolution: the smallest step of a score.
    """
    found = []
    for row in scores:
        of = dict(zip(arms, row.tolist(), strict=True))
        tests = [paired(of[one], of[other], resolution) for one, other in pairs]
        corrected = holm([test.p for test in tests])
        found.append([Ahead(test.mean, test.spread, p) for test, p in zip(tests, corrected, strict=True)])
    return found


def sign_is_seen(data: str, hfc_lfc: Tensor) -> Row:
    """The row of a claim: HFC/LFC (settings, arms, seeds) is larger where blocks sharpen than where they smooth."""
    of = dict(zip(ARMS, hfc_lfc.mean(-1).unbind(1), strict=True))
    apart = (of["sharpen"] / of["smooth"]).min()
    return f"{data}: HFC/LFC after the last block, sharpen over smooth, least", apart, APART, math.inf, 1.0


def every_arm(says: str, better: Tensor, worse: Tensor, resolution: float) -> list[Row]:
    """The claim that better is above worse, (arms, seeds) each, in every arm: the largest p; none for too few seeds."""
    if better.shape[-1] < FEWEST:
        return []
    tests = [paired(one, other, resolution) for one, other in zip(better.tolist(), worse.tolist(), strict=True)]
    p = [one if test.mean > 0 else 1.0 for one, test in zip(holm([test.p for test in tests]), tests, strict=True)]
    return [(f"{says}, largest paired p", max(p), 0.0, LEVEL, 0.5)]


def versions(where: str, row: Sequence[Ahead], trials: int) -> list[Claim]:
    """What both versions of the paper say of one setting, by the p of PAIRS; none where seeds are too few.

    They contradict each other, and on digits neither was seen: both are reported, and neither is expected.
    """
    found = dict(zip(PAIRS, row, strict=True))
    said = {"first version": FIRST, "later ones": LATER}
    rows = [
        (f"{where}: {one} above {other} ({version}), paired p", found[one, other].p_above, 0.0, LEVEL)
        for version, pairs in said.items()
        for one, other in pairs
        if not math.isnan(found[one, other].p)
    ]
    return stated(trials, *rows, expected=False)


def claims_of(numbers: dict[str, Tensor], cfg: ImageSizes, taught: Callable[[str, int, float], Said]) -> list[Claim]:
    """For each data set: the sign is seen; and where models had time to learn, what `taught` says of them.

    taught(data, its place in the numbers, the smallest step of an accuracy) -> rows of claims, and for each setting
    that is asked about, in words, who is ahead.
    """
    rows: list[Row] = []
    reported: list[Claim] = []
    for place, (data, count) in enumerate(data_of(cfg).items()):
        rows.append(sign_is_seen(data, numbers["hfc_lfc"][place]))
        if epochs_of(cfg, data) >= TAUGHT:
            more, asked = taught(data, place, 1 / count)
            rows += more
            for where, ahead in asked.items():
                reported += versions(where, ahead, cfg.trials)
    return [*stated(cfg.trials, *rows), *reported]
