"""Will it train, and at which rate? The forecast of training held against trainings that it has not seen.

Random designs on three tasks climb a ladder of rates, and what fails is changed as advised. The numbers of the forecast
are fitted on the first 120 designs; the others, not looked at before, say how good they are. AdamW without warm-up,
50 to 64 steps; a design trains where it does better than any answer that is always the same.

depthscope reproduce beyond/will_it_train     a minute: the outcomes of the trainings come with the package. They are
made again by --set outcomes=trained --set folder=out/will_it_train, in hours; stopped, the same command goes on.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.drawn_designs import SEEN, DrawnDesign, drawn_designs
from depthscope.experiments.kept_outcomes import Outcomes, is_whole, kept, largest, on_the_ladder, wanted_rate
from depthscope.experiments.odds_of_training import auc, auc_interval, logistic, share_interval, told, within
from depthscope.experiments.outcomes import RATES
from depthscope.experiments.progress import track
from depthscope.experiments.repaired import REPAIRS, trained
from depthscope.forecasts.advice import Limits, Option
from depthscope.forecasts.forecast import forecast
from depthscope.forecasts.rate_limit import RateLimit
from depthscope.forecasts.record import Forecast

FACTOR = 3.0  # of the largest rate
STEPS = 56  # of a training, about
BASELINES = ("rate alone", "t_sim", "verdict", "gradient growth", "depth")
LADDER = torch.tensor(sorted(RATES), dtype=torch.float64)


@dataclass(frozen=True)
class Config:
    """designs: how many of those that were drawn; deepest: those with more blocks are left out. outcomes: "kept" or
    "trained", which takes hours and keeps its runs in the folder."""

    designs: int = 300
    depths: tuple[int, int] = (6, 128)
    widths: tuple[int, ...] = (32, 32, 48)
    deepest: int = 128
    outcomes: str = "kept"
    folder: str = ""
    seed: int = 24


SMOKE = Config()  # the outcomes are there: the whole takes seconds


def run(cfg: Config) -> dict[str, Tensor]:
    """Of every design: held_out, trains (designs, rates) with NaN where it was not tried, largest_rate (NaN where it is
    not known), forecast_rate (of the ladder, in so many steps), probability (designs, rates), alone (designs, baselines
    but the rate).

    repaired (failures, arms): what trains at the rate at which a design that judges advice failed, NaN where it was not
    tried.
    """
    drawn = drawn_designs(cfg.designs, cfg.seed, cfg.depths, cfg.widths)
    drawn = [d for d in drawn if d.choices["depth"] <= cfg.deepest]
    found = _outcomes(cfg, drawn)
    drawn = [d for d in drawn if found.ladder.get(d.number)]
    if len({d.held_out for d in drawn}) < 2:
        raise UsageError(
            f"will_it_train: some designs must be seen and some held out; designs {cfg.designs} and deepest "
            f"{cfg.deepest} leave {len(drawn)} of one kind. Designs from number {SEEN} on are held out: raise designs, "
            "or deepest."
        )
    forecasts = [forecast(**d.asked) for d in track(drawn, len(drawn))]
    limits = [f.rate_limit for f in forecasts if f.rate_limit is not None]  # sizes alone are asked: all have one
    rows = [found.ladder[d.number] for d in drawn]
    nan = float("nan")
    return {
        "held_out": torch.tensor([d.held_out for d in drawn]),
        "trains": torch.tensor([on_the_ladder(ones) for ones in rows], dtype=torch.float64),
        "largest_rate": torch.tensor([largest(ones) if is_whole(ones) else nan for ones in rows], dtype=torch.float64),
        "forecast_rate": torch.tensor([rung(limit) for limit in limits], dtype=torch.float64),
        "probability": torch.tensor([[f.trains(r, steps=STEPS).probability for r in sorted(RATES)] for f in forecasts]),
        "alone": torch.tensor([_alone(d, f) for d, f in zip(drawn, forecasts, strict=True)], dtype=torch.float64),
        "repaired": torch.tensor(_repaired(drawn, found), dtype=torch.float64).reshape(-1, len(REPAIRS)),
    }


def _outcomes(cfg: Config, drawn: list[DrawnDesign]) -> Outcomes:
    if cfg.outcomes == "kept":
        return kept()
    if cfg.outcomes != "trained" or not cfg.folder:
        raise UsageError(
            f"will_it_train: outcomes must be kept, or trained in a folder; got {cfg.outcomes!r} and folder "
            f"{cfg.folder!r}. Add --set outcomes=trained --set folder=out/will_it_train."
        )
    return trained(drawn, Path(cfg.folder))


def rung(limit: RateLimit, steps: int = STEPS) -> float:
    """The rate that is likeliest to be within FACTOR of the largest rate of the ladder that trains in so many steps.

    P(largest is r_i) = p_i (1 - p_i+1) ... (1 - p_n), p_i that it trains at r_i; a third of r_1 stands for none.
    """
    rungs, none = LADDER.tolist(), float(LADDER[0]) / 3
    chances, rest = {}, 1.0
    for rate in reversed(rungs):
        p = limit.probability(rate, steps)
        chances[rate], rest = p * rest, rest * (1 - p)
    chances[none] = rest
    guesses = torch.logspace(math.log10(none), math.log10(rungs[-1]), 81, dtype=torch.float64)
    at = torch.tensor(list(chances), dtype=torch.float64)
    right = within(guesses.unsqueeze(1), at, FACTOR).double() @ torch.tensor(
        list(chances.values()), dtype=torch.float64
    )
    best = (right > right.max() - 1e-9).nonzero().flatten()
    return float(guesses[best[len(best) // 2]])


def _alone(design: DrawnDesign, found: Forecast) -> list[float]:
    """t_sim after the last block, whether advice sees nothing to change, growth of gradients, depth; logs of two."""
    growth = 0.0 if found.gradient_growth is None else float(found.gradient_growth.log().sum())
    fine = Limits().hold(Option("nothing", {}, "", found))
    return [float(found.t_sim[-1]), float(fine), growth, float(torch.tensor(design.choices["depth"]).log())]


def _repaired(drawn: list[DrawnDesign], found: Outcomes) -> list[list[float]]:
    rows = []
    for design in drawn:
        wanted, tried = wanted_rate(design, found.ladder[design.number]), found.repairs.get(design.number, [])
        done = {one.arm: float(one.outcome.trains) for one in tried if one.outcome.rate == wanted}
        if done:
            rows.append([done.get(arm, float("nan")) for arm in REPAIRS])
    return rows


def _cases(numbers: dict[str, Tensor], half: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is known of a half: (designs, rates) flat places, whether they train, the design of each."""
    known = ~numbers["trains"].isnan() & half.unsqueeze(1)
    design = torch.arange(len(half)).unsqueeze(1).expand_as(known)
    return known, numbers["trains"][known].bool(), design[known]


def _baseline(numbers: dict[str, Tensor], half: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """Logits of all cases by the rate and one number, fitted on the seen half; and the rates that the number tells."""
    seen = ~numbers["held_out"].bool()
    rates = LADDER.log().expand_as(numbers["trains"])
    one = torch.zeros_like(rates) if column < 0 else numbers["alone"][:, column : column + 1].expand_as(rates)
    X, known = torch.stack([rates, one], -1), _cases(numbers, seen)[0]
    logits = told(X, logistic(X[known], numbers["trains"][known]))
    whole = seen & ~numbers["largest_rate"].isnan()
    level = numbers["largest_rate"].log()
    A = torch.stack([one[:, 0], torch.ones_like(level)], 1)
    line = torch.linalg.lstsq(A[whole], level[whole].unsqueeze(1), driver="gelsd").solution
    return logits, (A @ line).flatten().exp()


def on_ladder(rate: Tensor) -> Tensor:
    """Rates beyond the ladder are as good as its ends: a third of its least stands for those that never train."""
    return rate.clamp(min=float(LADDER[0]) / 3, max=float(LADDER[-1]))


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    """All of the half that was held out."""
    half = numbers["held_out"].bool()
    known, trains, groups = _cases(numbers, half)
    score = numbers["probability"].double()[known]
    whole = half & ~numbers["largest_rate"].isnan()
    true = numbers["largest_rate"][whole]
    right = within(on_ladder(numbers["forecast_rate"][whole]), true, FACTOR).double()
    others = {name: _baseline(numbers, half, k - 1) for k, name in enumerate(BASELINES)}
    shares = {name: within(on_ladder(rates[whole]), true, FACTOR).double() for name, (_, rates) in others.items()}
    count, area = int(half.sum()), "area under the ROC curve of training at a rate"
    share = f"largest rate within a factor of {FACTOR:g}"
    found = stated(count, (area, auc(score, trains), 0.90, 1.0, 0.5))
    found += stated(count, (f"{share}: share", right.mean(), 0.80, 1.0, shares["rate alone"].mean()))
    ends = (*auc_interval(score, trains, groups), *share_interval(right))
    words = (f"{area}, 95 % from", f"{area}, to", f"{share}: share, 95 % from", f"{share}: share, to")
    found += reported(count, *zip(words, ends, strict=True))
    for name, (logits, _) in others.items():
        found += reported(count, (f"area by the rate and {name}", auc(logits[known], trains)))
        found += reported(count, (f"{share}, by {name}: share", shares[name].mean()))
    right_cases = ((score >= 0.5) == trains).double().mean()
    return [*found, *reported(count, ("cases told right: share", right_cases)), *_of_repairs(numbers)]


def _of_repairs(numbers: dict[str, Tensor]) -> list[Claim]:
    """Paired: of failures at which all arms were tried."""
    tried = numbers["repaired"][~numbers["repaired"].isnan().any(1)].bool()
    if not len(tried):
        return []
    can, shares = tried[tried.any(1)], tried.double().mean(0)
    best = int(shares[1:].argmax()) + 1
    gain = tried[:, 0].double() - tried[:, best].double()
    error = float(gain.std()) / len(gain) ** 0.5 if len(gain) > 1 else float("nan")
    rows = [(f"failures repaired by {name}: share", share) for name, share in zip(REPAIRS, shares, strict=True)]
    return (
        stated(
            len(tried),
            ("of failures that an arm repairs, repaired by advice", can[:, 0].double().mean(), 0.90, 1.0, 0.0),
            ("share repaired by advice, less the best constant choice", gain.mean(), 0.0, 1.0, -shares[best]),
        )
        + reported(len(tried), *rows)
        + reported(len(tried), ("standard error of that difference, paired", error))
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    rates, chance = figure.subplots(1, 2)
    for half, label in ((~numbers["held_out"].bool(), "seen"), (numbers["held_out"].bool(), "held out")):
        rates.loglog(numbers["forecast_rate"][half], numbers["largest_rate"][half], "o", ms=4, alpha=0.6, label=label)
    ends = [float(LADDER[0]) / 3, float(LADDER[-1])]
    rates.loglog(ends, ends, "k:", lw=1)
    rates.set(title="largest rate that trains", xlabel="forecast", ylabel="on the ladder (lowest: none)")
    known, trains, _ = _cases(numbers, numbers["held_out"].bool())
    score = numbers["probability"].double()[known]
    for value, label in ((True, "trains"), (False, "does not")):
        chance.hist(score[trains == value], bins=10, range=(0, 1), alpha=0.6, label=label)
    chance.set(title="held out: probability that was forecast", xlabel="probability", ylabel="runs")
