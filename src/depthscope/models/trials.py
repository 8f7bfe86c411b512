"""Many random copies of one block at once: trials are an axis of the weights, not a loop."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from depthscope._registry import lookup
from depthscope.models.block import Block

Weights = dict[str, Tensor]


class _Steps(nn.Module):
    """Calls block.steps where functional_call expects a forward, and adds the attention matrices if they are wanted."""

    def __init__(self, block: Block, pattern: str | None) -> None:
        super().__init__()
        self.block, self.pattern = block, pattern

    def forward(self, X: Tensor) -> Weights:
        states = {"X": X, **self.block.steps(X)}
        if self.pattern is not None:
            states["P"] = self.block.attention.pattern(states[self.pattern])
        return states


@torch.no_grad()
def draw_trials(block: Block, trials: int) -> Weights:
    """The parameters of `trials` independent copies of a block: name -> (trials, ...)."""
    law = lookup("weights", block.weights)
    stacked = {name: value.expand(trials, *value.shape) for name, value in block.named_parameters()}
    for path, matrix in block.matrices():
        weight = stacked[f"{path}.weight"] = matrix.weight.new_empty(trials, *matrix.weight.shape)
        bias = None if matrix.bias is None else matrix.bias.new_empty(trials, *matrix.bias.shape)
        if bias is not None:
            stacked[f"{path}.bias"] = bias
        law(weight, bias, path.rpartition(".")[-1], block.h)
    return stacked


@torch.no_grad()
def run_trials(block: Block, weights: Weights, X: Tensor, *, pattern: str | None = None) -> dict[str, Tensor]:
    """All states inside the block for every trial, X among them; X (trials, ..., n, d) -> letter -> (trials, ..., n, d).

    pattern names the state that attention reads ("X" in post-norm, "X_hat" in pre-norm); P (trials, ..., h, n, n) is
    then among the results.
    """
    module = _Steps(block, pattern)
    named = {f"block.{name}": value for name, value in weights.items()}
    return vmap(lambda w, x: functional_call(module, w, (x,)))(named, X)
