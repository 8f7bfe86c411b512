"""One answer for each token, on the reference block: the model of the small tasks in Dong et al. 2021, section 4."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import ShapeError, UsageError
from depthscope.models._language import check_words, first_positions
from depthscope.models.design import Design, check_size, design_of
from depthscope.models.transformer import Transformer


class Tagger(nn.Module):
    """Words (B, n), or points (B, n, channels) -> scores (B, n, classes).

    Words are embedded from N(0, 1), points by a network of two layers. Positions are learned and start from N(0, 1).
    Without them who permutes the tokens permutes the answers, and equal tokens have equal answers.

    Examples:
        >>> design = ds.models.Design(depth=2, d=16, h=2)
        >>> model = ds.models.Tagger(design, classes=3, vocabulary=None, channels=2, tokens=None)  # points of a plane
        >>> model(torch.randn(2, 8, 2)).shape
        torch.Size([2, 8, 3])
    """

    def __init__(
        self, design: Design, *, classes: int, vocabulary: int | None, channels: int | None, tokens: int | None
    ) -> None:
        super().__init__()
        self.words, self.channels, d = vocabulary, channels, design.d
        if vocabulary is not None:
            self.embed: nn.Module = nn.Embedding(vocabulary, d)
        else:
            self.embed = nn.Sequential(nn.Linear(channels or 1, d), nn.ReLU(), nn.Linear(d, d))
        self.positions = None if tokens is None else nn.Parameter(torch.randn(tokens, d))
        self.transformer = Transformer(design)
        self.head = nn.Linear(d, classes)

    def tokens(self, inputs: Tensor) -> Tensor:
        """The input of the first block, (B, n, d)."""
        if self.words is not None:
            check_words("tagger", "tokens", inputs, self.words)
        elif inputs.ndim != 3 or inputs.shape[-1] != self.channels or not inputs.is_floating_point():
            raise ShapeError(
                f"tagger: points must be (B, n, {self.channels}) of floating point; got {tuple(inputs.shape)} "
                f"{inputs.dtype}. Give other inputs, or build the model with another channels=."
            )
        X = self.embed(inputs)
        return X if self.positions is None else X + first_positions("tagger", self.positions, inputs.shape[1])

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.transformer(self.tokens(inputs)))


def tagger(
    *,
    classes: int,
    vocabulary: int | None = None,
    channels: int | None = None,
    tokens: int | None = None,
    **choices: Any,
) -> Tagger:
    """A model with one answer for each token, at random initialisation.

    vocabulary: of words, or channels: numbers of a point; one of the two. tokens: of the longest sequence, None for a
    model without positions. Choices by keyword are those of Design: depth, d, h, wiring, activation, weights, ...;
    activation="none" leaves the feed-forward networks out, as the paper does.

    Examples:
        >>> model = ds.models.tagger(classes=3, vocabulary=50, tokens=8, depth=2, d=16, h=2)
        >>> model(torch.randint(50, (2, 8))).shape  # (B, n, classes)
        torch.Size([2, 8, 3])
    """
    if (vocabulary is None) == (channels is None):
        raise UsageError(
            f"tagger: inputs must be words or points; got vocabulary {vocabulary!r} and channels {channels!r}. "
            "Give one of the two."
        )
    sizes = {"classes": classes, "vocabulary": vocabulary, "channels": channels, "tokens": tokens}
    for name, size in sizes.items():
        if size is not None or name == "classes":
            check_size("tagger", name, size)
    design = design_of("tagger", **choices)
    return Tagger(design, classes=classes, vocabulary=vocabulary, channels=channels, tokens=tokens)
