"""From a calibration to blocks that nobody built: the curve, and a band of what chance may do to it."""

import torch
from torch import Tensor

from depthscope.forecasts.calibrate import Calibration, Gains, fit
from depthscope.theory.covariance import energies_of, normed, rescaled

DRAWS = 32
BAND = (0.05, 0.95)  # quantiles over draws
OWN_ERROR = 0.02  # of t_sim, of the mean field itself: the worst design of beyond/forecast_error


def extrapolated(cal: Calibration, S: Tensor, blocks: int, tau: float = 0.0) -> list[Tensor]:
    """Covariances after each of so many more blocks; S first."""
    found = [S]
    for _ in range(blocks):
        found.append(cal.block(found[-1], tau=tau)[0])
    return found


def band(cal: Calibration, S: Tensor, blocks: int, tau: float = 0.0) -> tuple[Tensor, Tensor]:
    """Between which values t_sim lies after each block in nine draws of ten, (blocks + 1,) each.

    A draw has gains from blocks drawn with replacement out of the measured ones, and in every block a step of chance in
    the log-odds, as large as those that the measured blocks took.
    """
    chance = torch.Generator().manual_seed(0)
    gains = _redrawn(cal, chance)
    state = S.expand(DRAWS, *S.shape)
    rows = [_share(state)]
    for _ in range(blocks):
        state, grown = cal.block(state, gains, tau)
        step = cal.noise * grown.sqrt() * torch.randn(DRAWS, generator=chance, dtype=S.dtype)
        state = rescaled(state, (step / 2).exp(), (-step / 2).exp())
        state = normed(state) if cal.post else state
        rows.append(_share(state))
    low, high = torch.stack(rows).quantile(torch.tensor(BAND, dtype=S.dtype), dim=1)
    slack = OWN_ERROR * (torch.arange(blocks + 1) > 0)
    return (low - slack).clamp(min=0), (high + slack).clamp(max=1)


def _redrawn(cal: Calibration, chance: torch.Generator) -> Gains:
    blocks = len(cal.attention)
    draws = []
    for _ in range(DRAWS):
        index = torch.randint(blocks, (blocks,), generator=chance)
        draws.append(fit(cal.attention[index], cal.network[index], cal.gains))
    return Gains(*(torch.stack([getattr(d, name) for d in draws]) for name in ("s", "focus", "k", "offset", "curve")))


def _share(S: Tensor) -> Tensor:
    common, centred = energies_of(S)
    return common / (common + centred)
