"""Images of your own: a folder with one sub-folder for each class, or any image dataset of the hub."""

from dataclasses import replace
from pathlib import Path

from depthscope.errors import UsageError
from depthscope.registry import shelve
from depthscope.training.data.cut import cut, limit
from depthscope.training.data.damage import Strengths, damages
from depthscope.training.data.images import ImageTask, make_task
from depthscope.training.data.rows import read_rows
from depthscope.training.data.spoiled import spoiled


@shelve("task")
def images(
    data: str | Path | None = None,
    *,
    size: int = 32,
    patch: int = 4,
    train: int | None = None,
    valid: int | None = None,
    test: int | None = None,
    share: float = 1.0,
    label_noise: float = 0.0,
    noise: Strengths = (),
    blur: Strengths = (),
    data_seed: int = 0,
) -> ImageTask:
    """Images of your own, 3 x size x size; data: a folder with a sub-folder for each class, or a hub id.

    Where the data has a split for validation or test (folders train, validation, test), it is used. Where it has none,
    a fifth for test and then a tenth for validation, or as many as said, are cut from the rest, each class in
    proportion. All images are kept in memory at the small size.
    share of the training images that are left, label_noise: share of their labels that are wrong. noise, blur:
    strengths with which the test images are damaged, for further scores of the same model. data_seed draws all this.
    """
    if data is None or str(data) == "":
        raise UsageError("images: needs data=, a folder with one sub-folder for each class, or a hub id.")
    for name, value in (("size", size), ("patch", patch)):
        if type(value) is not int or value < 1:
            raise UsageError(f"images: {name} must be a whole number, 1 or more; got {value!r}.")
    if size % patch:
        raise UsageError(f"images: patches must tile the image; got size {size} and patch {patch}. Choose a divisor.")
    worse = damages(noise, blur, data_seed, where="images")
    path = Path(data)
    if path.is_file() or (not path.is_dir() and (path.is_absolute() or str(data).count("/") != 1)):
        raise UsageError(f"images: data must be a folder or a hub id; got {str(data)!r}. Check the path.")
    splits, names = read_rows(str(data), side=size, resize=True)
    if "train" not in splits:
        raise UsageError(f"{data}: must have a split called train; got {', '.join(splits)}. Name its folder train.")
    learn, kept, final = splits["train"], splits.get("validation"), splits.get("test")
    if final is None:
        final, learn = cut(learn, max(1, len(learn) // 5) if test is None else test, where="images: test")
    if kept is None:
        kept, learn = cut(learn, max(1, len(learn) // 10) if valid is None else valid, where="images: valid")
    learn = limit(learn, train, where="images: train")
    kept = limit(kept, valid, where="images: valid")
    final = limit(final, test, where="images: test")
    learn, wrong = spoiled(learn, share, label_noise, data_seed, classes=len(names), where="images")
    return replace(make_task("images", learn, kept, final, classes=len(names), patch=patch), wrong=wrong, damages=worse)
