"""torch's own nn.TransformerEncoder as presets: the classic post-norm Transformer and its pre-norm variant."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope._registry import shelve
from depthscope.models.sizes import Sizes


@shelve("preset")
def classic(sizes: Sizes) -> tuple[nn.Module, Tensor]:
    """post-norm nn.TransformerEncoder, torch's default initialisation, Gaussian tokens"""
    return _encoder(sizes, norm_first=False)


@shelve("preset")
def pre_norm(sizes: Sizes) -> tuple[nn.Module, Tensor]:
    """pre-norm nn.TransformerEncoder with a final norm, torch's default initialisation, Gaussian tokens"""
    return _encoder(sizes, norm_first=True)


def _encoder(sizes: Sizes, *, norm_first: bool) -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(
        sizes.width, sizes.heads, 4 * sizes.width, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    ending = nn.LayerNorm(sizes.width) if norm_first else None
    model = nn.TransformerEncoder(layer, sizes.depth, norm=ending, enable_nested_tensor=False)
    model.layers.apply(_draw_again)
    return model.eval(), torch.randn(sizes.batch, sizes.tokens, sizes.width)


def _draw_again(module: Any) -> None:
    """nn.TransformerEncoder copies one layer: without new draws all blocks would have the same weights."""
    for name in ("reset_parameters", "_reset_parameters"):
        if hasattr(module, name):
            getattr(module, name)()
            return
