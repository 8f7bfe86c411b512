"""Bad data: noise and blur on test images, wrong training labels. Does sharpening or smoothing make a model robust?

The first version of the paper says that sharpening is more robust to corruption than FeatScale, the later ones that
smoothing rather than sharpening can help images. For damaged test images every model is trained once, on clean images,
and then tested on each kind and strength of damage. Wrong labels are drawn anew with every seed, the same for all arms,
and only in the training split. On digits forced smoothing loses most: 7 points against the plain model under noise 0.4,
and 5 with 40 % wrong labels. Sharpening gains nothing.

depthscope reproduce dovonon2024/corrupted     13 minutes beside other work: digits, 3 trainings, 5 arms, 5 seeds. --set
cifar=FOLDER trains on a part of CIFAR-10 too, some 70 minutes more, judged by a short run. All arms have the same
learning rate; none was searched. Noise is in units of the range from black to white, blur in pixels; digits have 8 x 8
pixels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.claim import Claim
from depthscope.experiments.smoothing_arms import (
    PAIRS,
    ImageSizes,
    Said,
    Setting,
    claims_of,
    compared,
    data_of,
    every_arm,
    high_to_low,
    measured,
    train_all,
)
from depthscope.experiments.smoothing_pictures import draw_lines, draw_table, over


@dataclass(frozen=True)
class Config(ImageSizes):
    """noise, blur: strengths on test images; label_noise: shares of training labels that are wrong. All rise."""

    noise: tuple[float, ...] = (0.1, 0.2, 0.4)
    blur: tuple[float, ...] = (0.5, 0.75, 1.0)
    label_noise: tuple[float, ...] = (0.2, 0.4)
    depth: int = 12


SMOKE = Config(
    noise=(0.4,), blur=(1.0,), label_noise=(0.4,), depth=2, d=16, h=2, q=16,
    epochs=2, lr=4e-3, trials=1, side_by_side=False,
)  # fmt: skip


def settings(cfg: Config) -> list[Setting]:
    """Trained on right labels, and on some that are wrong."""
    for name in ("noise", "blur", "label_noise"):
        strengths = getattr(cfg, name)
        if [*strengths] != sorted({*strengths}) or strengths[0] <= 0:
            raise UsageError(f"corrupted: {name} must rise, from above 0; got {strengths!r}.")
    damage = {"noise": list(cfg.noise), "blur": list(cfg.blur)}
    return [Setting(cfg.depth, damage), *(Setting(cfg.depth, {"label_noise": share}) for share in cfg.label_noise)]


def run(cfg: Config) -> dict[str, Tensor]:
    """Accuracies (data, strengths, arms, seeds), strength 0 first; HFC/LFC and loss (data, trainings, arms, seeds)."""
    lanes = train_all(cfg, settings(cfg))
    clean = [rows[:1] for rows in lanes]
    kinds = {kind: [f"accuracy_{kind}_{strength:g}" for strength in getattr(cfg, kind)] for kind in ("noise", "blur")}
    damaged = {
        kind: torch.cat([measured(clean, "test", what) for what in ("accuracy", *names)], 1)
        for kind, names in kinds.items()
    }
    return {
        **damaged,
        "label_noise": measured(lanes, "test", "accuracy"),
        "train_loss": measured(lanes, "train", "loss"),
        "hfc_lfc": high_to_low(lanes),
    }


def rows_of(numbers: dict[str, Tensor], cfg: Config, place: int) -> dict[str, Tensor]:
    """Every kind and strength of one data set by name, accuracies (arms, seeds)."""
    found = {"as they are": numbers["noise"][place, 0]}
    for kind, unit in (("noise", "noise"), ("blur", "blur"), ("label_noise", "labels wrong")):
        for strength, row in zip(getattr(cfg, kind), numbers[kind][place, 1:], strict=True):
            found[f"{unit} {strength:g}"] = row
    return found


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    worst = (f"noise {cfg.noise[-1]:g}", f"blur {cfg.blur[-1]:g}", f"labels wrong {cfg.label_noise[-1]:g}")

    def taught(data: str, place: int, step: float) -> Said:
        kinds = ("noise", "blur", "label_noise")
        clean, damaged = (torch.cat([numbers[kind][place, i] for kind in kinds]) for i in (0, -1))
        costs = every_arm(f"{data}: the worst of each kind costs every arm accuracy", clean, damaged, step)
        by_name = rows_of(numbers, cfg, place)
        tested = compared(torch.stack([by_name[name] for name in worst]), resolution=step)
        return costs, {f"{data}, {name}": row for name, row in zip(worst, tested, strict=True)}

    return claims_of(numbers, cfg, taught)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    data = data_of(cfg)
    figure.set_size_inches(14, 7 * len(data))
    spec = figure.add_gridspec(2 * len(data), 3, height_ratios=[1, 1.1] * len(data))
    titles = {"noise": "noise on test images", "blur": "blur of test images", "label_noise": "wrong training labels"}
    for place, (name, count) in enumerate(data.items()):
        for column, (kind, title) in enumerate(titles.items()):
            ax = figure.add_subplot(spec[2 * place, column])
            steps = [f"{strength:g}" for strength in (0, *getattr(cfg, kind))]
            draw_lines(ax, numbers[kind][place], steps, f"{name}, test accuracy: {title}")
        by_name = rows_of(numbers, cfg, place)
        tested = compared(torch.stack([*by_name.values()]), resolution=1 / count)
        words = f"{name}: points of test accuracy ahead, {over(cfg.trials)}"
        draw_table(figure.add_subplot(spec[2 * place + 1, :2]), tested, PAIRS, list(by_name), words)
        ratio = figure.add_subplot(spec[2 * place + 1, 2])
        shares = [f"{share:g}" for share in (0, *cfg.label_noise)]
        draw_lines(ratio, numbers["hfc_lfc"][place], shares, "HFC/LFC after the last block, trained")
        ratio.set_xlabel("wrong training labels")
