"""Token similarity by depth: blocks of a wiring, each a few maps on tokens, by two numbers or by all their overlaps.

Weights are drawn anew for every block and never built; a thousand blocks in two numbers take milliseconds. Wirings as
in models/.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthscope.errors import UnknownNameError, UsageError
from depthscope.registry import unknown
from depthscope.theory import token_matrix, two_numbers
from depthscope.theory.covariance import parts
from depthscope.theory.kernels import ACTIVATIONS
from depthscope.theory.numbers import checked
from depthscope.theory.token_matrix import Tokens
from depthscope.theory.two_numbers import Overlaps, tokens_alike

State = Any  # Overlaps or Tokens
MAPS: dict[type, Any] = {Overlaps: two_numbers, Tokens: token_matrix}  # the same maps by name
Map = Callable[[Any, State], State]  # takes the maps of its state first
SITES = ("block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out")


class Junction(NamedTuple):
    """How a branch f meets the stream: x -> after(skip x + write(f(read(x)))); first: a factor on W_1 of a network."""

    read: Map
    write: Map
    after: Map
    skip: float = 1.0
    first: float = 1.0


@dataclass(frozen=True)
class Blocks:
    """The numbers of a stack: see similarity_by_depth."""

    n: int
    s_A: float = 1.0
    k: float = 0.0
    activation: str = "relu"
    wiring: str = "post_norm"
    score_variance: float = 0.0
    hidden_variance: float = 1.0
    b_A: float = 0.0
    b_F: float = 0.0
    alpha: float = 1.0
    tau: float = 0.0
    site: str = "block_out"

    def __post_init__(self) -> None:
        where = "similarity_by_depth"
        numbers = ("n", "s_A", "k", "score_variance", "hidden_variance", "b_A", "b_F", "alpha", "tau")
        checked(where, **{name: getattr(self, name) for name in numbers})
        for what, name, known in (
            ("wiring with a map of two numbers", self.wiring, WIRINGS),
            ("site", self.site, SITES),
            ("activation", self.activation, (*ACTIVATIONS, "swiglu")),
        ):
            if name not in known:
                every = f" There are {', '.join(known)}; for another, ds.forecast." if what.startswith("wiring") else ""
                raise UnknownNameError(f"{where}: {unknown(what, name, known)}{every}")


def similarity_by_depth(*, depth: int, n: int, t_sim: float | None = None, q: float = 1.0, **numbers: Any) -> Tensor:
    """Token similarity before block 1 and after every block, (depth + 1,), from a handful of numbers.

    n tokens of energy q a channel start alike by t_sim (1/n when left out: independent tokens). Then, all with a value
    of their own when left out: s_A = d Var(W_V) d Var(W_O); k, the energy gain of the network (network_gain;
    d Var(W_1) q Var(W_2) / 2 for ReLU), its activation, hidden_variance = d Var(W_1); score_variance =
    d Var(W_q) d Var(W_k), 0 for uniform attention; b_A and b_F, variances of the biases that end the branches;
    alpha; wiring; tau of de-escalation at a site. s_A and k come without the gains that a wiring gives its matrices.
    """
    states = overlaps_by_depth(depth=depth, n=n, t_sim=t_sim, q=q, **numbers)
    return torch.tensor([x.t_sim(n) for x in states], dtype=torch.float64)


def overlaps_by_depth(
    *, depth: int, n: int, t_sim: float | None = None, q: float = 1.0, **numbers: Any
) -> list[Overlaps]:
    """The two numbers themselves, depth + 1 states with q, p, rho, t_sim(n) and t_div(n); arguments as above."""
    blocks = _blocks(n, numbers)
    checked("similarity_by_depth", q=q)
    start = 1 / n if t_sim is None else checked("similarity_by_depth", t_sim=t_sim)[0]
    if math.isnan(start):
        raise UsageError("similarity_by_depth: t_sim must be a number in [0, 1]; got NaN. Leave it out for 1/n.")
    return _states(tokens_alike(start, n, q), depth, blocks)


def _blocks(n: int, numbers: dict[str, Any]) -> "Blocks":
    known = [field.name for field in fields(Blocks)]
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
    """
    if S.ndim != 2 or S.shape[0] != S.shape[1]:
        raise UsageError(f"covariances_by_depth: S must be (n, n), overlaps of tokens; got {tuple(S.shape)}.")
    states = _states(Tokens(S.double(), causal), depth, _blocks(len(S), numbers))
    return [x.S for x in states]


def similarities(states: list[Tensor]) -> Tensor:
    """t_sim of covariances (n, n), (len(states),)."""
    energies = [parts(S) for S in states]
    return torch.stack([common / (common + centred) for common, centred in energies])


def _states(start: State, depth: int, blocks: "Blocks") -> list[State]:
    checked("similarity_by_depth", depth=depth)
    if depth != int(depth):
        raise UsageError(f"similarity_by_depth: depth must be a whole number of blocks; got {depth}. Round it.")
    states = [MAPS[type(start)].normed(start) if blocks.wiring == "peri_ln" else start]
    for index in range(1, int(depth) + 1):
        states.append(block(states[-1], blocks, *WIRINGS[blocks.wiring](int(depth), index)))
    return states


def block(x: State, blocks: Blocks, attention: Junction, network: Junction) -> State:
    """One block: attention joins the stream, then the network does; de-escalation acts where its site comes by."""
    c, maps = blocks, MAPS[type(x)]

    def at(site: str, state: State) -> State:
        return maps.de_escalated(state, n=c.n, tau=c.tau) if site == c.site and c.tau else state

    x = at("block_in", x)
    A = maps.attended(at("attn_in", attention.read(maps, x)), n=c.n, s_A=c.s_A, score_variance=c.score_variance)
    A = at("sa_out", attention.write(maps, maps.shifted(A, c.b_A)))
    y = at("sa_sum", maps.joined(x, A, skip=attention.skip, weight=c.alpha))
    y = at("ffn_in", attention.after(maps, y))
    Y = network.read(maps, y)
    F = maps.networked(Y, k=c.k, activation=c.activation, hidden_variance=c.hidden_variance, first=network.first)
    z = at("ffn_sum", maps.joined(y, network.write(maps, maps.shifted(F, c.b_F)), skip=network.skip))
    return at("block_out", network.after(maps, z))


def _same(_: Any, x: State) -> State:
    return x


def _normed(maps: Any, x: State) -> State:
    return maps.normed(x)


def _times(factor: float) -> Map:
    return lambda maps, x: maps.scaled(x, factor)


def _twice(junction: Junction) -> tuple[Junction, Junction]:
    return junction, junction


def _post(skip: float = 1.0, write: Map = _same) -> tuple[Junction, Junction]:
    return _twice(Junction(_same, write, _normed, skip))


def _pre(read: Map = _normed, write: Map = _same) -> tuple[Junction, Junction]:
    return _twice(Junction(read, write, _same))


def _deep_norm(depth: int, _: int) -> tuple[Junction, Junction]:
    """beta on W_V, W_O, W_1 and W_2, alpha_N on the skip."""
    alpha_N, beta = (2 * depth) ** 0.25, (8 * depth) ** -0.25
    return (
        Junction(_same, _times(beta**2), _normed, alpha_N),
        Junction(_same, _times(beta), _normed, alpha_N, first=beta),
    )


def _layer_scale(depth: int, _: int) -> tuple[Junction, Junction]:
    return _pre(write=_times(0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6))


WIRINGS: dict[str, Callable[[int, int], tuple[Junction, Junction]]] = {  # (depth, index from 1) -> the two junctions
    "post_norm": lambda depth, index: _post(),
    "pre_norm": lambda depth, index: _pre(),
    "deep_norm": _deep_norm,
    "depth_scaled": lambda depth, index: _post(write=_times(1 / math.sqrt(depth))),
    "layer_norm_scaling": lambda depth, index: _pre(read=lambda m, x: m.scaled(m.normed(x), 1 / math.sqrt(index))),
    "mix_ln": lambda depth, index: _post() if index <= depth / 4 else _pre(),
    "sandwich": lambda depth, index: _pre(write=_normed),
    "peri_ln": lambda depth, index: _pre(write=_normed),
    "rezero": lambda depth, index: _twice(Junction(_same, _times(0.0), _same)),
    "skip_init": lambda depth, index: _pre(write=_times(0.0)),
    "layer_scale": _layer_scale,
    "admin": lambda depth, index: _post(),  # omega = 1 until it is profiled
    "resi_dual": lambda depth, index: _post(),  # its main stream never reads the other
}
