"""What one step of Adam does to the output of a stack, to first order in the rate.

A first step of Adam moves every entry of a matrix by the rate, with the sign of its gradient. Such a change is aligned
with what the matrix reads: W (out, in), reading tokens of root mean square x, gives another in * x * rate a channel,
where random entries of that size would give sqrt(in) * x * rate. After DeepNet (Wang et al. 2022, 2203.00555), Admin
(Liu et al. 2020, 2004.08249) and Depth-muP (Yang et al. 2023, 2310.02244).
"""

import math
from dataclasses import dataclass
from typing import Any

from depthscope.junctions import Junction, Junctions
from depthscope.theory.matrix_gains import MatrixGains
from depthscope.theory.stacks import Blocks, block
from depthscope.theory.two_numbers import Overlaps, tokens_alike


@dataclass(frozen=True)
class Branches:
    """Widths that updates know of: d of the stream, q of the network. learnt: the factor that a branch is written with
    is a parameter, as in LayerScale, ReZero and SkipInit. norms: those in the stream have gains and biases."""

    d: int
    q: int
    learnt: bool = False
    norms: bool = True


def updates_by_depth(*, depth: int, t_sim: float, sizes: Branches, **numbers: Any) -> tuple[list[float], list[float]]:
    """How much one step at rate 1 moves the stream at every block, and the energy of the stream after every block.

    r_l = sqrt(sum of the changes of both branches) / |stream| + gains and biases, relative and root mean square;
    (depth,) and energies (depth + 1,). A norm in the stream moves it by the rate with its gain and once more with its
    bias, which all tokens share and de-escalation takes out. numbers as for similarity_by_depth.
    """
    blocks = Blocks(**numbers)
    x = tokens_alike(t_sim, blocks.n)
    found, energies = [], [x.q]
    for index in range(1, depth + 1):
        junctions = blocks.junctions(depth, index)
        if index == 1 and junctions.normed_input:
            x = Overlaps(x.p / x.q, x.D / x.q)
        seen: dict[str, Overlaps] = {}
        x = block(x, blocks, junctions, seen.__setitem__)
        norms = sizes.norms * sum(j.normed_sum for j in (junctions.attention, junctions.network))
        found.append(math.sqrt(_moved(seen, blocks, junctions, sizes)) + norms * (2 - blocks.tau))
        energies.append(x.q)
    return found, energies


def _moved(seen: dict[str, Overlaps], c: Blocks, junctions: Junctions, sizes: Branches) -> float:
    """The relative energy that one step at rate 1 adds to the stream in a block."""
    g = c.matrices.times(junctions.gains, c.activation)
    total = 0.0
    for name, junction, weight, change in (
        ("attention", junctions.attention, c.alpha, _attention(seen, c, g, sizes)),
        ("network", junctions.network, 1.0, _network(seen, g, sizes)),
    ):
        before, last, behind, width = change
        given, stream = seen[f"{name} gives"].q, seen[f"{name} sum"].q
        total += weight**2 * _written(junction, before, last, behind, width, given, sizes.learnt) / max(stream, 1e-300)
    return total


def _attention(seen: dict[str, Overlaps], c: Blocks, g: MatrixGains, sizes: Branches) -> tuple[float, ...]:
    """(change before W_O, energy before W_O, gain of W_O, width of W_O) for rate 1.

    W_V: d^2 m,  W_q and W_k: d^2 q 2 sqrt(v) D s_V D / n,    m the energy of mixed tokens, v the variance of scores
    """
    read, given = seen["attention reads"], seen["attention gives"]
    s_O = max(g.s_O, 1e-300)
    m, s_V = given.q / max(g.s_A, 1e-300), g.s_A / s_O
    scores = 2 * read.q * math.sqrt(g.score_variance) * read.D * s_V * read.D / c.n
    return sizes.d**2 * (m + scores), s_V * m, s_O, sizes.d


def _network(seen: dict[str, Overlaps], g: MatrixGains, sizes: Branches) -> tuple[float, ...]:
    """(change before W_2, energy before W_2, gain of W_2, width of W_2) for rate 1; units pass half of a change on."""
    read, given = seen["network reads"], seen["network gives"]
    if g.k == 0:
        return 0.0, 0.0, 0.0, 0
    s_2 = max(g.s_2, 1e-300)
    return sizes.d**2 * read.q / 2, given.q / s_2, s_2, sizes.q


def _written(
    junction: Junction, before: float, last: float, gain: float, width: float, given: float, learnt: bool
) -> float:
    """What a branch's change adds to the stream, as an energy: through its last matrix, its norms and its factor."""
    if junction.inner_norm and last > 0:
        before, last = before / last, 1.0
        given = gain
    change = gain * before + width**2 * last
    if junction.normed_write and given > 0:
        change, given = change / given, 1.0
    return junction.write**2 * change + (given if learnt else 0.0)
