"""Which of some numbers is the largest."""

import torch
import torch.nn.functional as F

from depthscope.registry import shelve
from depthscope.training.data.labels import Labelled, LabelTask


class Largest(LabelTask):
    defaults = {"depth": 2, "d": 16, "h": 2, "epochs": 1, "batch": 16, "lr": 1e-3}


@shelve("task")
def largest(*, numbers: int = 5, train: int = 64) -> LabelTask:
    """Which of 5 numbers is the largest; made here."""
    chance, splits = torch.Generator().manual_seed(0), {}
    for split, size in (("test", 32), ("valid", 32), ("train", train)):
        drawn = torch.randn(size, numbers, 1, generator=chance)
        splits[split] = Labelled(drawn, F.one_hot(drawn.squeeze(-1).argmax(-1), numbers))
    return Largest("largest", **splits, classes=2, words=None, places=False, activation="relu")
