"""Handwritten digits: 1,797 grey images of 8 x 8, inside scikit-learn. Small enough for a laptop, no download."""

from dataclasses import replace

import torch

from depthscope.errors import MissingExtraError, UsageError
from depthscope.extras import install
from depthscope.registry import shelve
from depthscope.training.data.damage import Strengths, damages
from depthscope.training.data.images import ImageTask, Split, make_task
from depthscope.training.data.spoiled import spoiled

TRAIN, VALID = 1200, 237  # the other 360 are the test split


@shelve("task")
def digits(
    *,
    train: int | None = None,
    share: float = 1.0,
    label_noise: float = 0.0,
    noise: Strengths = (),
    blur: Strengths = (),
    data_seed: int = 0,
) -> ImageTask:
    """Handwritten digits, 1 x 8 x 8, patches of 2; inside scikit-learn. train: only the first so many of 1,200.

    share of the training images, label_noise: share of their labels that are wrong. noise, blur: strengths with which
    the test images are damaged, for further scores of the same model. data_seed draws all of these.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError(f"digits: needs scikit-learn. {install('train')}") from None
    if train is not None and (type(train) is not int or not 1 <= train <= TRAIN):
        raise UsageError(
            f"digits: train must be a whole number from 1 to {TRAIN}; got {train!r}. Leave it out for all."
        )
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16  # pixels are counts from 0 to 16
    labels = torch.from_numpy(data.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    rows = order.split([TRAIN, VALID, len(order) - TRAIN - VALID])
    learn, valid, test = (Split(images, labels).take(part) for part in rows)
    learn = Split(learn.images[:train], learn.labels[:train])
    worse = damages(noise, blur, data_seed, where="digits")
    learn, wrong = spoiled(learn, share, label_noise, data_seed, classes=10, where="digits")
    task = make_task("digits", learn, valid, test, classes=10, patch=2)
    # pixels to [-1, 1], and not to unit deviation: with that, post-norm of 24 blocks learns in some seeds (findings.md)
    return replace(task, mean=torch.full((1,), 0.5), std=torch.full((1,), 0.5), wrong=wrong, damages=worse)
