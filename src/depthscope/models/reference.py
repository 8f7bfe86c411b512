"""The reference Transformer as presets: the classic post-norm block, and its pre-norm variant."""

import torch
from torch import Tensor, nn

from depthscope.models.sizes import Sizes
from depthscope.models.transformer import classic as transformer
from depthscope.registry import shelve


@shelve("preset")
def classic(sizes: Sizes) -> tuple[nn.Module, Tensor]:
    """ds.models.classic: Algorithm 1 of Yu & Zhang 2023, post-norm, W of variance 1/d, Gaussian tokens"""
    return _reference(sizes, "post_norm")


@shelve("preset")
def pre_norm(sizes: Sizes) -> tuple[nn.Module, Tensor]:
    """ds.models.classic(wiring="pre_norm"): norms before the branches and after the last block, Gaussian tokens"""
    return _reference(sizes, "pre_norm")


def _reference(sizes: Sizes, wiring: str) -> tuple[nn.Module, Tensor]:
    model = transformer(sizes.depth, sizes.width, sizes.heads, wiring=wiring).eval()
    return model, torch.randn(sizes.batch, sizes.tokens, sizes.width)
