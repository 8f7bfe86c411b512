"""How far to trust a forecast: random designs, each built, scanned and forecast by its weights and by its sizes alone.

Nothing in the forecast is fitted. By weights, the common part of the tokens goes through the actual matrices; by sizes,
only their laws are known, so that the chance of one model is part of the error.

depthscope reproduce beyond/forecast_error     about 2 minutes on two cores, 48 designs of 12 to 100 blocks.
"""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import stacked
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.forecasts.forecast import forecast
from depthscope.models.design import Design
from depthscope.models.transformer import Transformer
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.remedies.fix import fix_
from depthscope.scans.scan import scan

WIRINGS = (
    "post_norm pre_norm deep_norm b2t sandwich peri_ln resi_dual depth_scaled layer_norm_scaling sub_ln mix_ln rezero"
).split()


@dataclass(frozen=True)
class Config:
    """`designs` at random, the wirings in turn."""

    designs: int = 48
    depths: tuple[int, ...] = (12, 24, 48, 100)
    widths: tuple[int, ...] = (64, 128, 256)
    tokens: tuple[int, ...] = (16, 32, 64)
    batch: int = 4
    seed: int = 0


SMOKE = Config(designs=12, depths=(12,), widths=(128,), tokens=(16, 24))


def chosen(cfg: Config) -> list[dict[str, Any]]:
    """The designs: arguments of forecast() without a model."""
    pick = random.Random(cfg.seed).choice
    found = []
    for index in range(cfg.designs):
        weights = pick(["xavier", "torch_default", "unit_gain"])
        found.append(
            {
                "wiring": WIRINGS[index % len(WIRINGS)],
                "depth": pick(cfg.depths),
                "d": pick(cfg.widths),
                "h": pick([2, 4, 8]),
                "n": pick(cfg.tokens),
                "alpha": pick([0.5, 1.0, 1.0, 2.0]),
                "weights": weights,
                "activation": pick(["relu", "gelu", "swiglu"]),
                "causal": pick([False, False, True]),
                "output": pick([False, True]),
                "bias": weights == "torch_default" and pick([False, True]),
                "tau": pick([0.0, 0.0, 0.1, 0.3, 0.5]),
            }
        )
    return found


def words(design: dict[str, Any]) -> str:
    """A design in one line."""
    d = design
    parts = [d["wiring"], d["weights"], d["activation"], f"L {d['depth']} d {d['d']} n {d['n']} alpha {d['alpha']:g}"]
    return ", ".join(parts + ["causal"] * d["causal"] + [f"tau {d['tau']:g}"] * (d["tau"] > 0))


def run(cfg: Config) -> dict[str, Tensor]:
    """Mean and largest error of t_sim over the blocks, by weights, by sizes, and were it to stay: (designs, 3) each.

    end: t_sim after the last block, (designs,).
    """
    rows = []
    for design in track(chosen(cfg), cfg.designs):
        sizes = {key: value for key, value in design.items() if key not in ("n", "tau")}
        model, X = Transformer(Design(**sizes)), torch.randn(cfg.batch, design["n"], design["d"])
        form = "sink" if design["causal"] else "full"
        with fix_(model, DeEscalate(design["tau"], form=form)):
            measured = scan(model, X, metrics=["t_sim"], attention=False)["t_sim"]
            by_weights = forecast(model, X).t_sim
        curves = (by_weights, forecast(**design).t_sim, measured[:1].expand_as(measured))
        errors = torch.stack([(found - measured).abs() for found in curves], -1)
        rows.append({"mean": errors.mean(0), "largest": errors.amax(0), "end": measured[-1]})
    return stacked(rows)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    by_weights, by_sizes, stays = numbers["mean"].T
    largest = numbers["largest"].amax(0)
    worst = by_weights.topk(min(5, cfg.designs))
    designs = chosen(cfg)
    return [
        *stated(
            cfg.designs,
            ("by weights: mean error of t_sim over all blocks", by_weights.mean(), 0.0, 0.03, stays.mean()),
            ("by weights: mean error of the worst design", by_weights.max(), 0.0, 0.10, stays.max()),
            ("by weights: largest error at any block of any design", largest[0], 0.0, 0.10, largest[2]),
            ("by sizes alone: mean error of t_sim over all blocks", by_sizes.mean(), 0.0, 0.05, stays.mean()),
            ("by sizes alone: mean error of the worst design", by_sizes.max(), 0.0, 0.10, stays.max()),
        ),
        *reported(1, *((f"worst: {words(designs[i])}", by_weights[i]) for i in worst.indices.tolist())),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    ax = figure.subplots()
    ordered = numbers["mean"].sort(0, descending=True).values
    for column, label in zip(ordered.T, ("by weights", "by sizes alone"), strict=True):
        ax.semilogy(column.clamp(min=1e-5), marker=".", lw=1, label=label)
    ax.axhline(0.03, color="k", ls=":", lw=1)
    ax.set(title="error of forecast t_sim, mean over blocks", xlabel="designs, worst first")
