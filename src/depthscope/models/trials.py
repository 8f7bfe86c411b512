"""Many random copies of one block at once: trials are an axis of the weights, not a loop."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from depthscope.models.block import Block
from depthscope.models.design import Design, State, streams_of
from depthscope.registry import lookup

Tensors = dict[str, Tensor]


class _Steps(nn.Module):
    """Calls block.steps where functional_call expects a forward, and adds the attention matrices if they are wanted."""

    def __init__(self, block: Block, pattern: bool) -> None:
        super().__init__()
        self.block, self.pattern = block, pattern

    def forward(self, X: Tensor, *streams: Tensor) -> Tensors:
        steps = self.block.steps(X, *streams)
        states = {"X": X, **steps, "out": list(steps.values())[-1]}
        if self.pattern:
            states["P"] = self.block.attention.pattern(states[self.block.wiring.reads])
        return states


@torch.no_grad()
def draw_trials(block: Block, trials: int) -> Tensors:
    """The parameters of `trials` independent copies of a block: name -> (trials, ...)."""
    stacked = {name: value.detach().expand(trials, *value.shape) for name, value in block.named_parameters()}
    for path, matrix in block.matrices():
        weight = stacked[f"{path}.weight"] = matrix.weight.new_empty(trials, *matrix.weight.shape)
        bias = None if matrix.bias is None else matrix.bias.new_empty(trials, *matrix.bias.shape)
        if bias is not None:
            stacked[f"{path}.bias"] = bias
        block.draw_(path, weight, bias)
    return stacked


@torch.no_grad()
def run_trials(block: Block, weights: Tensors, X: State, *, pattern: bool = False) -> dict[str, Tensor]:
    """All states of the block for every trial, from "X" to "out": letter -> (trials, ..., n, d), as X has it.

    "X" and "out" are the main stream. pattern adds the attention matrices P (trials, ..., h, n, n).
    """
    module = _Steps(block, pattern)
    named = {f"block.{name}": value for name, value in weights.items()}
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no batching rule
        return vmap(lambda w, x: functional_call(module, w, x))(named, streams_of(X))


@torch.no_grad()
def run_ffn(block: Block, weights: Tensors, Y: Tensor) -> Tensor:
    """The feed-forward branch alone, FFN(Y) for every trial; Y (trials, ..., n, d) -> (trials, ..., n, d)."""
    own = {name.removeprefix("ffn."): value for name, value in weights.items() if name.startswith("ffn.")}
    return vmap(lambda w, y: functional_call(block.ffn, w, (y,)))(own, Y)


def chain(
    design: Design, X: Tensor, *, pattern: bool = False, between: Callable[[Tensor], Tensor] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Block after block of len(X) Transformers at once, each with weights of its own: yields the states of each block.

    X (trials, ..., n, d); axes between the first and the last two share the weights of their trial. `between` acts on
    the output of every block (its main stream), as a remedy at block_out does; the yielded states are those before it.
    What follows the last block (the ending of pre-norm) is left out.
    """
    with torch.no_grad():
        streams = streams_of(lookup("wiring", design.wiring).beginning(design).to(X)(X))
    for index in range(design.depth):
        block = Block(design, index + 1).to(X)
        states = run_trials(block, draw_trials(block, len(X)), streams, pattern=pattern)
        yield states
        out = states["out"] if between is None else between(states["out"])
        streams = (out, *(states[letter] for letter in block.wiring.streams))
