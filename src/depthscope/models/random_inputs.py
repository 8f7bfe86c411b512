"""Random inputs for a model that is given without any: ids, images, or embedded tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError

OFFSET = 2  # RoBERTa and its kin count positions from 2


def random_inputs(model: nn.Module, n: int = 64, batch: int = 4, seed: int = 0) -> Tensor:
    """A batch for models of Hugging Face (by their config), those of ds.models, and stacks on embedded tokens.

    n is the number of tokens where the model leaves it open. The random state of torch is left alone.
    """
    chance = torch.Generator().manual_seed(seed)
    config: Any = getattr(model, "config", None)
    side = getattr(config, "image_size", None)
    if getattr(config, "vocab_size", None):
        longest = getattr(config, "max_position_embeddings", None) or n + OFFSET
        return torch.randint(0, config.vocab_size, (batch, max(1, min(n, longest - OFFSET))), generator=chance)
    words = getattr(getattr(model, "vocabulary", None), "vocabulary", None)  # ds.models.transformer_xl, decoder
    words = words or getattr(model, "words", None)  # ds.models.tagger
    if isinstance(words, int):
        places: Any = getattr(model, "positions", None)
        return torch.randint(0, words, (batch, n if places is None else min(n, len(places))), generator=chance)
    if hasattr(model, "channels") and hasattr(model, "side"):  # ds.models.vit
        return torch.randn(batch, model.channels, model.side, model.side, generator=chance)  # type: ignore[call-overload]
    if hasattr(model, "channels") and hasattr(model, "words"):  # ds.models.tagger on points
        return torch.randn(batch, n, model.channels, generator=chance)  # type: ignore[call-overload]
    if side:
        height, width = (side, side) if isinstance(side, int) else side
        return torch.randn(batch, getattr(config, "num_channels", 3), height, width, generator=chance)
    return torch.randn(batch, n, _width(model), generator=chance)


def _width(model: nn.Module) -> int:
    """The channels of the first norm: in a stack on embedded tokens it acts on the tokens."""
    design = getattr(model, "design", None)
    if design is not None:
        return design.d
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return module.normalized_shape[-1]
    raise UsageError(
        f"random inputs: {type(model).__name__} must have a config (Hugging Face), or a norm that tells the width of "
        "its tokens; it has neither. Pass inputs, as for a scan."
    )
