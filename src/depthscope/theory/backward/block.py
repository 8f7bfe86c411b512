"""One block as a whole: tokens through it, and the gradient back through the same block."""

from dataclasses import dataclass
from typing import NamedTuple

from depthscope.theory.backward.attention import Attention
from depthscope.theory.backward.network import Kernel, Network
from depthscope.theory.backward.states import Gradient, Tokens, joined_back


@dataclass(frozen=True)
class Law:
    """Sizes of a stack, and tau of the de-escalation at the end of its blocks."""

    n: int
    d: int
    h: int
    width: int
    kernel: Kernel
    tau: float


class Passed(NamedTuple):
    """A block that tokens went through: its branches, what norms divided by, how far c_ij recalls what it was."""

    attention: Attention
    network: Network
    read: float  # squared length that attention's own norm took out (1 without such a norm)
    middle: float  # the same at the norm before the network
    last: float  # and at the end of the block
    recall_attention: float
    recall_network: float


def post_norm(law: Law, X: Tokens, s: float, v: float, k: float) -> tuple[Tokens, Passed]:
    """Y_1 = X + SA(X),  Y_2 = LN(Y_1),  Y_3 = Y_2 + FFN(Y_2),  Y_4 = LN(Y_3), and the de-escalation after it."""
    attention = Attention(X, s, v, law.n, law.d, law.h)
    Y_1 = attention.forward(X, 1.0)
    Y_2 = Y_1.over(Y_1.q)
    network = _network(law, Y_2, k)
    Y_3 = network.forward(Y_2, 1.0)
    passed = Passed(attention, network, 1.0, Y_1.q, Y_3.q, X.e / Y_1.e, (1 + network.slope) * Y_2.e / Y_3.e)
    return Y_3.over(Y_3.q).without_mean(law.tau, law.n), passed


def post_norm_back(law: Law, passed: Passed, g: Gradient) -> Gradient:
    """(T, S, R) at the input of a post-norm block from those after its de-escalation.

    A norm's Jacobian takes the all-ones direction out of what comes back through a branch. The direction of x it takes
    too, but there nothing comes back: a branch that is homogeneous of degree 0 behind a norm, by Euler's theorem.
    """
    kept = 1 - 1 / law.d
    g = g.without_mean(law.tau).over(passed.last)
    g = _recalled(joined_back(g, passed.network.backward(g).times(kept), d=law.d), passed.recall_network)
    g = g.over(passed.middle)
    return _recalled(joined_back(g, passed.attention.backward(g).times(kept), d=law.d), passed.recall_attention)


def pre_norm(law: Law, X: Tokens, s: float, v: float, k: float) -> tuple[Tokens, Passed]:
    """Y = X + SA(LN(X)),  Z = Y + FFN(LN(Y)), and the de-escalation after it."""
    attention = Attention(X.over(X.q), s, v, law.n, law.d, law.h)
    Y = attention.forward(X, X.q)
    network = _network(law, Y.over(Y.q), k)
    Z = network.forward(Y, Y.q)
    passed = Passed(attention, network, X.q, Y.q, 1.0, X.e / Y.e, (1 + network.slope / Y.q) * Y.e / Z.e)
    return Z.without_mean(law.tau, law.n), passed


def pre_norm_back(law: Law, passed: Passed, g: Gradient) -> Gradient:
    """(T, S, R) at the input of a pre-norm block from those after its de-escalation; norms take x and all-ones out."""
    kept = 1 - 2 / law.d
    g = g.without_mean(law.tau)
    branch = passed.network.backward(g).times(kept)
    branch = Gradient(branch.T / passed.middle, branch.S / passed.middle, branch.R / passed.middle)
    g = _recalled(joined_back(g, branch, d=law.d), passed.recall_network)
    branch = passed.attention.backward(g._replace(R=g.R / passed.read)).times(kept)
    return _recalled(joined_back(g, branch.over(passed.read), d=law.d), passed.recall_attention)


def _network(law: Law, X: Tokens, k: float) -> Network:
    return Network(X, k, law.kernel(X.D), law.n, law.d, law.width)


def _recalled(g: Gradient, recall: float) -> Gradient:
    return g._replace(R=g.R * recall)
