"""Transformer-XL on the reference block (Dai et al. 2019, 1901.02860; sizes of Yu & Zhang 2023, section 3.4)."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.errors import UnknownNameError, UsageError
from depthscope.models._language import answers, causal_design, check_rate, check_words
from depthscope.models.adaptive import CUTOFFS, TiedVocabulary
from depthscope.models.design import Design
from depthscope.models.relative_attention import RelativeAttention, sinusoids
from depthscope.models.segment_memory import Recall, SegmentMemory
from depthscope.models.transformer import Transformer
from depthscope.registry import unknown

PRESETS: dict[str, dict[str, Any]] = {
    "wt103_base": {"depth": 16, "d": 410, "h": 10, "q": 2100, "vocabulary": 267_735, "memory": 150},
    "yu2023": {"depth": 60, "d": 410, "h": 10, "q": 820, "vocabulary": 267_735, "memory": 150},
}


class TransformerXL(nn.Module):
    """Words (B, n) -> log-probabilities (B, n, V), or losses (B, n) of targets, and the memory for the next segment.

    `memory`, the most tokens to remember, may be set anew between passes; 0 remembers nothing.

    Examples:
        >>> model = ds.models.TransformerXL(ds.models.Design(depth=2, d=16, h=2, causal=True), vocabulary=50, memory=8)
        >>> logs, memory = model(torch.randint(50, (2, 8)))
        >>> logs.shape, len(memory.read)
        (torch.Size([2, 8, 50]), 2)
    """

    def __init__(
        self,
        design: Design,
        *,
        vocabulary: int,
        memory: int,
        cutoffs: Sequence[int] = CUTOFFS,
        div_value: int = 1,
        dropout: float = 0.0,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.memory, self.dropout = memory, dropout
        self.vocabulary = TiedVocabulary(
            vocabulary, design.d, cutoffs=cutoffs, div_value=div_value, where="transformer_xl"
        )
        self.transformer = Transformer(design, RelativeAttention, dropout)
        for block in self.transformer:
            block.gradient_checkpointing = checkpointing

    @property
    def memory(self) -> int:
        """The most tokens to remember."""
        return self._memory

    @memory.setter
    def memory(self, tokens: int) -> None:
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            raise UsageError(
                f"transformer_xl: memory must be a whole number of tokens, 0 or more; got {tokens!r}. 0 remembers none."
            )
        self._memory = tokens

    def forward(
        self, tokens: Tensor, memory: SegmentMemory | None = None, targets: Tensor | None = None
    ) -> tuple[Tensor, SegmentMemory | None]:
        """targets None: log p of the word after each token; else -log p of the targets, in nats.

        memory: what the call for the segment before returned; None at the start of a text.
        """
        check_words("transformer_xl", "tokens", tokens, self.vocabulary.vocabulary)
        recalls = self._recalls(tokens, memory)
        X = F.dropout(self.vocabulary(tokens), self.dropout, self.training)
        Y = F.dropout(self.transformer(X, recalls), self.dropout, self.training)
        left = [recall.after for recall in recalls if recall.after is not None]
        return answers("transformer_xl", self.vocabulary, Y, targets), SegmentMemory(left) if left else None

    def _recalls(self, tokens: Tensor, memory: SegmentMemory | None) -> list[Recall]:
        """For each block what it is given of earlier tokens, and where it leaves what it reads."""
        design = self.transformer.design
        if memory is not None and not isinstance(memory, SegmentMemory):
            raise UsageError(
                f"transformer_xl: memory must be what the last call returned, a SegmentMemory; got "
                f"{type(memory).__name__}. Give None at the start of a text."
            )
        like = self.vocabulary.tables[0]
        if memory is not None:
            memory.fit("transformer_xl", len(tokens), design.depth, design.d, self.memory, like)
        before = [None] * design.depth if memory is None else memory.read
        T = tokens.shape[1] + (0 if memory is None else memory.length)
        R = sinusoids(T, design.d, like)
        return [Recall(R, read, self.memory) for read in before]


def transformer_xl(preset: str | None = None, *, dropout: float = 0.0, **choices: Any) -> TransformerXL:
    """A Transformer-XL at random initialisation; keywords override a preset. vocabulary and memory must be known.

    wt103_base: 16 blocks, d 410, 10 heads of 41, feed-forward 2100, about 151 M parameters (Dai et al. 2019).
    yu2023: 60 blocks, feed-forward 820, about 201 M parameters; trained with batch 40, segments of 150 tokens, 150 of
    memory, without dropout or clipping (Yu & Zhang 2023, section 3.4).

    vocabulary: words. memory: tokens to remember. cutoffs, div_value: of the adaptive softmax. dropout: after the
    embedding, after every branch, and before the softmax. checkpointing: compute blocks again in the backward pass
    instead of keeping their insides. Other choices are those of Design: depth, d, h, q, wiring, activation, weights.

    Examples:
        >>> model = ds.models.transformer_xl(vocabulary=50, memory=8, depth=2, d=16, h=2)
        >>> words, targets = torch.randint(50, (2, 8)), torch.randint(50, (2, 8))  # (B, n)
        >>> losses, memory = model(words, memory=None, targets=targets)
        >>> losses.shape, memory.read[0].shape
        (torch.Size([2, 8]), torch.Size([2, 8, 16]))
    """
    if preset is not None and str(preset) not in PRESETS:
        raise UnknownNameError("transformer_xl: " + unknown("preset", str(preset), PRESETS))
    given = PRESETS.get(str(preset), {}) | choices
    for name in ("vocabulary", "memory"):
        if name not in given:
            raise UsageError(f"transformer_xl: {name} must be given where no preset says it. Pass {name}=.")
    check_rate("transformer_xl", dropout)
    own = ("vocabulary", "memory", "cutoffs", "div_value", "checkpointing")
    sizes = {name: given.pop(name) for name in own if name in given}
    return TransformerXL(causal_design("transformer_xl", given), dropout=dropout, **sizes)
