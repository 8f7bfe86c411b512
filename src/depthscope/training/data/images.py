"""Labelled images in three splits, and how they become the inputs of a Vision Transformer."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from depthscope.errors import ShapeError, UsageError
from depthscope.models.vit import vit
from depthscope.training.data.classes import ClassTask, Examples
from depthscope.training.data.damage import Damage
from depthscope.training.data.task import SPLITS
from depthscope.training.evaluate import Look, evaluate
from depthscope.training.image_batches import ImageBatches
from depthscope.training.recipe import Recipe

PROBE = 16  # images of the probe


@dataclass(frozen=True, eq=False)
class Split(Examples):
    """images (N, C, H, W), uint8 or float32 in [0, 1]; labels (N,), int64."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class ImageTask(ClassTask[Split]):
    """Which of some classes is on an image.

    patch is the side of a patch; mean and std (C,) are what inputs() takes away and divides by. wrong: how many labels
    of the training split are known to be. damages: what is done to the test images when all is trained, to measure the
    same model on each of them too: "accuracy_noise_0.2" beside "accuracy".
    """

    patch: int
    mean: Tensor
    std: Tensor
    wrong: int = 0
    damages: tuple[Damage, ...] = ()

    def __post_init__(self) -> None:
        for part in SPLITS:
            check_split(f"{self.name}, {part} split", getattr(self, part), self.classes, self.size)
        _, height, width = self.size
        if height != width or height % self.patch:
            raise ShapeError(
                f"{self.name}: square patches must tile square images; got images of {height} x {width} and patch "
                f"{self.patch}. Choose another size or patch."
            )

    @property
    def size(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        digest = self.digest(f"{self.classes} classes, patch {self.patch}")
        for tensor in (self.mean, self.std):
            digest.update(tensor.double().numpy().data)
        if self.damages:  # without, the hash is what it was before there were any
            digest.update(str(self.damages).encode())
        return digest.hexdigest()[:16]

    @property
    def facts(self) -> dict[str, Any]:
        images = {split: len(getattr(self, split)) for split in SPLITS}
        wrong = f", {self.wrong} of them with a wrong label" if self.wrong else ""
        return {
            "data": f"{images['train']} images to learn from{wrong}, {images['test']} to test",
            "model": "ViT",
            "count": images["test"],
            "chance": float(self.test.labels.bincount().max()) / images["test"],
            "classes": self.classes,
            "images": images,
            "wrong_labels": self.wrong,
        }

    def model(self, build: Any) -> nn.Module:
        channels, side, _ = self.size
        sizes: dict[str, Any] = {"side": side, "patch": self.patch, "channels": channels, "classes": self.classes}
        return vit(**sizes, pooling=build.pooling, **build.choices)

    def probe(self, device: torch.device) -> Tensor:
        """The first images of the training split, as the model sees them without augmentation."""
        return self.inputs(self.train.images[:PROBE].to(device))

    def batches(self, recipe: Recipe, device: torch.device) -> ImageBatches:
        return ImageBatches(self, recipe, device)

    def evaluate(self, model: nn.Module, split: str, **look: Unpack[Look]) -> dict[str, float]:
        shown = self.looked_at(split)
        found = evaluate(model, shown.images, shown.labels, self.inputs, **look)
        for damage in self.damages if split == "test" and look["final"] else ():
            worse = evaluate(model, damage(pixels(shown.images)), shown.labels, self.inputs, **look)
            found |= {f"{what}_{damage.name}": value for what, value in worse.items()}
        return found

    def inputs(self, images: Tensor) -> Tensor:
        """images (B, C, H, W), uint8 or in [0, 1] -> float32 of the same shape, (x - mean) / std."""
        shape = (-1, 1, 1)
        return (pixels(images) - self.mean.view(shape).to(images.device)) / self.std.view(shape).to(images.device)


def pixels(images: Tensor) -> Tensor:
    """uint8 -> float32 in [0, 1]; what is float already becomes float32."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def make_task(name: str, train: Split, valid: Split, test: Split, *, classes: int, patch: int) -> ImageTask:
    """An ImageTask, normalised by what its train split holds: valid and test have no say in it."""
    check_split(f"{name}, train split", train, classes)
    sums = torch.zeros(2, train.images.shape[1], dtype=torch.float64)
    for part in train.images.split(4096):  # so that a large uint8 split never lies in memory as float64
        wide = pixels(part).double()
        sums += torch.stack([wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3))])
    mean, square = sums / train.images[:, 0].numel()
    std = (square - mean.square()).clamp_min(0).sqrt()
    std = torch.where(std > 1e-6, std, 1.0)  # a channel that never changes stays as it is
    return ImageTask(name, train, valid, test, classes, patch, mean.float(), std.float())


def check_split(where: str, split: Split, classes: int, size: tuple[int, int, int] | None = None) -> None:
    """Raise unless the split holds images of that size (C, H, W), and a label in 0 ... classes - 1 for each."""
    images, labels = split.images, split.labels
    if images.ndim != 4 or images.numel() == 0 or (size is not None and images.shape[1:] != size):
        wanted = ", ".join(map(str, size or ("C", "H", "W")))
        raise ShapeError(
            f"{where}: images must be (N, {wanted}) with N >= 1; got {tuple(images.shape)}. Give other images."
        )
    if images.dtype not in (torch.uint8, torch.float32):
        raise UsageError(f"{where}: images must be uint8, or float32 in [0, 1]; got {images.dtype}. Convert them.")
    if images.dtype == torch.float32 and not bool(((images >= 0) & (images <= 1)).all()):
        raise UsageError(
            f"{where}: float images must lie in [0, 1]; got {float(images.min()):.3g} to {float(images.max()):.3g}. "
            "Divide by the largest value there can be."
        )
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ShapeError(
            f"{where}: there must be one int64 label for each of {len(images)} images; got {labels.dtype} "
            f"{tuple(labels.shape)}. Check that images and labels belong together."
        )
    if bool(((labels < 0) | (labels >= classes)).any()):
        first = int(((labels < 0) | (labels >= classes)).nonzero()[0])
        raise UsageError(
            f"{where}: labels must lie in 0 ... {classes - 1}; got {int(labels[first])} at image {first}. "
            "Number the classes from 0."
        )
