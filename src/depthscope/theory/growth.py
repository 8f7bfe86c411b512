"""How much one attention step grows the parts of X, in expectation over its weights (Yu & Zhang 2023, 2.2, 3.1)."""

from torch import Tensor

from depthscope.errors import UsageError
from depthscope.theory.numbers import Number, Result, branch_gain, checked

Pair = tuple[Number, Number]


def expected_xi(
    mu: Number | Pair, *, alpha: Number = 1.0, d: Number | None = None, sigma: Number | None = None
) -> Result:
    """Expected growth of the common part (from mu_1) or of the centred part (from mu_2).

    E[xi_i] = 1 + alpha^2 d sigma^2 mu_i^2,    i = 1, 2

    mu (...) -> (...), >= 1; a pair (mu_1, mu_2) gives a pair. For Y = X + alpha P X W, W (d, d) independent with
    mean 0 and variance sigma^2 of any law; d sigma^2 = 1 when both are left out. With h heads mu is mu_bar.
    Yu & Zhang 2023, eq. (9), (29).

    Examples:
        >>> ds.theory.expected_xi((1.0, 0.1))
        (2.0, 1.01)
    """
    gain = branch_gain("expected_xi", alpha, d, sigma)
    if isinstance(mu, tuple):
        mu_1, mu_2 = _pair("expected_xi", mu)
        return 1 + gain * mu_1**2, 1 + gain * mu_2**2
    (one,) = checked("expected_xi", mu=mu)
    return 1 + gain * one**2


def mu_bar(mu: Number | Pair, *, dim: int = -1) -> Result:
    """The mu of several heads together: their root mean square.

    mu_bar = sqrt(sum_k mu_k^2 / h)

    mu (..., h) -> (...), or a pair of those; a number is one head. Holds for any letter that enters by its square,
    so also for the bounds of mu_bounds. Yu & Zhang 2023, Proposition 2.9.

    Examples:
        >>> round(float(ds.theory.mu_bar(torch.tensor([1.0, 0.5]))), 3)  # of two heads
        0.791
    """
    if isinstance(mu, tuple):
        mu_1, mu_2 = _pair("mu_bar", mu)
        return _rms(mu_1, dim), _rms(mu_2, dim)
    (one,) = checked("mu_bar", mu=mu)
    return _rms(one, dim)


def _pair(where: str, mu: tuple) -> Result:
    if len(mu) != 2:
        raise UsageError(f"{where}: mu must be one number or tensor, or the pair (mu_1, mu_2); got {len(mu)} of them.")
    return checked(where, mu_1=mu[0], mu_2=mu[1])


def _rms(mu: Number, dim: int) -> Result:
    return mu.square().mean(dim).sqrt() if isinstance(mu, Tensor) and mu.ndim else mu


def mu_bounds(omega: Number, delta: Number) -> tuple[Result, Result]:
    """What omega and delta say about mu: mu_1 is at least the first value, mu_2 at most the second.

    mu_1 >= |1 - omega|,    mu_2 <= delta

    omega, delta (...) -> two values (...), >= 0. Holds for every X and every row-stochastic P, causal ones too.
    With heads take mu_bar of each: mu_bar_1 >= mu_bar(|1 - omega|), mu_bar_2 <= mu_bar(delta); the plain mean
    of delta over heads is no bound. Yu & Zhang 2023, eq. (11).

    Examples:
        >>> ds.theory.mu_bounds(0.25, 0.5)
        (0.75, 0.5)
    """
    omega, delta = checked("mu_bounds", omega=omega, delta=delta)
    return abs(1 - omega), delta


def expected_energy(
    energy: Number, mixed_energy: Number, *, alpha: Number = 1.0, d: Number | None = None, sigma: Number | None = None
) -> Result:
    """Expected energy of the residual stream after a branch whose last weights are random.

    E[|Y|_F^2] = |X|_F^2 + alpha^2 d sigma^2 |M|_F^2    for Y = X + alpha M W

    energy = |X|_F^2 and mixed_energy = |M|_F^2 (...) -> (...), >= energy. W (m, d) independent of M, mean 0,
    variance sigma^2, any law; d sigma^2 = 1 when both are left out. Attention of a pre-norm block: M = P LN(X),
    and with heads |M|_F^2 is the mean of |P_k LN(X)|_F^2. Its FFN, X being the state before it:
    M = phi(LN(X) W_1), W = W_2 (q, d). Yu & Zhang 2023, eq. (19), (20), which has d sigma^2 = 1.

    Examples:
        >>> ds.theory.expected_energy(64.0, 64.0)  # a branch as large as the stream
        128.0
    """
    gain = branch_gain("expected_energy", alpha, d, sigma)
    energy, mixed_energy = checked("expected_energy", energy=energy, mixed_energy=mixed_energy)
    return energy + gain * mixed_energy
