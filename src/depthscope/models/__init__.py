"""Reference models in the papers' letters, presets at random initialisation, and whatever a user points at."""

from depthscope.models.block import Block, SelfAttention
from depthscope.models.design import Design
from depthscope.models.ffn import FeedForward
from depthscope.models.transformer import Transformer, classic
from depthscope.models.vit import ViT, vit

__all__ = ["classic", "vit", "Transformer", "ViT", "Block", "SelfAttention", "FeedForward", "Design"]
