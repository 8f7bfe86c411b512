"""Token similarity by depth: blocks, each a few maps on tokens, by two numbers or by all their overlaps.

A block is described by its junctions. Weights are drawn anew for every block and never built; a thousand blocks in two
numbers take milliseconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UnknownNameError, UsageError
from depthscope.junctions import POST_NORM, Declaration, Junction, Junctions, declared, everywhere
from depthscope.registry import unknown
from depthscope.theory import token_matrix, two_numbers
from depthscope.theory.covariance import energies_of
from depthscope.theory.kernels import ACTIVATIONS
from depthscope.theory.matrix_gains import MatrixGains
from depthscope.theory.numbers import checked
from depthscope.theory.token_matrix import TokenMatrix
from depthscope.theory.two_numbers import Overlaps, hidden_overlaps, tokens_alike

State = Any  # Overlaps or TokenMatrix
Watch = Callable[[str, State], None]
MAPS: dict[type, Any] = {Overlaps: two_numbers, TokenMatrix: token_matrix}  # the same maps by name
_POST_NORM = everywhere(POST_NORM)
SITES = ("block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out")


@dataclass(frozen=True)
class Blocks:
    """The numbers of a stack: see similarity_by_depth."""

    n: int
    s_A: float = 1.0
    k: float = 0.0
    activation: str = "relu"
    junctions: Declaration = _POST_NORM
    score_variance: float = 0.0
    hidden_variance: float = 1.0
    s_O: float = 1.0
    s_2: float = 1.0
    b_A: float = 0.0
    b_F: float = 0.0
    alpha: float = 1.0
    tau: float = 0.0
    site: str = "block_out"

    def __post_init__(self) -> None:
        where = "similarity_by_depth"
        numbers = ("n", "s_A", "k", "score_variance", "hidden_variance", "s_O", "s_2", "b_A", "b_F", "alpha", "tau")
        checked(where, **{name: getattr(self, name) for name in numbers})
        for what, name, known in (
            ("site", self.site, SITES),
            ("activation", self.activation, (*ACTIVATIONS, "swiglu")),
        ):
            if name not in known:
                raise UnknownNameError(f"{where}: {unknown(what, name, known)}")
        if self.tau and self.site != "block_out" and self.junctions(1, 1).network.again:
            raise UsageError(
                f"{where}: site must be block_out for blocks that add their input once more; got {self.site!r}. Build "
                "the model, fix it there, and forecast it: ds.forecast(model)."
            )

    @property
    def matrices(self) -> MatrixGains:
        """Without the gains that a wiring gives them."""
        return MatrixGains(self.s_A, self.score_variance, self.k, self.hidden_variance, self.s_O, self.s_2)


def similarity_by_depth(*, depth: int, n: int, t_sim: float | None = None, q: float = 1.0, **numbers: Any) -> Tensor:
    """Token similarity before block 1 and after every block, (depth + 1,), from a handful of numbers.

    n tokens of energy q a channel start alike by t_sim (1/n when left out: independent tokens). Then, all with a value
    of their own when left out: s_A = d Var(W_V) d Var(W_O); k, the energy gain of the network (network_gain;
    d Var(W_1) q Var(W_2) / 2 for ReLU), its activation, hidden_variance = d Var(W_1); score_variance =
    d Var(W_q) d Var(W_k), 0 for uniform attention; b_A and b_F, variances of the biases that end the branches;
    alpha; tau of de-escalation at a site. s_O and s_2, the shares of W_O and W_2 in s_A and k, count for wirings with
    norms inside their branches. junctions(depth, index) describes a block, or wiring names one that declares them; s_A
    and k come without the gains that a wiring gives its matrices.

    Examples:
        >>> ds.theory.similarity_by_depth(depth=6, n=64).shape
        torch.Size([7])
    """
    states = overlaps_by_depth(depth=depth, n=n, t_sim=t_sim, q=q, **numbers)
    return torch.tensor([x.t_sim(n) for x in states], dtype=torch.float64)


def overlaps_by_depth(
    *, depth: int, n: int, t_sim: float | None = None, q: float = 1.0, **numbers: Any
) -> list[Overlaps]:
    """The two numbers themselves, depth + 1 states with q, p, rho, t_sim(n) and t_div(n); arguments as above.

    Examples:
        >>> states = ds.theory.overlaps_by_depth(depth=6, n=64)
        >>> len(states), round(float(states[6].t_sim(64)), 2)
        (7, 0.5)
    """
    blocks = _blocks(n, numbers)
    checked("similarity_by_depth", q=q)
    start = 1 / n if t_sim is None else checked("similarity_by_depth", t_sim=t_sim)[0]
    if math.isnan(start):
        raise UsageError("similarity_by_depth: t_sim must be a number in [0, 1]; got NaN. Leave it out for 1/n.")
    return _states(tokens_alike(start, n, q), depth, blocks)


def _blocks(n: int, numbers: dict[str, Any]) -> "Blocks":
    known = [field.name for field in fields(Blocks)]
    if "wiring" in numbers:
        numbers = {"junctions": declared(numbers["wiring"])} | {k: v for k, v in numbers.items() if k != "wiring"}
    for name, value in numbers.items():
        if name not in known:
            raise UnknownNameError("similarity_by_depth: " + unknown("number", name, known))
        if isinstance(value, Tensor) and value.ndim:
            raise UsageError(f"similarity_by_depth: {name} must be one number; got a tensor of {tuple(value.shape)}.")
    if n != int(n):
        raise UsageError(f"similarity_by_depth: n must be a whole number of tokens; got {n}.")
    return Blocks(n=int(n), **numbers)


def covariances_by_depth(S: Tensor, *, depth: int, causal: bool = False, **numbers: Any) -> list[Tensor]:
    """All overlaps of the tokens before block 1 and after every block, (n, n) each, from those at the start.

    S_ij = x_i . x_j / d (n, n), of any tokens; causal: a token sees those before it, and de-escalation takes its sink
    form. Further numbers as for similarity_by_depth, of which this is the form for every pair of tokens.

    Examples:
        >>> states = ds.theory.covariances_by_depth(torch.eye(8), depth=3)  # 8 tokens that share nothing
        >>> len(states), states[3].shape
        (4, torch.Size([8, 8]))
    """
    if S.ndim != 2 or S.shape[0] != S.shape[1]:
        raise UsageError(f"covariances_by_depth: S must be (n, n), overlaps of tokens; got {tuple(S.shape)}.")
    states = _states(TokenMatrix(S.double(), causal), depth, _blocks(len(S), numbers))
    return [x.S for x in states]


def similarities(states: list[Tensor]) -> Tensor:
    """t_sim of covariances (n, n), (len(states),)."""
    energies = [energies_of(S) for S in states]
    return torch.stack([common / (common + centred) for common, centred in energies])


def _states(start: State, depth: int, blocks: "Blocks") -> list[State]:
    checked("similarity_by_depth", depth=depth)
    if depth != int(depth):
        raise UsageError(f"similarity_by_depth: depth must be a whole number of blocks; got {depth}. Round it.")
    found = [blocks.junctions(int(depth), index) for index in range(1, int(depth) + 1)]
    states = [MAPS[type(start)].normed(start) if found and found[0].normed_input else start]
    for junctions in found:
        states.append(block(states[-1], blocks, junctions))
    return states


def block(x: State, blocks: Blocks, junctions: Junctions, watch: Watch = lambda place, state: None) -> State:
    """One block: attention joins the stream, then the network does; de-escalation acts where its site comes by.

    watch is shown what each branch reads, what its matrices give before norms and factors, and the sum.
    """
    c, maps, attention, network = blocks, MAPS[type(x)], junctions.attention, junctions.network
    gains = c.matrices.times(junctions.gains, c.activation)

    def at(site: str, state: State) -> State:
        return maps.de_escalated(state, n=c.n, tau=c.tau) if site == c.site and c.tau else state

    x = at("block_in", x)
    read = at("attn_in", _read(maps, attention, x))
    watch("attention reads", read)
    A = maps.attended(read, n=c.n, s_A=gains.s_A, score_variance=gains.score_variance)
    watch("attention gives", A)
    A = maps.scaled(maps.normed(A), gains.s_O**0.5) if attention.inner_norm else A
    A = at("sa_out", _written(maps, attention, maps.shifted(A, c.b_A)))
    y_sum = at("sa_sum", maps.joined(x, A, skip=attention.skip, weight=c.alpha))
    watch("attention sum", y_sum)
    y = at("ffn_in", maps.normed(y_sum) if attention.normed_sum else y_sum)
    read = _read(maps, network, y)
    watch("network reads", read)
    F = maps.networked(read, k=gains.k, activation=c.activation, hidden_variance=gains.hidden_variance)
    watch("network gives", F)
    F = _normed_units(maps, F, gains, c.activation) if network.inner_norm else F
    z = maps.joined(y, _written(maps, network, maps.shifted(F, c.b_F)), skip=network.skip)
    if network.again:  # y holds a share of x already
        share = attention.skip / maps.size(y_sum) if attention.normed_sum else attention.skip
        z = maps.joined_again(z, x, weight=network.again, share=network.skip * share)
    z = at("ffn_sum", z)
    watch("network sum", z)
    return at("block_out", maps.normed(z) if network.normed_sum else z)


def _read(maps: Any, junction: Junction, x: State) -> State:
    x = maps.normed(x) if junction.normed_read else x
    return x if junction.read == 1 else maps.scaled(x, junction.read)


def _written(maps: Any, junction: Junction, branch: State) -> State:
    branch = maps.normed(branch) if junction.normed_write else branch
    return branch if junction.write == 1 else maps.scaled(branch, junction.write)


def _normed_units(maps: Any, F: State, gains: MatrixGains, activation: str) -> State:
    """LN(hidden units) W_2, where the network reads tokens of energy 1: the norm takes the mean over the units out."""
    whole, apart = hidden_overlaps(activation, gains.hidden_variance, 1.0)  # E f^2, and the variance of f
    return maps.scaled(maps.normed(maps.shifted(F, -gains.k * (1 - apart / whole))), gains.s_2**0.5)
