"""torch's own nn.TransformerEncoder as a preset."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.models.sizes import Sizes
from depthscope.registry import shelve


@shelve("preset")
def torch_encoder(sizes: Sizes) -> tuple[nn.Module, Tensor]:
    """post-norm nn.TransformerEncoder, torch's default initialisation, Gaussian tokens"""
    layer = nn.TransformerEncoderLayer(sizes.width, sizes.heads, 4 * sizes.width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, sizes.depth, enable_nested_tensor=False)
    model.layers.apply(_draw_again)
    return model.eval(), torch.randn(sizes.batch, sizes.tokens, sizes.width)


def _draw_again(module: Any) -> None:
    """nn.TransformerEncoder copies one layer: without new draws all blocks would have the same weights."""
    for name in ("reset_parameters", "_reset_parameters"):
        if hasattr(module, name):
            getattr(module, name)()
            return
