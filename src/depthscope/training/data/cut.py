"""Cutting a split in two, or down: by a fixed permutation, each class in proportion."""

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.training.data.images import Split

SEED = 0


def cut(split: Split, count: int, *, where: str) -> tuple[Split, Split]:
    """(a part with `count` images, the rest): disjoint, together the whole, the same at every call, shuffled."""
    check_count(count, len(split) - 1, where)  # something must be left to learn from
    order = _order(split)
    taken = stratified(split.labels[order], count)
    return split.take(order[taken]), split.take(order[~taken])


def limit(split: Split, count: int | None, *, where: str, seed: int = SEED) -> Split:
    """`count` images of the split, or all, shuffled: folders come sorted by class, and monitors look at the first."""
    order = _order(split, seed)
    if count is not None:
        check_count(count, len(split), where)
        order = order[stratified(split.labels[order], count)]
    return split.take(order)


def stratified(labels: Tensor, count: int) -> Tensor:
    """labels (N,) -> bool (N,) with `count` True: the first of each class, in number its share (largest remainders)."""
    quotas = labels.bincount().double() * count / len(labels)
    shares = quotas.floor().long()
    left = count - int(shares.sum())
    shares[(quotas - shares).argsort(descending=True, stable=True)[:left]] += 1
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for label, share in enumerate(shares.tolist()):
        taken[(labels == label).nonzero().flatten()[:share]] = True
    return taken


def check_count(count: object, most: int, where: str) -> None:
    """Raise UsageError unless count is a whole number from 1 to most."""
    if type(count) is not int or not 1 <= count <= most:
        raise UsageError(
            f"{where} must be a whole number from 1 to {most}, the images that can be taken there; got {count!r}. "
            "Choose another, or give more data."
        )


def _order(split: Split, seed: int = SEED) -> Tensor:
    return torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
