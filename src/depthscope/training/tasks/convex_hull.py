"""Convex hull: which points of a cloud are its corners (Dong et al. 2021, section 4.2).

A point is uniform in a square, then shifted by Gaussian noise of its own: 55 % are corners, as the paper's 54 % without
looking demand. With one shift for the whole cloud 60 % would be.
"""

import math

import torch
from torch import Tensor

from depthscope.registry import shelve
from depthscope.training.data.corpus import check_number
from depthscope.training.data.labels import Labelled, LabelTask

SIDE, SHIFT = 10.0, 3.3  # of the square, and the deviation of the shift
SPREAD = math.sqrt(SIDE**2 / 12 + SHIFT**2)  # of a coordinate


class ConvexHull(LabelTask):
    """The paper's sizes; the learning rate is ours, a hundred times theirs, and so are schedule and batch."""

    defaults = {
        **{"depth": 6, "d": 84, "h": 3, "epochs": 3, "batch": 100, "lr": 1e-3},
        **{"weight_decay": 1e-3, "schedule": "cosine", "warmup": 20, "clip": 1.0},
    }


@shelve("task")
def convex_hull(
    *,
    points: int = 10,
    train: int = 10_000,
    valid: int = 300,
    test: int = 300,
    activation: str = "none",
    data_seed: int = 0,
) -> LabelTask:
    """Which of 10 points in the plane are corners of their convex hull, in any order of the points; made here.

    activation: "relu" gives the blocks the feed-forward networks that the paper leaves out.
    """
    check_number("convex_hull: points", points, 4)
    check_number("convex_hull: data_seed", data_seed, 0)
    chance, splits = torch.Generator().manual_seed(data_seed), {}
    for split, size in (("test", test), ("valid", valid), ("train", train)):  # test does not move with the others
        check_number(f"convex_hull: {split}", size, 1)
        cloud = SIDE * torch.rand(size, points, 2, generator=chance, dtype=torch.float64)
        cloud += SHIFT * torch.randn(cloud.shape, generator=chance, dtype=torch.float64)
        seen = (cloud - SIDE / 2) / SPREAD  # mean 0, variance 1, as networks like it
        splits[split] = Labelled(seen.float(), corners(cloud).long())
    return ConvexHull("convex_hull", **splits, classes=2, words=None, places=False, activation=activation)


def corners(points: Tensor) -> Tensor:
    """Which points are corners of the convex hull: points (..., n, 2), n >= 3 -> bool (..., n).

    A corner has a line through it with all others on one side: their directions leave a gap of more than half a turn.
    """
    n = points.shape[-2]
    others = ~torch.eye(n, dtype=torch.bool)
    steps = points.unsqueeze(-3) - points.unsqueeze(-2)  # (..., n, n, 2), from each to each
    angles = torch.atan2(steps[..., 1], steps[..., 0])[..., others].unflatten(-1, (n, n - 1)).sort(-1).values
    gaps = torch.cat([angles.diff(dim=-1), angles[..., :1] + 2 * math.pi - angles[..., -1:]], -1)
    return gaps.amax(-1) > math.pi
