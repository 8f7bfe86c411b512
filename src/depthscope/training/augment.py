"""Augmentation of training images by kornia: crop, flip, AutoAugment (1805.09501) and RandAugment (1909.13719).

The operations and their strengths are kornia's, which are not those of the papers' own code everywhere: there, shear is
in fractions of the image and brightness multiplies; here 0.3 of shear are 54 degrees and brightness is added.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from depthscope.errors import MissingExtraError, ShapeError, UnknownNameError, UsageError
from depthscope.extras import install
from depthscope.registry import unknown

NAMES = ("none", "flip_crop", "auto", "rand")
RAND_ROUNDS, RAND_STRENGTH = 2, 9  # of 30: the usual setting of RandAugment
Change = Callable[[Tensor], Tensor]


def augmentation(name: str, size: tuple[int, int, int]) -> Change:
    """A function of images (B, C, H, W) of that size (C, H, W), floats in [0, 1] -> the same, changed at random.

    flip_crop shifts by up to an eighth of the side and mirrors; auto and rand do so too, then apply one of the 25
    policies found for CIFAR-10, or two operations of RandAugment, drawn for each image. All randomness comes from
    torch's global generator on the CPU: a seed set before the call repeats it on any device.
    """
    if name not in NAMES:
        raise UnknownNameError("augmentation: " + unknown("augmentation", name, NAMES))
    if name == "none":
        return unchanged
    try:
        import kornia.augmentation  # noqa: F401
    except ImportError:
        raise MissingExtraError(f"augmentation {name}: needs kornia. {install('train')}") from None
    if name != "flip_crop" and size[0] not in (1, 3):
        raise UsageError(
            f"augmentation {name}: images must have 1 or 3 channels; got {size[0]}. flip_crop takes any number."
        )
    steps = [flip_crop(size)] + {"flip_crop": [], "auto": [auto()], "rand": [rand()] * RAND_ROUNDS}[name]

    @torch.no_grad()
    def change(images: Tensor) -> Tensor:
        _check(name, images, size)
        # operations on colour want three channels; they treat all alike, so of a grey image any one can be kept
        changed = images.expand(-1, 3, -1, -1) if size[0] == 1 else images
        for step in steps:
            changed = step(changed)
        return changed[:, : size[0]].clamp(0, 1).to(images.dtype)

    return change


def unchanged(images: Tensor) -> Tensor:
    """The images themselves."""
    return images


def flip_crop(size: tuple[int, int, int]) -> Change:
    """Black borders of an eighth, a crop of the old size, and a mirror image half of the time."""
    from kornia.augmentation import RandomCrop, RandomHorizontalFlip

    _, height, width = size
    borders = (width // 8, height // 8)
    # "slice" copies pixels; the other mode resamples them
    crop, flip = RandomCrop((height, width), padding=borders, cropping_mode="slice"), RandomHorizontalFlip(p=0.5)
    return lambda images: flip(crop(images))


def auto() -> Change:
    """AutoAugment's policy for CIFAR-10: one of 25 pairs of operations for each image."""
    from kornia.augmentation.auto import AutoAugment
    from kornia.augmentation.auto.autoaugment.autoaugment import cifar10_policy

    return one_each([AutoAugment([pair]) for pair in cifar10_policy])


def rand() -> Change:
    """One round of RandAugment: one of its operations for each image, all of the same strength."""
    from kornia.augmentation.auto import RandAugment
    from kornia.augmentation.auto.rand_augment.rand_augment import default_policy

    return one_each([RandAugment(1, RAND_STRENGTH, [operation]) for operation in default_policy])


def one_each(choices: Sequence[Change]) -> Change:
    """Draws one of the choices for every image, as the papers do; kornia alone draws one for the whole batch."""

    def change(images: Tensor) -> Tensor:
        drawn = torch.randint(len(choices), (len(images),))
        changed = images.clone()
        for i in drawn.unique().tolist():
            rows = (drawn == i).nonzero().flatten().to(images.device)
            changed[rows] = choices[i](images[rows])
        return changed

    return change


def _check(name: str, images: Tensor, size: tuple[int, int, int]) -> None:
    if images.ndim != 4 or images.shape[1:] != size or not images.is_floating_point():
        raise ShapeError(
            f"augmentation {name}: images must be floats (B, {', '.join(map(str, size))}) in [0, 1]; "
            f"got {images.dtype} {tuple(images.shape)}. Divide bytes by 255, and augment before normalising."
        )
