"""Laws through a design that is never built: sizes, a wiring and a weight law say all that is needed."""

import torch
from torch import nn

from depthscope.laws.law import Law
from depthscope.laws.tensor import DrawnMatrix, LawTensor, law_of
from depthscope.models.block import Block
from depthscope.models.design import Design, streams_of
from depthscope.models.weights import variances
from depthscope.models.wirings.wiring import Wiring
from depthscope.registry import lookup
from depthscope.theory.covariance import less_mean


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
        weight, bias = variances(design.weights, role, tuple(matrix.weight.shape), design.h)
        both = scores if role in ("W_q", "W_k") else 1.0  # sqrt(scores) on each of the two
        _replace(matrix, "weight", both * weight * block.wiring.gain(role) ** 2)
        if matrix.bias is not None:
            _replace(matrix, "bias", bias)
    return block


def _replace(matrix: nn.Linear, name: str, variance: float) -> None:
    """A drawn matrix in the place of a parameter."""
    shape = getattr(matrix, name).shape
    delattr(matrix, name)
    setattr(matrix, name, DrawnMatrix.of(shape, variance))
