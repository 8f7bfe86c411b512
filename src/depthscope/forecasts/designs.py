"""Laws through a design that is never built: sizes, a wiring and a weight law say all that is needed."""

import torch
from torch import Tensor, nn

from depthscope._registry import lookup
from depthscope.forecasts.law import Law
from depthscope.forecasts.rules import law_of
from depthscope.forecasts.tensor import LawTensor
from depthscope.models.block import Block
from depthscope.models.design import Design, streams_of


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


def laws_of_design(design: Design, n: int, *, t_sim: float, tau: float = 0.0) -> list[Law]:
    """The law of n tokens before block 1 and after every block; tau de-escalates at block_out.

    The full mean, in causal models the sink form. Tokens start alike by t_sim, with unit variance. Blocks are made one
    at a time, without numbers in their matrices.
    """
    rho = (n * t_sim - 1) / (n - 1) if n > 1 else 1.0
    S = (1 - rho) * torch.eye(n, dtype=torch.float64) + rho
    wiring = lookup("wiring", design.wiring)
    state = wiring.beginning(design)(_tokens(Law.fresh(S.unsqueeze(0)), design.d))
    laws = [law_of(streams_of(state)[0])]
    less_mean = torch.eye(n, dtype=torch.float64) - tau * _mean_seen(n, design.causal)
    for index in range(1, design.depth + 1):
        streams = streams_of(_block(design, index)(*streams_of(state)))
        main = law_of(streams[0]).mixed(less_mean.unsqueeze(0)) if tau else law_of(streams[0])
        laws.append(main)
        main = main.settled() if len(streams) == 1 else main  # two streams share their sources
        state = (LawTensor(streams[0].shape, streams[0].dtype, main), *streams[1:])
    return laws


def _mean_seen(n: int, causal: bool) -> Tensor:
    """The matrix of DeEscalate's mean: 1 1^T / n, and sum_{s <= t} / (t + 1) where tokens may not see their future."""
    if not causal:
        return torch.full((n, n), 1 / n, dtype=torch.float64)
    return torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(2, n + 2, dtype=torch.float64).unsqueeze(-1)


def _tokens(law: Law, d: int) -> LawTensor:
    return LawTensor(torch.Size((1, law.tokens, d)), torch.float32, law)


def _block(design: Design, index: int) -> Block:
    """A block whose matrices know their variance and nothing else; its norms and scalars are real."""
    with torch.device("meta"):
        block = Block(design, index)
    block.wiring = lookup("wiring", design.wiring)(design, index)
    for path, matrix in block.matrices():
        weight = Drawn(*matrix.weight.shape)
        bias = Drawn(matrix.out_features) if matrix.bias is not None else None
        role = path.rpartition(".")[-1]
        lookup("weight law", design.weights)(weight, bias, role, design.h)
        _remember(matrix.weight, weight.variance * block.wiring.gain(role) ** 2)
        if bias is not None:
            _remember(matrix.bias, bias.variance)
    return block.eval()


def _remember(parameter: nn.Parameter | Tensor, variance: float) -> None:
    parameter.variance = variance  # type: ignore[union-attr]
