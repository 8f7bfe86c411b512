"""One block as a whole: tokens through it, and the gradient back through the same block."""

from dataclasses import dataclass
from typing import NamedTuple

from depthscope.junctions import Junction, Junctions
from depthscope.theory.backward.attention import Attention
from depthscope.theory.backward.network import Kernel, Network
from depthscope.theory.backward.states import Gradient, Tokens, joined_back


@dataclass(frozen=True)
class StackSizes:
    """Sizes of a stack, and tau of the de-escalation at the end of its blocks."""

    n: int
    d: int
    h: int
    width: int
    kernel: Kernel
    tau: float


class Passed(NamedTuple):
    """What a branch did to the tokens that went past it: how far c_ij recalls what it was, what norms divided by."""

    branch: Attention | Network
    normed_read: bool
    read: float  # squared length that the norm before the branch took out (1 without such a norm)
    after: float  # the same at the norm after the sum
    recall: float


def forward(
    sizes: StackSizes, junctions: Junctions, X: Tokens, s: float, v: float, k: float
) -> tuple[Tokens, list[Passed]]:
    """Y = N(X + SA(N(X))),  Z = N(Y + FFN(N(Y))), norms N where junctions have them, and the de-escalation after it."""
    read = X.q if junctions.attention.normed_read else 1.0
    attention = Attention(X.over(read), s, v, sizes.n, sizes.d, sizes.h)
    Y = attention.forward(X, read)
    first = _passed(attention, junctions.attention, read, Y, X.e / Y.e)
    Y = Y.over(first.after)
    read = Y.q if junctions.network.normed_read else 1.0
    unit = Y.over(read)
    network = Network(unit, k, sizes.kernel(unit.D), sizes.n, sizes.d, sizes.width)
    Z = network.forward(Y, read)
    second = _passed(network, junctions.network, read, Z, (1 + network.slope / read) * Y.e / Z.e)
    return Z.over(second.after).without_mean(sizes.tau, sizes.n), [first, second]


def _passed(branch: Attention | Network, junction: Junction, read: float, summed: Tokens, recall: float) -> Passed:
    return Passed(branch, junction.normed_read, read, summed.q if junction.normed_sum else 1.0, recall)


def backward(sizes: StackSizes, passed: list[Passed], g: Gradient) -> Gradient:
    """(T, S, R) at the input of a block from those after its de-escalation.

    A norm's Jacobian takes the direction of x and the all-ones direction out of what comes back through a branch. Of a
    norm after the sum the first counts for nothing: a branch that is homogeneous of degree 0 behind a norm sends
    nothing back along x, by Euler's theorem.
    """
    g = g.without_mean(sizes.tau)
    for branch, normed_read, read, after, recall in reversed(passed):
        g = g.over(after)
        through = branch.backward(g._replace(R=g.R / read)).times(1 - (2 if normed_read else 1) / sizes.d)
        g = joined_back(g, through.over(read), d=sizes.d)
        g = g._replace(R=g.R * recall)
    return g
