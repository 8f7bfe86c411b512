"""CIFAR-10 (Krizhevsky 2009): colour images of 32 x 32 in ten classes, the task of Yu & Zhang 2023, section 3.3."""

from dataclasses import replace
from pathlib import Path

from depthscope.errors import UsageError
from depthscope.registry import shelve
from depthscope.training.data.binary import find_folder, read_folder
from depthscope.training.data.cut import cut, limit
from depthscope.training.data.damage import Strengths, damages
from depthscope.training.data.images import ImageTask, Split, make_task
from depthscope.training.data.npz import read_npz
from depthscope.training.data.rows import read_rows
from depthscope.training.data.spoiled import spoiled

HUB = "uoft-cs/cifar10"


@shelve("task")
def cifar10(
    data: str | Path = HUB,
    *,
    train: int | None = None,
    valid: int | None = None,
    test: int | None = None,
    share: float = 1.0,
    label_noise: float = 0.0,
    noise: Strengths = (),
    blur: Strengths = (),
    data_seed: int = 0,
) -> ImageTask:
    """CIFAR-10, 3 x 32 x 32, patches of 4; data: a hub id, a .npz, or the folder cifar-10-batches-bin.

    valid images (a tenth unless said) are cut from the training images first, so that they stay the same whatever
    train is; train and test take a part of what is left there. All parts are stratified.
    share of the training images that are left, label_noise: share of their labels that are wrong. noise, blur:
    strengths with which the test images are damaged, for further scores of the same model. data_seed draws all this.
    """
    worse = damages(noise, blur, data_seed, where="cifar10")
    learn, final = _read(data)
    kept, learn = cut(learn, max(1, len(learn) // 10) if valid is None else valid, where="cifar10: valid")
    learn = limit(learn, train, where="cifar10: train")
    final = limit(final, test, where="cifar10: test")
    learn, wrong = spoiled(learn, share, label_noise, data_seed, classes=10, where="cifar10")
    return replace(make_task("cifar10", learn, kept, final, classes=10, patch=4), wrong=wrong, damages=worse)


def _read(data: str | Path) -> tuple[Split, Split]:
    """(training images, test images) from wherever they are; which reader is asked is told by the name alone."""
    path = Path(data)
    if path.is_dir():
        return read_folder(find_folder(path))
    if path.suffix == ".npz":
        return read_npz(path)
    if path.exists() or path.is_absolute() or str(data).count("/") != 1:
        raise UsageError(
            f"cifar10: data must be a .npz, the folder cifar-10-batches-bin, or a hub id as {HUB}; got {str(data)!r}. "
            "Check the path; pickles and archives are not read."
        )
    splits, names = read_rows(str(data), side=32)
    if len(names) != 10 or "train" not in splits or "test" not in splits:
        raise UsageError(
            f"cifar10: {data} must have ten classes and the splits train and test; "
            f'got {len(names)} and {", ".join(splits)}. For other data use task("images", data=...).'
        )
    return splits["train"], splits["test"]
