"""Language models as presets, on random words."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.models.decoder import decoder as plain_decoder
from depthscope.models.sizes import Sizes
from depthscope.models.transformer_xl import transformer_xl as xl
from depthscope.registry import shelve

VOCABULARY = 256


@shelve("preset")
def transformer_xl(sizes: Sizes) -> tuple[nn.Module, Tensor]:
    """ds.models.transformer_xl: relative positions, post-norm, causal, at the start of a text of random words"""
    return _on_words(xl(vocabulary=VOCABULARY, memory=sizes.tokens, **_choices(sizes)), sizes)


@shelve("preset")
def decoder(sizes: Sizes) -> tuple[nn.Module, Tensor]:
    """ds.models.decoder: learned positions, post-norm, causal, on random words"""
    return _on_words(plain_decoder(vocabulary=VOCABULARY, tokens=sizes.tokens, **_choices(sizes)), sizes)


def _choices(sizes: Sizes) -> dict[str, Any]:
    return {"depth": sizes.depth, "d": sizes.width, "h": sizes.heads}


def _on_words(model: nn.Module, sizes: Sizes) -> tuple[nn.Module, Tensor]:
    return model.eval(), torch.randint(0, VOCABULARY, (sizes.batch, sizes.tokens))
