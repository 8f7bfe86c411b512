"""Reference models in the papers' letters, presets at random initialisation, and whatever a user points at."""

from depthscope.models import wirings  # noqa: F401, every wiring puts itself on the shelf
from depthscope.models.adaptive import TiedVocabulary
from depthscope.models.block import Block, SelfAttention
from depthscope.models.decoder import Decoder, decoder
from depthscope.models.design import Design
from depthscope.models.ffn import FeedForward
from depthscope.models.relative_attention import RelativeAttention
from depthscope.models.segment_memory import SegmentMemory
from depthscope.models.tagger import Tagger, tagger
from depthscope.models.transformer import Transformer, classic
from depthscope.models.transformer_xl import TransformerXL, transformer_xl
from depthscope.models.vit import ViT, vit

__all__ = ["classic", "vit", "transformer_xl", "decoder", "tagger", "Transformer", "ViT", "TransformerXL", "Decoder"]
__all__ += [
    "Tagger",
    "Block",
    "SelfAttention",
    "RelativeAttention",
    "FeedForward",
    "TiedVocabulary",
    "SegmentMemory",
    "Design",
]
