"""Softmax attention with random weights, on the way forward and on the way back."""

from dataclasses import dataclass
from functools import cached_property

from depthscope.theory.backward.rows import RowMeans, row_means
from depthscope.theory.backward.states import Gradient, Tokens, e_after, joined


@dataclass(frozen=True)
class Attention:
    """The branch that reads tokens X: s = alpha^2 d Var(W_V) d Var(W_O), v = variance of the scores of unit tokens."""

    X: Tokens
    s: float
    v: float
    n: int
    d: int
    h: int

    @cached_property
    def means(self) -> RowMeans:
        """Scores count by w = v q D: their mean drops out of a row. Rounded: settled tokens share one set of means."""
        w, rho, eta = (float(f"{x:.3g}") for x in (self.v * self.X.q * self.X.D, self.X.p / self.X.q, self.X.eta))
        return row_means(w, rho, eta, self.n, self.d // self.h)

    def forward(self, stream: Tokens, read: float) -> Tokens:
        """The stream after the branch, which read it divided by sqrt(read).

        q += s (p + D mix),    D += s D (mix - Y_o)
        """
        s, a, (q, D, eta) = self.s, self.means, self.X
        energy = s * D * max(a.mix - a.Y_o, 0.0)
        slope = min(s * a.drift**2 * (eta * (1 - 1 / self.n) + 1 / self.n) * D / q, energy / D)
        noise = (2 * stream.D * energy + 2 * energy**2) / self.d + (s * D) ** 2 * a.V_o / self.h
        e = e_after(stream, energy, slope / read, noise)
        return joined(stream, s * (self.X.p + D * a.mix), s * D * (a.mix - a.Y_o), e, n=self.n, d=self.d)

    def backward(self, g: Gradient) -> Gradient:
        """What reaches the branch's input through values, queries and keys.

        values P^T G:  T: Y T + Y_o pairs + drift^2 R / (n q),     S: S,     R: twin eta D T
        queries:       T: v D^2 B_q T,       S: v (D^2 B_q T + (D^2 B_o + e) pairs) / n,     R: v (D^2 B_o + e) R
        keys:          T: v D (q B_k T + p B_o pairs + B_o R),     S: 0,     R: v e (q T + p pairs + R)

        each times s. Values keep S because rows of P sum to 1, keys lose it because rows of dL/dscore sum to 0.
        """
        n, s, v, a, p, (q, D, eta) = self.n, self.s, self.v, self.means, self.X.p, self.X
        T, S, R = g
        pairs = g.pairs(n)
        e = eta * D * D * (1 - a.Y) * max(1 - 2 * a.Y, 0.0)  # of a row that weighs few tokens, fewer pairs are left
        b, b_o = D * D * max(a.B_q, 0.0), D * D * a.B_o + e
        values = a.Y * T + a.Y_o * pairs + a.drift**2 * R / (n * q)
        keys = D * (q * a.B_k * T + p * a.B_o * pairs + a.B_o * R)
        return Gradient(
            s * (max(values, 0.0) + v * b * T + v * max(keys, 0.0)),  # energies, also where R is beyond its means
            s * (S + v * (b * T + b_o * pairs) / n),
            s * (a.twin * eta * D * T + v * b_o * R + v * e * (q * T + p * pairs + R)),
        )
