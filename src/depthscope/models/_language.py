"""What language models have in common: ids of words in, log-probabilities or losses out, everything checked."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import ShapeError, UsageError
from depthscope.models.adaptive import TiedVocabulary
from depthscope.models.design import Design, design_of


def causal_design(where: str, choices: Mapping[str, Any]) -> Design:
    """The design of a language model: causal, with W_O, drawn as torch draws it where nothing else is said."""
    design = design_of(where, **{"weights": "torch_default", "output": True, "causal": True} | dict(choices))
    if not design.causal:
        raise UsageError(
            f"{where}: a language model must be causal, or it would see the word that it predicts; got causal=False. "
            "Leave it out."
        )
    return design


def check_rate(where: str, dropout: float) -> None:
    """Raise unless dropout leaves something."""
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise UsageError(f"{where}: dropout must lie in [0, 1); got {dropout!r}. 0 drops nothing.")


def check_words(where: str, what: str, words: Tensor, vocabulary: int) -> None:
    """Raise unless these are ids (B, n) of words of the vocabulary."""
    if not isinstance(words, Tensor) or words.dtype != torch.int64 or words.ndim != 2 or 0 in words.shape:
        got = f"{tuple(words.shape)} {words.dtype}" if isinstance(words, Tensor) else type(words).__name__
        raise ShapeError(
            f"{where}: {what} must be ids (B, n) of int64, B and n at least 1; got {got}. "
            "Give ids[None] for one sequence, and .long() for other whole numbers."
        )
    if words.is_meta or torch.compiler.is_compiling():  # no numbers to look at; tables check their bounds themselves
        return
    outside = (words < 0) | (words >= vocabulary)
    if bool(outside.any()):
        row, place = outside.nonzero()[0].tolist()
        raise UsageError(
            f"{where}: {what} must lie in 0 ... {vocabulary - 1}, the vocabulary of the model; got "
            f"{int(words[row, place])} in sequence {row} at place {place} ({int(outside.sum())} such). Is the text "
            "coded by another vocabulary than the model's?"
        )


def first_positions(where: str, positions: Tensor, n: int) -> Tensor:
    """The first n of the learned positions (most, d), (n, d)."""
    if n > len(positions):
        raise ShapeError(
            f"{where}: sequences must have at most {len(positions)} tokens, as many as it has positions; got {n}. "
            "Cut them, or build the model with a larger tokens=."
        )
    return positions[:n]


def answers(where: str, vocabulary: TiedVocabulary, Y: Tensor, targets: Tensor | None) -> Tensor:
    """log p (B, n, V) of the words after each token Y (B, n, d); with targets (B, n) the loss of each, in nats."""
    if targets is None:
        return vocabulary.log_probabilities(Y)
    check_words(where, "targets", targets, vocabulary.vocabulary)
    if targets.shape != Y.shape[:-1]:
        raise ShapeError(
            f"{where}: targets must have one word for each token, {tuple(Y.shape[:-1])}; got {tuple(targets.shape)}."
        )
    return vocabulary.loss(Y, targets)
