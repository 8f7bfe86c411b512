"""Energies by frequency, against sines that have one, Parseval's equality, and the high-to-low ratio."""

import math

import pytest
import torch

from depthscope.circuits.frequencies import grid_in, patch_energies, response, token_energies
from depthscope.errors import ShapeError
from depthscope.metrics import hfc_lfc
from loops import over


@over("n", [8, 9])
def test_energies_add_up_and_hold_the_ratio(n: int) -> None:
    X = torch.randn(n, 5, dtype=torch.float64)
    energies = token_energies(X[None])
    assert len(energies) == n // 2 + 1
    assert float(energies.sum()) == pytest.approx(float(X.square().sum()))
    assert float((energies[1:].sum() / energies[0]).sqrt()) == pytest.approx(float(hfc_lfc(X)))


def test_a_wave_has_one_frequency() -> None:
    t = torch.arange(16) / 16
    X = torch.sin(2 * math.pi * 3 * t)[:, None].expand(16, 4)
    assert int(token_energies(X).argmax()) == 3
    image = torch.sin(2 * math.pi * (2 * t[:, None] + 0 * t)).flatten()[:, None]
    energies = patch_energies(image, (16, 16))
    assert int(energies.argmax()) == 2 and float(energies.sum()) == pytest.approx(float(image.square().sum()), rel=1e-6)


def test_response_of_a_filter() -> None:
    X = torch.randn(2, 10, 3, dtype=torch.float64)
    halved = X.mean(1, keepdim=True) + 0.5 * (X - X.mean(1, keepdim=True))
    found = response(token_energies(X), token_energies(halved))
    assert torch.allclose(found, torch.tensor([1.0] + 5 * [0.25], dtype=torch.float64))
    assert bool(response(torch.zeros(1), torch.ones(1)).isnan().all())


def test_grids() -> None:
    images = torch.zeros(1, 3, 32, 32)
    assert grid_in((images,), {}, 65) == (8, 8)  # with a cls token
    assert grid_in((), {"pixel_values": images}, 64) == (8, 8)
    assert grid_in((torch.zeros(1, 3, 16, 32),), {}, 33) == (4, 8)
    assert grid_in((torch.zeros(1, 9, dtype=torch.long),), {}, 9) is None
    assert grid_in((images,), {}, 3) is None
    ids, mask = torch.zeros(1, 64, dtype=torch.long), torch.zeros(1, 1, 64, 64)  # 64 words are no 8 x 8 patches
    assert grid_in((ids, mask), {}, 64) is None
    assert grid_in((), {"attention_mask": mask, "input_ids": ids}, 64) is None
    with pytest.raises(ShapeError, match="cls"):
        patch_energies(torch.zeros(65, 4), (8, 8))
