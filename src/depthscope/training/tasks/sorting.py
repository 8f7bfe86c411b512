"""Sorting: the token at place i is to name the i-th smallest of its sequence (Dong et al. 2021, section 4.1)."""

import torch

from depthscope.registry import shelve
from depthscope.training.data.corpus import check_number
from depthscope.training.data.labels import Labelled, LabelTask


class Sorting(LabelTask):
    """The paper's sizes; the learning rate is ours, a hundred times theirs, and so is the schedule."""

    defaults = {
        **{"depth": 6, "d": 48, "h": 2, "epochs": 24, "batch": 30, "lr": 1e-3},
        **{"weight_decay": 0.0, "schedule": "cosine", "warmup": 40, "clip": 1.0},
    }


@shelve("task")
def sorting(
    *,
    vocabulary: int = 10,
    length: int = 8,
    train: int = 1000,
    valid: int = 200,
    test: int = 200,
    activation: str = "none",
    data_seed: int = 0,
) -> LabelTask:
    """Sort numbers, with repeats: each of 8 places names the i-th smallest of its sequence; made here, no download.

    activation: "relu" gives the blocks the feed-forward networks that the paper leaves out.
    """
    check_number("sorting: vocabulary", vocabulary, 2)
    check_number("sorting: length", length, 2)
    check_number("sorting: data_seed", data_seed, 0)
    chance, splits = torch.Generator().manual_seed(data_seed), {}
    for split, size in (("test", test), ("valid", valid), ("train", train)):  # test does not move with the others
        check_number(f"sorting: {split}", size, 1)
        numbers = torch.randint(vocabulary, (size, length), generator=chance)
        splits[split] = Labelled(numbers, numbers.sort(1).values)
    return Sorting("sorting", **splits, classes=vocabulary, words=vocabulary, places=True, activation=activation)
