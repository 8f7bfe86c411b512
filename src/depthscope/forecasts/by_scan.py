"""The forecast of a scan: calibrated on the blocks that were measured, for blocks like them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.forecasts.calibrate import Calibration, calibrate
from depthscope.forecasts.curves import curves
from depthscope.forecasts.extrapolate import band, extrapolated
from depthscope.forecasts.record import Forecast
from depthscope.scans.record import Scan
from depthscope.theory.covariance import energies_of

BY_SCAN = "later blocks are like the measured ones: the same gains of attention and network, chance as large"


def of_scan(scan: Scan, depth: int | None, tau: float, causal: bool | None) -> Forecast:
    """causal: of a scan without attention, which does not know it."""
    if causal is not None and not isinstance(causal, bool):
        raise UsageError(f"forecast: causal must be True or False; got {causal!r}.")
    if depth is None or depth <= scan.depth:
        raise UsageError(
            f"forecast: depth must be more than the {scan.depth} blocks of the scan; got {depth}. "
            f"Try depth={2 * scan.depth}."
        )
    cal = calibrate(scan, causal)
    return replayed(cal, scan, depth, tau) if tau else continued(cal, scan, depth)


def continued(cal: Calibration, scan: Scan, depth: int) -> Forecast:
    """The measured blocks as they were measured, and those after them with a band."""
    rest = _replay(cal, cal.end, scan, depth - scan.depth)
    edges = band(cal, cal.end, depth - scan.depth)
    past = {name: scan.states[name][:-1] for name in ("t_sim", "t_div", "t_cos")}
    curves: dict[str, Any] = {name: torch.cat([past[name], getattr(rest, name)]) for name in past}
    whole = torch.stack([torch.cat([past["t_sim"], edge]) for edge in edges])
    return replace(rest, measured=scan.depth, band=whole, **curves)


def replayed(cal: Calibration, scan: Scan, depth: int, tau: float = 0.0) -> Forecast:
    """All blocks from the measured input on, as the calibration has them: a scan of other blocks says nothing here."""
    found = _replay(cal, cal.start, scan, depth, tau)
    edges = torch.stack(band(cal, cal.start, depth, tau))
    return replace(found, band=edges, source=f"{found.source}, tau {tau:g}" if tau else found.source)


def _replay(cal: Calibration, S: Tensor, scan: Scan, blocks: int, tau: float = 0.0) -> Forecast:
    states = extrapolated(cal, S, blocks, tau)
    found = curves(f"{scan.title}, from {scan.depth} blocks", states, [energies_of(S) for S in states], [BY_SCAN])
    n = round(scan.valid_tokens)
    t_cos = found.t_cos if cal.causal or n < 2 else (n * found.t_sim - 1) / (n - 1)  # of all tokens, not of a few
    return replace(found, n=n, t_cos=t_cos, tau=tau)
