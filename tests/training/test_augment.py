"""Augmentation: repeatable by a seed, in range, of the same kind, and really done."""

import math
import sys

import pytest
import torch

from loops import over

pytest.importorskip("kornia")

from depthscope.errors import MissingExtraError, ShapeError, UnknownNameError, UsageError
from depthscope.training.augment import NAMES, augmentation, auto, flip_crop, one_each

CHANGING = [name for name in NAMES if name != "none"]


def smooth(count: int = 64, channels: int = 3, side: int = 16) -> torch.Tensor:
    """Images with structure: on noise, a shift could not be told from a colour change."""
    grid = torch.linspace(0, 1, side)
    phase = torch.rand(count, channels, 1, 1)
    return (0.5 + 0.4 * torch.sin(6 * grid[:, None] * phase + 9 * grid * (1 - phase))).clamp(0, 1)


def test_none_is_the_same_object() -> None:
    images = smooth()
    assert augmentation("none", (3, 16, 16))(images) is images


@over("channels, dtype", [(1, torch.float32), (3, torch.float64), (3, torch.bfloat16)])
@over("name", CHANGING)
def test_kind_range_and_change(name: str, channels: int, dtype: torch.dtype) -> None:
    images = smooth(channels=channels).to(dtype)
    before = images.clone()
    change = augmentation(name, (channels, 16, 16))
    for _ in range(2):
        out = change(images)
        assert out.shape == images.shape and out.dtype == dtype and not out.requires_grad
        assert 0 <= float(out.min()) and float(out.max()) <= 1 and bool(torch.isfinite(out).all())
        assert float((out != images).flatten(1).any(1).float().mean()) > 0.9
    assert torch.equal(images, before)


@over("name", CHANGING)
def test_a_seed_repeats_it_whatever_ran_before(name: str) -> None:
    images, change = smooth(), augmentation(name, (3, 16, 16))
    torch.manual_seed(5)
    first = change(images)
    second = change(images)
    change(smooth(7))
    torch.manual_seed(5)
    assert torch.equal(change(images), first) and not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(augmentation(name, (3, 16, 16))(images), first)  # a fresh one, as after a resume


@over("name", ["auto", "rand"])
def test_policies_do_more_than_crop_and_flip(name: str) -> None:
    images = torch.full((200, 3, 16, 16), 0.3)
    inside = augmentation(name, (3, 16, 16))(images)[:, :, 6:10, 6:10]
    assert float(((inside - 0.3).abs() > 0.01).flatten(1).any(1).float().mean()) > 0.2


def test_each_image_draws_its_own_policy() -> None:
    images = smooth(1).expand(200, -1, -1, -1).contiguous()
    assert len(auto()(images).unique(dim=0)) > 50
    marked = one_each([lambda x, i=i: torch.full_like(x, i) for i in range(4)])(torch.zeros(4000, 1, 2, 2))
    shares = marked[:, 0, 0, 0].long().bincount() / 4000
    assert bool(((shares - 0.25).abs() < 4 * math.sqrt(0.25 * 0.75 / 4000)).all())


def test_a_crop_moves_pixels_and_makes_none() -> None:
    side = 16
    images = (1 + torch.arange(side * side).view(1, 1, side, side)).float().expand(100, 3, -1, -1) / 256
    out = flip_crop((3, side, side))(images)
    assert set(out.unique().tolist()) <= {0.0, *images.unique().tolist()}
    seen = set()
    for image in out[:, 0]:
        image = image.flip(-1) if image[8, 8] > image[8, 9] else image
        row, column = divmod(round(float(image[8, 8]) * 256) - 1, side)
        seen.add((row - 8, column - 8))
    assert {max(abs(row), abs(column)) for row, column in seen} == {0, 1, 2}  # an eighth of the side
    mirrored = float((out[:, 0, 8, 8] > out[:, 0, 8, 9]).float().mean())
    assert 0.3 < mirrored < 0.7


def test_wrong_use_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match=r"no augmentation is called 'autos'. Did you mean auto"):
        augmentation("autos", (3, 16, 16))
    with pytest.raises(UsageError, match="augmentation rand: images must have 1 or 3 channels; got 4"):
        augmentation("rand", (4, 16, 16))
    change = augmentation("flip_crop", (4, 16, 16))
    assert change(torch.rand(2, 4, 16, 16)).shape == (2, 4, 16, 16)
    for images in (torch.rand(2, 4, 16, 8), torch.rand(4, 16, 16), torch.zeros(2, 4, 16, 16, dtype=torch.uint8)):
        with pytest.raises(ShapeError, match=r"augmentation flip_crop: images must be floats \(B, 4, 16, 16\)"):
            change(images)
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    with pytest.raises(MissingExtraError, match=r"needs kornia. pip install .*'kornia>="):
        augmentation("auto", (3, 16, 16))
