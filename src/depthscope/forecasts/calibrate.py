"""Calibrate the mean field on a scan: what attention and network of the measured blocks did, for blocks to come.

Walk the token covariance along the measured blocks. At every branch the scan says how much common and centred energy
it added, and the covariance says how much a branch of unit gain would add: their ratio is the gain.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from depthscope.errors import ForecastError, UsageError
from depthscope.scans.record import Scan
from depthscope.theory.covariance import de_escalated, energies_of, mixed, normed, rescaled, uniform_attention

BRANCHES = ("attention", "ffn")
MOST_TOKENS = {False: 24, True: 64}  # of the covariance, causal or not; more change nothing that a scan could show
ROUNDING = 1e-8  # of t_div in float32, below which gains are noise
ROUNDS = 4  # gains and the walk that measures them depend on each other
FITTED = 3  # numbers that decide the common part: s, k and the kernel
CURVE = 1.5  # c_2 / c_0 of a plain activation: 1 for ReLU, 2 for GELU at small variance


@dataclass(frozen=True, eq=False)
class Gains:
    """What branches add per unit of what they read, each (...): attention's s and focus, the network's k, c_0, c_2."""

    s: Tensor
    focus: Tensor
    k: Tensor
    offset: Tensor
    curve: Tensor


@dataclass(frozen=True, eq=False)
class Calibration:
    """How blocks like the measured ones treat a covariance. start, end: before block 1, after the last measured."""

    gains: Gains
    steps: tuple[str, ...]  # the steps of a block, in order
    factors: dict[str, tuple[float, float]]  # of common and centred energy, for remedies
    post: bool  # norms stand in the stream
    skip: float  # energy of the stream is multiplied by this at every branch (DeepNorm)
    causal: bool
    P: Tensor
    start: Tensor
    end: Tensor
    attention: Tensor  # what each block measured, a row for each: see _fit
    network: Tensor
    noise: float  # chance in the log-odds of one block, per root of what its branches add to the common energy

    def unit(self, S: Tensor) -> Tensor:
        """The energy that a branch of unit gain adds: of the stream, where norms stand in it, and else 1."""
        energy = S.diagonal(dim1=-2, dim2=-1).mean(-1)
        return energy if self.post else torch.ones_like(energy)

    def added(self, step: str, S: Tensor, gains: Gains) -> Tensor:
        """What a branch adds to the covariance."""
        R, unit = normed(S), self.unit(S)
        if step == "attention":
            return (unit * gains.s)[..., None, None] * _attended(R, self.P, gains.focus)
        return (unit * gains.k)[..., None, None] * _hidden(R, gains.offset, gains.curve)

    def block(self, S: Tensor, gains: Gains | None = None, tau: float = 0.0) -> tuple[Tensor, Tensor]:
        """The covariance after one more block, and by how much branches grew the common energy, relatively."""
        grown = torch.zeros(S.shape[:-2], dtype=S.dtype)
        for step in self.steps:
            if step in BRANCHES:
                more = self.added(step, S, gains or self.gains)
                grown = grown + energies_of(more)[0] / (self.skip * energies_of(S)[0]).clamp(min=1e-300)
                S = self.skip * S + more
            elif step.endswith("_norm"):
                S = normed(S)
            else:
                S = rescaled(S, *self.factors[step])
        return de_escalated(S, tau, self.causal) if tau else S, grown

    def changed(self, **gains: float) -> "Calibration":
        """The same blocks with gains multiplied: s=0.5 halves what attention adds."""
        return replace(self, gains=replace(self.gains, **{k: getattr(self.gains, k) * v for k, v in gains.items()}))


def calibrate(scan: Scan, causal: bool | None = None) -> Calibration:
    """Gains of the measured blocks. causal: of a scan without attention, which does not know it."""
    causal = _check(scan, causal)
    n = max(2, min(round(scan.valid_tokens), MOST_TOKENS[causal]))
    post = scan.placement.endswith("post")
    P = uniform_attention(n, causal)
    one = torch.ones((), dtype=torch.float64)
    gains = Gains(one, 0 * one, one, 0.2 * one, 0.3 * one)
    factors = {
        step: (float(scan.steps[step]["xi_1"].nanmean()), float(scan.steps[step]["xi_2"].nanmean()))
        for step in scan.step_names
        if step.startswith("remedy")
    }
    steps = tuple(scan.step_names)
    start = _measured(torch.eye(n, dtype=torch.float64), scan, 0, post)
    found = Calibration(gains, steps, factors, post, scan.residual_scale**2, causal, P, start, start, one, one, 0.0)
    for _ in range(ROUNDS):
        end, attention, network, surprise = _walk(scan, found)
        gains = fit(attention, network, found.gains)
        found = replace(found, gains=gains, end=end, attention=attention, network=network, noise=surprise)
    return replace(found, end=_measured(found.end, scan, scan.depth, post))


def _walk(scan: Scan, cal: Calibration) -> tuple[Tensor, Tensor, Tensor, float]:
    """Along the measured blocks; a row for each branch: energies it added, what a unit branch would add, the stream."""
    S, surprises = cal.start, []
    rows: dict[str, list[Tensor]] = {step: [] for step in BRANCHES}
    for block in range(_usable(scan)):
        expected, grown = cal.block(S)
        for step in cal.steps:
            xi_1, xi_2 = scan.steps[step]["xi_1"][block], scan.steps[step]["xi_2"][block]
            common, centred = energies_of(S)
            if step in BRANCHES:
                unit, R = cal.unit(S), normed(S)
                added = (common * (xi_1 - cal.skip) / unit, centred * (xi_2 - cal.skip) / unit)
                read = _attended(R, cal.P) if step == "attention" else R
                rows[step].append(torch.stack([*added, *energies_of(read), energies_of(R)[1], common / unit]))
                S = cal.skip * S + cal.added(step, S, cal.gains)
            elif step.endswith("_norm"):
                S = normed(S)
            before = energies_of(S)
            S = rescaled(S, common * xi_1 / before[0].clamp(min=1e-300), centred * xi_2 / before[1].clamp(min=1e-300))
        S = _measured(S, scan, block + 1, cal.post)
        common, centred = energies_of(S)
        forecast = energies_of(expected)
        surprises.append(((common / centred).log() - (forecast[0] / forecast[1]).log()) / grown.sqrt())
    noise = torch.stack(surprises)
    noise = noise[noise.isfinite()]
    attention, network = (torch.stack(rows[step]) for step in BRANCHES)
    return S, attention, network, float((noise.square().sum() / max(1, len(noise) - FITTED)).sqrt())


def _usable(scan: Scan) -> int:
    """How many of the first blocks have tokens that still differ by more than rounding makes of them."""
    lost = (scan.states["t_div"] < ROUNDING).nonzero()
    return max(3, int(lost[0]) - 1) if len(lost) else scan.depth


def _measured(S: Tensor, scan: Scan, state: int, post: bool) -> Tensor:
    """S with the energies that were measured: of unit size where norms stand in the stream."""
    size = 1.0 if post else float(scan.states["token_norm"][state]) ** 2 / scan.width
    common, centred = energies_of(S)
    t_sim, t_div = scan.states["t_sim"][state], scan.states["t_div"][state]
    return rescaled(S, size * t_sim / common, size * t_div / centred)


def fit(attention: Tensor, network: Tensor, before: Gains) -> Gains:
    """Gains from rows (blocks, 6) of both branches: added common, added centred, unit common, unit centred, D, stream.

    The common part of one model goes its own way by chance, 2 x . branch, the more the larger the stream: such blocks
    count less.
    """
    added, apart, unit, spread, D, stream = attention.unbind(-1)
    weight = 1 / (4 * stream + 2 * before.s * unit)
    s = ((weight * added).sum() / (weight * unit).sum()).clamp(min=0)
    focus = ((apart / s.clamp(min=1e-300) - spread).sum() / D.sum()).clamp(min=0)
    added, apart, common, _, D, stream = network.unbind(-1)
    weight = 1 / (4 * stream + 2 * before.k * common)
    k = ((weight * (added + apart)).sum() / weight.sum()).clamp(min=1e-12)
    offset, curve = _kernel(apart / (k * D), common, D)
    return Gains(s, focus, k, offset, curve)


def _kernel(ratio: Tensor, t: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """c_0 and c_2 from centred energy added, k (1 - t) (1 - c_0 + c_2 t): a plain activation, or gated units."""
    plain, gated = CURVE * t - 1, t
    fits = []
    for slope, offset in ((plain, 1.0), (gated, 0.0)):
        c = ((weight * slope * (ratio - 1)).sum() / (weight * slope.square()).sum()).clamp(0, 1)
        fits.append(
            (float((weight * (ratio - 1 - c * slope).square()).sum()), offset * c, c * (CURVE if offset else 1.0))
        )
    _, c_0, c_2 = min(fits, key=lambda one: one[0])
    return c_0, torch.minimum(c_2, 1 - c_0)


def _attended(R: Tensor, P: Tensor, focus: Tensor | float = 0.0) -> Tensor:
    """P R P^T + focus D 1: values of tokens of covariance R, mixed by P whose rows also fluctuate.

    focus (...): sum_s P_ts^2 beyond that of P (its inverse participation ratio, theory/participation.py), on the
    centred energy D of R.
    """
    _, D = energies_of(R)
    return mixed(R, P) + torch.eye(R.shape[-1], dtype=R.dtype) * (focus * D)[..., None, None]


def _hidden(R: Tensor, offset: Tensor, curve: Tensor) -> Tensor:
    """c_0 + (1 - c_0 - c_2) R + c_2 R^2, entry by entry: the kernel of a feed-forward network to second order.

    R correlations, offset = c_0 and curve = c_2 (...) -> (..., n, n), 1 on the diagonal. ReLU is near c_0 = c_2 = 0.32,
    GELU has c_2 near 2 c_0, gated units have no offset.
    """
    c_0, c_2 = offset[..., None, None], curve[..., None, None]
    return c_0 + (1 - c_0 - c_2) * R + c_2 * R**2


def _check(scan: Scan, causal: bool | None) -> bool:
    known = all(s in BRANCHES or s.endswith("_norm") or s.startswith("remedy") for s in scan.step_names)
    both = set(BRANCHES) <= set(scan.step_names)
    if not (known and both) or scan.placement not in ("post", "pre", "sandwich", "branch"):
        raise ForecastError(
            "forecast: a scan must show attention, then a feed-forward network, norms placed alike in every block; "
            f"this one has steps {', '.join(scan.step_names) or 'none'} and placement {scan.placement!r}. "
            "Forecast the model by its weights, or its sizes."
        )
    if "xi_1" not in scan.steps["attention"] or not {"t_sim", "t_div", "token_norm"} <= scan.states.keys():
        raise UsageError("forecast: a scan must have its default metrics; some are missing. Leave metrics= out.")
    if scan.broken is not None or scan.depth < 3:
        raise UsageError(
            f"forecast: a scan must have 3 or more blocks and no NaN; got {scan.depth} blocks"
            + (f", a NaN in block {scan.broken[0]}. Mend it first." if scan.broken else ". Scan more of them.")
        )
    if scan.without_dropout is not None:
        raise UsageError("forecast: a scan must be without dropout; this one was made in training mode. Call eval().")
    if any("between block " in note for note in scan.notes):
        raise ForecastError(
            "forecast: blocks of a scan must follow each other; here something happens between them (a remedy at "
            "block_in, perhaps). Forecast the model by its weights, ds.forecast(model)."
        )
    found = scan.causal if causal is None else causal
    if found and scan.remedies:
        raise ForecastError(
            "forecast: a scan of a causal model must be without remedies, which act differently on every position; "
            f"this one has {', '.join(scan.remedies)}. Forecast a scan without them, with tau=, or the model itself."
        )
    if found is None:
        raise UsageError(
            "forecast: whether attention is causal must be known; this scan was made without attention. "
            "Scan with attention=True, or pass causal=True or causal=False."
        )
    return found
