"""The way back: how token gradients grow from block to block of a random Transformer, by mean field."""

from depthscope.theory.backward.growth import gradient_growth, growth_of_diverse_tokens, reaches

__all__ = ["gradient_growth", "growth_of_diverse_tokens", "reaches"]
