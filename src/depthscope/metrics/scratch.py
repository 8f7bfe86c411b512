"""Memory that serves again and again."""

import math

import torch
from torch import Tensor


class Scratch:
    """Memory that is used again for one large matrix after the other: fresh pages would cost more than the work."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        size = math.prod(shape)
        flat = self.kept.get(name)
        if flat is None or flat.numel() < size or flat.dtype != like.dtype or flat.device != like.device:
            flat = self.kept[name] = torch.empty(size, dtype=like.dtype, device=like.device)
        return flat[:size].view(shape)
