"""Memory that is used again, chunk after chunk: fresh pages cost more than the arithmetic on them."""

import math

import torch
from torch import Tensor


class Room:
    """Tensors of one chunk, one beside the other; the next chunk is given the same memory."""

    def __init__(self) -> None:
        self._held: list[Tensor] = []
        self._taken = 0

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An empty tensor, which is its owner's until clear()."""
        size, i = math.prod(shape), self._taken
        if i == len(self._held):
            self._held.append(like.new_empty(size))
        flat = self._held[i]
        if flat.numel() < size or flat.dtype != like.dtype or flat.device != like.device:
            flat = self._held[i] = torch.empty(size, dtype=like.dtype, device=like.device)
        self._taken += 1
        return flat[:size].view(shape)

    def give_back(self) -> None:
        """What was taken last may be used again."""
        self._taken -= 1

    def clear(self) -> None:
        """Everything may be used again."""
        self._taken = 0
