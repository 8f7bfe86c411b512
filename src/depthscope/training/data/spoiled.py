"""Less to learn from: a share of the training images, and wrong labels among them. Valid and test stay as they are."""

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.training.data.corpus import check_number
from depthscope.training.data.cut import limit
from depthscope.training.data.images import Split


def spoiled(
    split: Split, share: float, label_noise: float, data_seed: int, *, classes: int, where: str
) -> tuple[Split, int]:
    """(a share of the images, each class in proportion, some with another label; how many labels are wrong).

    data_seed draws which images are kept and whose labels change. share 1 and label_noise 0 change nothing at all.
    """
    check_number(f"{where}: data_seed", data_seed, 0, 2**63 - 1)
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise UsageError(f"{where}: share of the training images must be above 0, up to 1; got {share!r}.")
    if type(label_noise) not in (int, float) or not 0 <= label_noise < 1:
        raise UsageError(f"{where}: label_noise must be a share of labels, from 0 to below 1; got {label_noise!r}.")
    if share < 1:
        split = limit(split, max(1, round(share * len(split))), where=f"{where}: share", seed=data_seed)
    wrong = round(label_noise * len(split))
    if wrong and classes < 2:
        raise UsageError(f"{where}: label_noise must have another class to name; got {label_noise!r} and one class.")
    if wrong:
        split = Split(split.images, mislabelled(split.labels, wrong, classes, data_seed))
    return split, wrong


def mislabelled(labels: Tensor, count: int, classes: int, seed: int) -> Tensor:
    """labels (N,) with `count` of them changed to another class, each of the others equally likely."""
    chance = torch.Generator().manual_seed(seed)
    changed = torch.randperm(len(labels), generator=chance)[:count]
    steps = torch.randint(1, classes, (count,), generator=chance)
    found = labels.clone()
    found[changed] = (labels[changed] + steps) % classes
    return found
