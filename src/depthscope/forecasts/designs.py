"""Laws through a design that is never built: sizes, a wiring and a weight law say all that is needed."""

from functools import lru_cache

import torch
from torch import Tensor, nn

from depthscope.forecasts.law import Law
from depthscope.forecasts.rules import law_of
from depthscope.forecasts.tensor import LawTensor
from depthscope.models.block import Block
from depthscope.models.design import Design, streams_of
from depthscope.models.wirings.wiring import Wiring
from depthscope.registry import lookup
from depthscope.theory.covariance import less_mean


class Drawn:
    """Stands in for a weight that a weight law fills: it remembers the variance, and holds nothing."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.variance = torch.Size(shape), 0.0

    def normal_(self, mean: float, std: float) -> None:
        self.variance = std**2

    def uniform_(self, low: float, high: float) -> None:
        self.variance = (high - low) ** 2 / 12

    def zero_(self) -> None:
        self.variance = 0.0


def laws_of_design(design: Design, n: int, *, t_sim: float, tau: float = 0.0, scores: float = 1.0) -> list[Law]:
    """The law of n tokens before block 1 and after every block; tau de-escalates at block_out.

    The full mean, in causal models the sink form. scores is a factor on what the softmax reads. Tokens start alike by
    t_sim, with unit variance. One block without numbers in its matrices serves for all, with the wiring of each.
    """
    rho = (n * t_sim - 1) / (n - 1) if n > 1 else 1.0
    S = (1 - rho) * torch.eye(n, dtype=torch.float64) + rho
    wiring = lookup("wiring", design.wiring)
    state = wiring.beginning(design)(_tokens(Law.fresh(S.unsqueeze(0)), design.d))
    laws = [law_of(streams_of(state)[0])]
    without_mean = less_mean(n, tau, design.causal).unsqueeze(0)
    block = _bare_block(design, 1)
    for index in range(1, design.depth + 1):
        if wiring.fit_ is not Wiring.fit_:  # it reaches inside the branches: by the index, perhaps
            block = _bare_block(design, index)
        streams = streams_of(_wired(block, design, index, scores)(*streams_of(state)))
        main = law_of(streams[0]).mixed(without_mean) if tau else law_of(streams[0])
        laws.append(main)
        main = main.settled() if len(streams) == 1 else main  # two streams share their sources
        state = (LawTensor(streams[0].shape, streams[0].dtype, main), *streams[1:])
    return laws


def _tokens(law: Law, d: int) -> LawTensor:
    return LawTensor(torch.Size((1, law.tokens, d)), torch.float32, law)


def _bare_block(design: Design, index: int) -> Block:
    """A block without numbers."""
    with torch.device("meta"):
        return Block(design, index).eval()


def _wired(block: Block, design: Design, index: int, scores: float) -> Block:
    """The block as number `index`: norms and scalars are real, matrices know their variance and nothing else."""
    block.wiring = lookup("wiring", design.wiring)(design, index).eval()
    for path, matrix in block.matrices():
        role = path.rpartition(".")[-1]
        weight, bias = _variances(design, role, tuple(matrix.weight.shape))
        both = scores if role in ("W_q", "W_k") else 1.0  # sqrt(scores) on each of the two
        _remember(matrix.weight, both * weight * block.wiring.gain(role) ** 2)
        if matrix.bias is not None:
            _remember(matrix.bias, bias)
    return block


@lru_cache
def _variances(design: Design, role: str, shape: tuple[int, int]) -> tuple[float, float]:
    """What the design's law gives the weights and the biases of one matrix."""
    weight, bias = Drawn(*shape), Drawn(shape[0])
    lookup("weight law", design.weights)(weight, bias, role, design.h)
    return weight.variance, bias.variance


def _remember(parameter: nn.Parameter | Tensor, variance: float) -> None:
    parameter.variance = variance  # type: ignore[union-attr]
