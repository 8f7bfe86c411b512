"""The mean of n random numbers has a variance of 1 / n."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, stated


@dataclass(frozen=True)
class Config:
    trials: int = 20000
    n: int = 10
    seed: int = 0


SMOKE = Config(trials=2000)


def run(cfg: Config) -> dict[str, Tensor]:
    return {"means": torch.randn(cfg.trials, cfg.n).mean(-1)}


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    return stated(cfg.trials, ("variance times n", numbers["means"].var() * cfg.n, 0.8, 1.2, float(cfg.n)))


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    figure.subplots().hist(numbers["means"].numpy())
