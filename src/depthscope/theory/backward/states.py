"""The few numbers that stand for all tokens, and for all their gradients, between two steps of a block."""

from typing import NamedTuple

COLLAPSED = 1e-30  # D / q below which tokens are one; the gradient stopped to notice long before
ETA = (1e-6, 0.8)  # where the means over rows of attention are drawn


class Tokens(NamedTuple):
    """q = mean |x_i|^2 / d,  D = q - p, p = mean of c_ij = x_i.x_j / d over i != j,  eta = Var(c_ij) / D^2.

    D is the energy of centred tokens. It is kept, and not p, because q - p would round to nothing as tokens collapse.
    1 / eta is the number of dimensions in which centred tokens live; Var counts centred tokens only.
    """

    q: float
    D: float
    eta: float

    @property
    def p(self) -> float:
        return self.q - self.D

    @property
    def e(self) -> float:
        """Var(c_ij) of centred tokens."""
        return self.eta * self.D**2

    def common(self, n: int) -> float:
        """The energy of the mean token, |sum x_i / n|^2 / d."""
        return self.p + self.D / n

    def over(self, scale: float) -> "Tokens":
        """The tokens divided by sqrt(scale)."""
        return Tokens(self.q / scale, self.D / scale, self.eta)

    def without_mean(self, tau: float, n: int) -> "Tokens":
        """After de-escalation: the mean token keeps 1 - tau of its length."""
        return self._replace(q=(1 - tau) ** 2 * self.common(n) + self.D * (1 - 1 / n))


class Gradient(NamedTuple):
    """T = sum |g_i|^2,  S = |sum g_i|^2 / n, the common part of T,  R = sum_{i != j} (g_i.g_j) c_ij;  g_i = dL/dx_i."""

    T: float
    S: float
    R: float

    def pairs(self, n: int) -> float:
        """sum_{i != j} g_i.g_j"""
        return n * self.S - self.T

    def over(self, scale: float) -> "Gradient":
        """The gradient divided by sqrt(scale), where tokens were: R holds one of each and stays."""
        return Gradient(self.T / scale, self.S / scale, self.R)

    def without_mean(self, tau: float) -> "Gradient":
        """Before de-escalation: I - tau Pi_1 is symmetric, so the way back is the way forward."""
        T = max(self.T - (2 * tau - tau**2) * self.S, COLLAPSED * self.T)
        return Gradient(T, (1 - tau) ** 2 * self.S, self.R)

    def times(self, factor: float) -> "Gradient":
        return Gradient(self.T * factor, self.S * factor, self.R * factor)


def typical_loss(common: float, branch: float, total: float, d: int) -> float:
    """What chance takes from the typical energy (exp of the mean log) of x + W y, when all tokens share one vector.

    2 x.Wy has variance 4 |x|^2 |Wy|^2 / d, |Wy|^2 has 4 |Wy|^4 / d; half of it counts, as far as the common part rules.
    """
    x, b = max(common, 0.0), max(branch, 0.0)
    return (2 * x * b + 2 * b * b) / (d * total)


def e_after(stream: Tokens, energy: float, slope: float, noise: float) -> float:
    """Var(c_ij) after a branch of centred energy `energy` has joined the stream.

    slope: overlap in the branch for one unit of overlap in the stream; noise: variance that random weights add. Tokens
    that overlap grow longer together, so at equal lengths the share 3 r e / D^2 of it is lost, r = slope D / energy.
    """
    e = stream.e * (1 + slope) ** 2
    r = min(slope * stream.D / energy, 1.0) if energy > 0 else 0.0
    return e + noise * max(1 - 3 * r * e / (stream.D + energy) ** 2, 0.0)


def joined(stream: Tokens, q: float, D: float, e: float, *, n: int, d: int) -> Tokens:
    """The stream plus a branch of energy q and centred energy D, with Var(c_ij) = e in the end."""
    less = typical_loss(stream.common(n), q - D + D / n, stream.q + q, d)
    total = stream.q + q - less
    together = max(stream.D + D, COLLAPSED * total)
    return Tokens(total, together, min(max(e / together**2, ETA[0]), ETA[1]))


def joined_back(g: Gradient, branch: Gradient, *, d: int) -> Gradient:
    """The gradient past a residual sum: what came along the stream plus what came through the branch."""
    less = typical_loss(g.S, min(branch.S, branch.T), g.T + branch.T, d)
    T, S, R = g.T + branch.T - less, g.S + branch.S - less, g.R + branch.R
    return Gradient(T, min(max(S, 0.0), T), R)
