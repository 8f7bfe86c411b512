"""A plain causal decoder on the reference block, GPT-style: learned positions, no memory (Radford et al. 2018)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.models._language import answers, causal_design, check_rate, check_words, first_positions
from depthscope.models.adaptive import TiedVocabulary
from depthscope.models.design import Design, check_size
from depthscope.models.transformer import Transformer


class Decoder(nn.Module):
    """Words (B, n) -> log-probabilities (B, n, V), or losses (B, n) of targets; and None, for it has no memory.

    Positions are learned and start with the size of the tokens, N(0, 1). One plain softmax, tied to the embedding.

    Examples:
        >>> model = ds.models.Decoder(ds.models.Design(depth=2, d=16, h=2, causal=True), vocabulary=50, tokens=8)
        >>> model(torch.randint(50, (2, 8)))[0].shape
        torch.Size([2, 8, 50])
    """

    def __init__(
        self, design: Design, *, vocabulary: int, tokens: int, dropout: float = 0.0, checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.vocabulary = TiedVocabulary(vocabulary, design.d, cutoffs=(), where="decoder")
        self.positions = nn.Parameter(torch.randn(tokens, design.d))
        self.transformer = Transformer(design, dropout=dropout)
        for block in self.transformer:
            block.gradient_checkpointing = checkpointing

    def forward(self, tokens: Tensor, memory: None = None, targets: Tensor | None = None) -> tuple[Tensor, None]:
        """targets None: log p of the word after each token; else -log p of the targets, in nats."""
        check_words("decoder", "tokens", tokens, self.vocabulary.vocabulary)
        if memory is not None:
            raise UsageError(f"decoder: it has no memory; got {type(memory).__name__}. Give None, or transformer_xl.")
        X = self.vocabulary(tokens) + first_positions("decoder", self.positions, tokens.shape[1])
        X = F.dropout(X, self.dropout, self.training)
        Y = F.dropout(self.transformer(X), self.dropout, self.training)
        return answers("decoder", self.vocabulary, Y, targets), None


def decoder(
    *, vocabulary: int, tokens: int, dropout: float = 0.0, checkpointing: bool = False, **choices: Any
) -> Decoder:
    """A causal decoder at random initialisation.

    vocabulary: words. tokens: of the longest sequence. dropout: after the embedding, after every branch, and before the
    softmax. checkpointing: compute blocks again in the backward pass instead of keeping their insides. Choices by
    keyword are those of Design: depth, d, h, q, alpha, wiring, attention, activation, weights, ...

    Examples:
        >>> model = ds.models.decoder(vocabulary=50, tokens=8, depth=2, d=16, h=2)
        >>> model(torch.randint(50, (2, 8)))[0].shape  # (B, n, V)
        torch.Size([2, 8, 50])
    """
    check_size("decoder", "tokens", tokens)
    check_rate("decoder", dropout)
    design = causal_design("decoder", choices)
    return Decoder(design, vocabulary=vocabulary, tokens=tokens, dropout=dropout, checkpointing=checkpointing)
