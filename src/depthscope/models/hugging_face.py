"""Hugging Face families as presets: small configurations at random initialisation, nothing downloaded."""

from typing import Any

import torch
from torch import nn

from depthscope.errors import MissingExtraError
from depthscope.extras import install
from depthscope.models.sizes import Sizes
from depthscope.registry import TABLES

VOCABULARY = 1000
POSITIONS = 2  # RoBERTa counts positions from 2
_BERT = {
    "depth": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
}

# family -> (name of its classes, its words for the sizes, further settings, what it reads)
FAMILIES: dict[str, tuple[str, dict[str, str], dict[str, Any], str]] = {
    "bert": ("Bert", _BERT, {}, "tokens"),
    "roberta": ("Roberta", _BERT, {}, "tokens"),
    "albert": ("Albert", _BERT, {"embedding_size": 128}, "tokens"),
    "deberta": ("DebertaV2", _BERT, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "tokens"),
    "modernbert": ("ModernBert", _BERT, {"pad_token_id": 0}, "tokens"),
    "distilbert": (
        "DistilBert",
        {"depth": "n_layers", "width": "dim", "heads": "n_heads", "ffn": "hidden_dim"},
        {},
        "tokens",
    ),
    "xlnet": ("XLNet", {"depth": "n_layer", "width": "d_model", "heads": "n_head", "ffn": "d_inner"}, {}, "tokens"),
    "gpt2": ("GPT2", {"depth": "n_layer", "width": "n_embd", "heads": "n_head", "ffn": "n_inner"}, {}, "tokens"),
    "llama": ("Llama", _BERT, {}, "tokens"),
    "qwen3": ("Qwen3", _BERT, {}, "tokens"),
    "t5": ("T5", {"depth": "num_layers", "width": "d_model", "heads": "num_heads", "ffn": "d_ff"}, {}, "tokens"),
    "vit": ("ViT", _BERT, {}, "images"),
    "deit": ("DeiT", _BERT, {}, "images"),
}


def _preset(family: str) -> Any:
    classes, words, settings, reads = FAMILIES[family]

    def build(sizes: Sizes) -> tuple[nn.Module, torch.Tensor]:
        try:
            import transformers
        except ImportError:
            raise MissingExtraError(f"preset {family}: needs transformers. {install('hf')}") from None
        said = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()  # it warns of special tokens outside our small vocabulary
        try:
            config = getattr(transformers, f"{classes}Config")(
                **{words[name]: getattr(sizes, name) for name in ("depth", "width", "heads")},
                **{words["ffn"]: 4 * sizes.width},
                **_head_sizes(family, sizes),
                **_input_sizes(reads, sizes),
                **({} if family == "t5" else {"initializer_range": sizes.std}),
                **settings,
            )
            needed = sizes.tokens + POSITIONS
            if 0 < getattr(config, "max_position_embeddings", needed) < needed:  # XLNet says -1: no limit
                config.max_position_embeddings = needed
            kind = "T5EncoderModel" if family == "t5" else f"{classes}Model"
            model = getattr(transformers, kind)(config).eval()
        finally:
            transformers.logging.set_verbosity(said)
        if reads == "images":
            return model, torch.randn(sizes.batch, 3, config.image_size, config.image_size)
        return model, torch.randint(0, VOCABULARY, (sizes.batch, sizes.tokens))

    build.__name__ = family
    build.__doc__ = f"Hugging Face {classes}, random weights with the gain of std 0.02 at width 768, random {reads}"
    return build


def _head_sizes(family: str, sizes: Sizes) -> dict[str, int]:
    if family == "t5":
        return {"d_kv": sizes.width // sizes.heads}
    if family in ("llama", "qwen3"):
        grouped = max(1, sizes.heads // 2)
        return {
            "num_key_value_heads": grouped if sizes.heads % grouped == 0 else sizes.heads,
            "head_dim": sizes.width // sizes.heads,
        }
    return {}


def _input_sizes(reads: str, sizes: Sizes) -> dict[str, int]:
    """A vocabulary, or a square image of about as many patches as tokens were asked for."""
    if reads == "tokens":
        return {"vocab_size": VOCABULARY}
    return {"patch_size": 4, "image_size": 4 * max(2, round(sizes.tokens**0.5))}


for _family in FAMILIES:
    TABLES["preset"][_family] = _preset(_family)
