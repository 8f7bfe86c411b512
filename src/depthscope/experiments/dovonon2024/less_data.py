"""From 10 to 100 % of the training images: does forcing blocks to sharpen or to smooth help when there are few?

The first version of the paper says that sharpening is more data-efficient than FeatScale, the later ones that smoothing
rather than sharpening can help images. Each seed draws its own images, the same for all arms, each class in proportion.
All shares are trained for the same number of steps, so fewer images are seen more often. On digits no pair of arms
differs by more than noise; with 10 % of the images both forced arms are 3 points below.

depthscope reproduce dovonon2024/less_data     21 minutes beside other work: digits, 4 shares, 5 arms, 5 seeds. --set
cifar=FOLDER trains on a part of CIFAR-10 too, some 90 minutes more, judged by a short run. All arms have the same
learning rate; none was searched.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.claim import Claim
from depthscope.experiments.smoothing_arms import ImageSizes, Said, Setting, claims_of, compared, every_arm, outcome
from depthscope.experiments.smoothing_pictures import draw_settings


@dataclass(frozen=True)
class Config(ImageSizes):
    """shares of the training images, rising."""

    shares: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    depth: int = 12


SMOKE = Config(shares=(0.25, 1.0), depth=2, d=16, h=2, q=16, epochs=2, lr=4e-3, trials=1, side_by_side=False)


def settings(cfg: Config) -> list[Setting]:
    """One for each share, with as many steps."""
    if not all(0 < share <= 1 for share in cfg.shares) or [*cfg.shares] != sorted({*cfg.shares}):
        raise UsageError(f"less_data: shares must rise, above 0 and up to 1; got {cfg.shares!r}.")
    return [Setting(cfg.depth, {"share": share} if share < 1 else {}, 1 / share) for share in cfg.shares]


def run(cfg: Config) -> dict[str, Tensor]:
    """All (data, shares, arms, seeds)."""
    return outcome(cfg, settings(cfg))


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    def taught(data: str, place: int, step: float) -> Said:
        accuracy = numbers["test_accuracy"][place]
        gained = every_arm(f"{data}: most images are better than fewest in every arm", accuracy[-1], accuracy[0], step)
        where = f"{data}, {100 * cfg.shares[0]:g} % of the images"
        return gained, {where: compared(accuracy, resolution=step)[0]}

    return claims_of(numbers, cfg, taught)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    names = [f"{100 * share:g} %" for share in cfg.shares]
    draw_settings(numbers, cfg, names, "share of the training images", figure)
