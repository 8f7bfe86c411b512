"""The forecast of a design that is never built: one gain for all blocks, or sizes and choices by name."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.forecasts.curves import NO_PASS, Pair, curves, refuse
from depthscope.forecasts.numbers import growth_of_design, has_maps, knows_sites, numbers_of_design
from depthscope.forecasts.rate_limit import limit_of
from depthscope.forecasts.record import Forecast
from depthscope.laws.through_design import laws_of_design
from depthscope.models.design import Design, design_of
from depthscope.registry import lookup
from depthscope.theory.covariance import energies_of, rescaled
from depthscope.theory.depth import odds as odds_of
from depthscope.theory.depth import similarity_after
from depthscope.theory.numbers import checked
from depthscope.theory.participation import LARGEST
from depthscope.theory.stacks import covariances_by_depth

BY_LAW = "weights are drawn independently for every block, by their law"


class Change(NamedTuple):
    """What is changed in a design: de-escalation tau at a site, a factor on what the softmax reads."""

    tau: float
    site: str
    scores: float


def of_gain(
    gain: float, depth: int | None, n: int, t_sim: float | None, tau: float, design: dict[str, Any]
) -> Forecast:
    """One gain for all blocks: the closed form of theory/depth.py."""
    refuse("one gain", "is given by gain", **design)
    start = 1 / n if t_sim is None else t_sim
    checked("forecast", gain=gain, t_sim=start)
    after = torch.arange((depth or 12) + 1, dtype=torch.float64)
    each = gain * (1 - tau) ** 2
    similar = similarity_after(torch.full_like(after, start), gain=each, depth=after)
    odds = odds_of(start) * torch.as_tensor(each, dtype=torch.float64) ** after
    t_div = 1 / (1 + odds)
    t_cos = (n * similar - 1) / (n - 1) if n > 1 else torch.ones_like(similar)
    words = "every block multiplies the odds t_sim / t_div by the same gain"
    return Forecast(f"gain {gain:g}", n, similar, t_div, t_cos, [words], tau=tau)


def of_design(depth: int | None, n: int, t_sim: float | None, change: Change, choices: dict[str, Any]) -> Forecast:
    design = design_of("forecast", **choices | ({} if depth is None else {"depth": depth}))
    if design.attention != "softmax":
        raise UsageError(f"forecast: attention must be softmax, whose law is known; got {design.attention}.")
    if lookup("wiring", design.wiring).no_law:
        raise UsageError(f"forecast: {lookup('wiring', design.wiring).no_law}")
    start = 1 / n if t_sim is None else t_sim
    checked("forecast", t_sim=start)
    if math.isnan(start):
        raise UsageError("forecast: t_sim must be a number in [0, 1]; got NaN. Leave it out for independent tokens.")
    if change.site != "block_out" and not knows_sites(design):
        raise UsageError(
            f"forecast: site must be block_out for {design.wiring} blocks and for blocks with biases; got "
            f"{change.site!r}. Build the model, fix it there, and forecast it: ds.forecast(model)."
        )
    with torch.no_grad():
        states, energies = (_by_maps if has_maps(design) else _by_laws)(design, n, start, change)
        growth = growth_of_design(design, n, t_sim=start, tau=change.tau, scores=change.scores)
    elsewhere = change.tau > 0 and change.site != "block_out" and growth is not None
    wide = has_maps(design) and numbers_of_design(design)["score_variance"] * change.scores**2 > LARGEST
    capped = (
        [f"variance of scores above {LARGEST:g}: attention is taken to narrow as one over its root"] if wide else []
    )
    assumed = [BY_LAW, NO_PASS, *capped, *(["growth of gradients is that of tau at block_out"] if elsewhere else [])]
    found = curves(_name(design, change), states, energies, assumed, growth)
    limit = limit_of(design, n, t_sim=start, **change._asdict(), diversity=float(found.t_div[-1]))
    return replace(found, tau=change.tau, rate_limit=limit)


def _by_maps(design: Design, n: int, t_sim: float, change: Change) -> tuple[list[Tensor], list[Pair]]:
    """Overlaps and energies of the tokens before block 1 and after every block."""
    numbers = numbers_of_design(design)
    numbers["score_variance"] *= change.scores**2
    S = rescaled(torch.eye(n, dtype=torch.float64), n * t_sim, n * (1 - t_sim) / max(1, n - 1))
    more = {"tau": change.tau, "site": change.site}
    states = covariances_by_depth(S, depth=design.depth, causal=design.causal, **more, **numbers)
    return states, [energies_of(state) for state in states]


def _by_laws(design: Design, n: int, t_sim: float, change: Change) -> tuple[list[Tensor], list[Pair]]:
    """The same for wirings and biases without maps."""
    laws = laws_of_design(design, n, t_sim=t_sim, tau=change.tau, scores=change.scores)
    return [law.overlaps() for law in laws], [law.energies() for law in laws]


def _name(design: Design, change: Change) -> str:
    name = f"{design.wiring}, d {design.d}, {design.h} heads, {design.activation}, {design.weights}"
    name += f", tau {change.tau:g} at {change.site}" if change.tau else ""
    return name + (f", scores times {change.scores:g}" if change.scores != 1 else "")
