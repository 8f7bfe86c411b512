"""A Vision Transformer on the reference block (Dosovitskiy et al. 2021; sizes of Yu & Zhang 2023, Table 1)."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.checks import rms, rounding_floor
from depthscope.errors import ShapeError, UnknownNameError, UsageError, VanishedError
from depthscope.models.design import Design, check_size, design_of
from depthscope.models.transformer import Transformer
from depthscope.registry import unknown

PRESETS: dict[str, dict[str, Any]] = {
    "yu2023": {"depth": 80, "d": 192, "h": 8, "q": 384, "weights": "torch_default", "output": True},
}


class ClsPool(nn.Module):
    """The first token, which stands for the image."""

    def forward(self, X: Tensor) -> Tensor:
        return X[:, 0]


class MeanPool(nn.Module):
    """sum_i x_i / n: every token weighs the same. Tokens without a mean are refused: their pooled vector is zero."""

    def forward(self, X: Tensor) -> Tensor:
        pooled = X.mean(-2)
        size, left, floor = rms(X), rms(pooled), rounding_floor(X.dtype)
        if left < floor * size:
            raise VanishedError(
                f"vit: mean pooling must leave more of the tokens than rounding noise, {floor:.1e} of their size in "
                f"{X.dtype}; got {left / size:.1e}. Their mean was removed, as by complete de-escalation of the last "
                'block: use pooling="cls", a tau below 1, or leave the last block out of blocks=.'
            )
        return pooled


class AttentionPool(nn.Module):
    """sum_i p_i x_i with p = softmax(X w / sqrt(d)): one learned query looks at all tokens."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(d))

    def forward(self, X: Tensor) -> Tensor:
        p = (X @ self.w * self.w.numel() ** -0.5).softmax(-1)  # (B, n)
        return (p.unsqueeze(-2) @ X).squeeze(-2)


POOLS = ("cls", "mean", "attention")


def _pool(pooling: str, d: int) -> nn.Module:
    if pooling == "attention":
        return AttentionPool(d)
    return ClsPool() if pooling == "cls" else MeanPool()


class ViT(nn.Module):
    """Images (B, channels, side, side) -> class scores (B, classes).

    Square patches are embedded, a cls token is put in front (pooling "cls" only), learned positions are added; token
    and positions start from N(0, 1), as in the code that the paper builds on.

    Examples:
        >>> design = ds.models.Design(depth=2, d=8, h=2)
        >>> model = ds.models.ViT(design, side=8, patch=4, channels=3, classes=10, pooling="cls")
        >>> model(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, design: Design, *, side: int, patch: int, channels: int, classes: int, pooling: str) -> None:
        super().__init__()
        self.side, self.channels = side, channels
        tokens = (side // patch) ** 2 + (pooling == "cls")
        self.embed = nn.Conv2d(channels, design.d, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, design.d)) if pooling == "cls" else None
        self.positions = nn.Parameter(torch.randn(tokens, design.d))
        self.transformer = Transformer(design)
        self.pool = _pool(pooling, design.d)
        self.head = nn.Linear(design.d, classes)

    def tokens(self, images: Tensor) -> Tensor:
        """The input of the first block, (B, n, d)."""
        if images.shape[1:] != (self.channels, self.side, self.side):
            raise ShapeError(
                f"vit: images must be (B, {self.channels}, {self.side}, {self.side}); got {tuple(images.shape)}. "
                "Resize them, or build the model with other side= and channels=."
            )
        X = self.embed(images).flatten(2).transpose(1, 2)
        if self.cls is not None:
            X = torch.cat([self.cls.expand(len(X), -1, -1), X], 1)
        return X + self.positions

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.transformer(self.tokens(images))))


def vit(
    preset: str | None = None,
    *,
    side: int = 32,
    patch: int = 4,
    channels: int = 3,
    classes: int = 10,
    pooling: str = "cls",
    **choices: Any,
) -> ViT:
    """A Vision Transformer at random initialisation: `vit("yu2023")` is Table 1's; keywords override a preset.

    Choices by keyword are those of Design: depth, d, h, q, alpha, wiring, attention, activation, weights, ...

    Examples:
        >>> ds.models.vit(side=8, patch=4, depth=2, d=8, h=2)(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 10])
    """
    if preset is not None and str(preset) not in PRESETS:
        raise UnknownNameError("vit: " + unknown("preset", str(preset), PRESETS))
    if str(pooling) not in POOLS:
        raise UnknownNameError("vit: " + unknown("pooling", pooling, POOLS))
    for name, size in (("side", side), ("patch", patch), ("channels", channels), ("classes", classes)):
        check_size("vit", name, size)
    if side % patch:
        raise UsageError(f"vit: patches must tile the image; got side {side} and patch {patch}. Choose a divisor.")
    design = design_of("vit", **({} if preset is None else PRESETS[preset]) | choices)
    if design.causal and pooling == "cls":
        raise UsageError(
            "vit: a causal model must not pool its cls token, which is the first and sees no patch; "
            'got causal=True and pooling="cls". Use pooling="attention".'
        )
    return ViT(design, side=side, patch=patch, channels=channels, classes=classes, pooling=pooling)
