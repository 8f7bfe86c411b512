"""How sure a forecast by weights is: from what every block neglects to a band of t_sim, and words where it is wide."""

import torch
from torch import Tensor

from depthscope.forecasts.record import Forecast
from depthscope.laws.doubt import KINDS
from depthscope.laws.law import Law

FACTOR = 2.8  # standard deviations of the log-odds: nine whole curves of ten, see beyond/forecast_error
SLACK = 0.005  # of t_sim, of the mean field itself, where nothing is left to chance
ROUNDING = 1e-6  # of t_sim before the first block, which is computed and not forecast
AGAIN = 0.035  # standard deviation of the log-odds that a block adds when it has the weights of the one before it
MOVES = 0.2  # change of the log-odds by a block below which that is less
TRAINED = 1.0  # variance of the log-odds that a trained block adds: their curves are off by up to 0.3, either way
STEEPEST = 1.2  # slope of the log-odds of a block on those before it; more is a small difference of large errors
RANGE = 0.1  # of t_sim: a band this far from the curve is worth a warning
SHARP = 2.0  # variance of scores that is worth a word
WHY = {
    "width": "Tokens have few channels, so overlaps that the forecast takes for zero are large",
    "heads": "There are few heads or tokens, so where attention looks is chance",
    "structure": "The weights are not random (trained?), but the forecast assumes that they are independent of "
    "the tokens",
    "again": "Blocks share their weights, so each one repeats the error of the one before",
    "draws": "Some steps have no known law; they ran on tokens drawn at random, and draws differ",
    "unknown": "The error of one step is not known",
}


def neglected(laws: list[Law], structure: float = 0.0) -> Tensor:
    """The variance of the log-odds of t_sim after every block by KINDS, (depth + 1, kinds), a mean over sequences.

    V_l = J_l^2 V_{l-1} + what block l neglects,    J_l: slope of the log-odds after the block on those before it

    Where blocks share their weights, each makes the error of the one before it again: standard deviations add up then.
    Infinite after a block through which it could not be followed. structure: the least that a block adds of that kind.
    """
    V = torch.zeros(len(KINDS), dtype=torch.float64)
    found = [V]
    for block, law in enumerate(laws[1:]):
        if law.doubt is None:
            V = torch.full_like(V, torch.inf)
        else:
            slope, fresh = (x.mean(0) for x in law.doubt.of_odds(law.pair))
            least = {"structure": structure, "again": _again(laws[block], law) if law.followed and block else 0.0}
            fresh = fresh.maximum(torch.tensor([least.get(kind, 0.0) for kind in KINDS]).to(fresh))
            J = slope.abs().clamp(max=STEEPEST)
            V = (J * V.sqrt() + fresh.sqrt()).square() if law.followed else J.square() * V + fresh
            V = V.nan_to_num(nan=torch.inf, posinf=torch.inf)
        found.append(V)
    return torch.stack(found)


def _again(before: Law, after: Law) -> float:
    """The variance that a block adds which has the weights of the one before it; 0 for one that does nothing."""
    old, new = (law.pair.clamp(min=1e-300).log().diff(dim=-1).mean() for law in (before, after))
    return AGAIN**2 * min(1.0, float((new - old) / MOVES) ** 2)


def band_by_variance(forecast: Forecast, variance: Tensor) -> Tensor:
    """Between which values t_sim lies in nine cases of ten, (2, depth + 1); variance (depth + 1,) of its log-odds."""
    tiny = torch.finfo(torch.float64).tiny
    odds = (forecast.t_sim.clamp(min=tiny) / forecast.t_div.clamp(min=tiny)).log()
    away = (FACTOR * variance.sqrt()).clamp(max=1e4)
    slack = torch.where(torch.arange(len(odds)) > 0, SLACK, ROUNDING)
    low, high = torch.sigmoid(odds - away) - slack, torch.sigmoid(odds + away) + slack
    return torch.stack([torch.minimum(low, forecast.t_sim), torch.maximum(high, forecast.t_sim)]).clamp(0, 1)


def beyond_range(forecast: Forecast, laws: list[Law], variance: Tensor) -> list[str]:
    """One sentence where the band is wide: how far off t_sim may be, from which block on, and why."""
    assert forecast.band is not None
    off = (forecast.band - forecast.t_sim).abs().amax(0)
    if float(off.max()) <= RANGE:
        return []
    first, worst = int((off > RANGE).nonzero()[0]), int(off.argmax())
    known = bool(variance[worst].isfinite().all())
    why = WHY[KINDS[int(variance[worst].argmax())] if known else "unknown"]
    scores = max((law.doubt.scores for law in laws if law.doubt is not None), default=0.0)
    sharp = f" Scores are sharp: their variance is {scores:.2g}." if scores > SHARP else ""
    return [
        f"this forecast cannot be trusted from block {first} on: t_sim may be off by {float(off.max()):.2f} "
        f"(block {worst}). {why}.{sharp} Scan the model to be sure."
    ]


def warned_of_training(sign: str) -> list[str]:
    """One sentence where a sign says that the weights are trained."""
    return [f"the weights look trained ({sign}): the band does not hold for them"] if sign else []
