"""Twice as deep: do Vision Transformers gain from blocks that are forced to sharpen or to smooth?

The paper trains its ViT of 12 blocks with 24. Its first version says that sharpening then does better than FeatScale,
the later ones that smoothing rather than sharpening can help images. Both statements are tested. We also test whether
the forced signs of the eigenvalues of W_V W_O show in the tokens, by HFC/LFC after the last block. The arm `symmetric`
has the same form as the forced arms and free signs: an effect that it shares with them does not come from smoothing. On
digits no pair of arms differs by more than noise (24 blocks: sharpen 97.8, free 96.8, smooth 94.7 %).

depthscope reproduce dovonon2024/deeper     about 7 minutes on two cores: digits, 12 and 24 blocks, 5 arms, 5 seeds.
--set cifar=FOLDER trains on a part of CIFAR-10 too, some 70 minutes more, judged by a short run. All arms have the same
learning rate; none was searched.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.claim import Claim, Row
from depthscope.experiments.smoothing_arms import ImageSizes, Said, Setting, claims_of, compared, outcome
from depthscope.experiments.smoothing_pictures import draw_settings

TRAINED = 0.9  # accuracy on digits that every arm must reach for their differences to mean something


@dataclass(frozen=True)
class Config(ImageSizes):
    """depths: the paper's, and twice that."""

    depths: tuple[int, ...] = (12, 24)


SMOKE = Config(depths=(2, 4), d=16, h=2, q=16, epochs=2, lr=4e-3, trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """All (data, depths, arms, seeds)."""
    return outcome(cfg, [Setting(depth) for depth in cfg.depths])


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    def taught(data: str, place: int, step: float) -> Said:
        accuracy = numbers["test_accuracy"][place]
        worst: Row = ("digits: test accuracy of the worst arm and depth", accuracy.mean(-1).min(), TRAINED, 1.0, 0.1)
        asked = {f"{data}, {cfg.depths[-1]} blocks": compared(accuracy, resolution=step)[-1]}
        return [worst] if data == "digits" else [], asked

    return claims_of(numbers, cfg, taught)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    names = [f"{depth} blocks" for depth in cfg.depths]
    draw_settings(numbers, cfg, names, "depth", figure)
