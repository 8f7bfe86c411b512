"""The loss of a language model on a text: by segments that remember those before them, or in a window that slides."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError

Chunk = tuple[Tensor, Tensor]  # tokens (R, n) and those that follow them


def in_rows(ids: Tensor, rows: int) -> Tensor:
    """A text (N,) as rows (R, N // R) that are read side by side; what does not fill a row is left out."""
    return ids[: len(ids) // rows * rows].view(rows, -1)


def segments(rows: Tensor, length: int) -> Iterator[Chunk]:
    """Rows (R, N) cut into segments of `length` tokens with their targets; the last may be shorter."""
    for start in range(0, rows.shape[1] - 1, length):
        end = min(start + length, rows.shape[1] - 1)
        yield rows[:, start:end], rows[:, start + 1 : end + 1]


def losses(log_p: Tensor, targets: Tensor) -> Tensor:
    """-ln p of the targets (...), float64, from log p of all words (..., V): who is measured is not told the answer."""
    return -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1).double()


@torch.no_grad()
def loss_with_memory(model: nn.Module, rows: Tensor, length: int) -> Tensor:
    """Sum of -ln p over all tokens of rows (R, N) but the first of each, float64; segments remember those before."""
    total, memory = torch.zeros((), dtype=torch.float64), None
    for tokens, targets in segments(rows, length):
        log_p, memory = model(tokens, memory=memory)
        total += losses(log_p, targets).sum().cpu()
    return total


@torch.no_grad()
def loss_in_window(model: nn.Module, rows: Tensor, length: int, stride: int) -> Tensor:
    """The same without memory: every token is predicted from at least length - stride before it, where there are any.

    A window of `length` tokens moves on by `stride`, and only tokens that the window before did not have are counted.
    """
    if not 1 <= stride <= length:
        raise UsageError(f"perplexity: stride must be from 1 to the window's {length} tokens; got {stride}.")
    total, counted = torch.zeros((), dtype=torch.float64), 0
    while counted < rows.shape[1] - 1:
        end = min(max(counted + stride, length), rows.shape[1] - 1)
        start = max(0, end - length)
        new = slice(counted - start, None)
        log_p, targets = model(rows[:, start:end])[0], rows[:, start + 1 : end + 1]
        total += losses(log_p[:, new], targets[:, new]).sum().cpu()
        counted = end
    return total


def stated(loss: float, unit: str, characters_per_token: float | None) -> dict[str, float]:
    """A loss in nats per token as the field states it: perplexity of words and tokens, bits per character of text.

    characters_per_token: None where tokens stand for no text.
    """
    found = {} if unit == "character" else {"perplexity": math.exp(min(loss, 700.0))}
    if unit != "word" and characters_per_token is not None:
        found["bits_per_character"] = loss / math.log(2) / characters_per_token
    return found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode for a while."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
