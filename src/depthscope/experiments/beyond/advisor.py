"""Is the advice good? The advisor chooses changes for random designs from sizes alone; they are built and measured.

depthscope reproduce beyond/advisor     about 4 minutes on two cores, 60 designs of 12 to 64 blocks.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.forecasts.advice import FLOOR
from depthscope.forecasts.advise import advise
from depthscope.models.design import Design
from depthscope.models.transformer import Transformer
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.remedies.fix import fix_
from depthscope.scans.scan import scan

WIRINGS = ("post_norm", "post_norm", "post_norm", "pre_norm", "depth_scaled", "b2t", "sandwich", "sub_ln", "deep_norm")
HARMLESS: tuple[dict[str, Any], ...] = (
    {"wiring": "deep_norm", "depth": 48, "weights": "xavier"},
    {"wiring": "rezero", "depth": 48},
    {"wiring": "pre_norm", "depth": 12, "weights": "xavier"},
)


@dataclass(frozen=True)
class Config:
    """`designs` at random, each measured on one model and a batch of sequences."""

    designs: int = 60
    depths: tuple[int, ...] = (12, 24, 48, 64)
    widths: tuple[int, ...] = (64, 128, 256)
    tokens: tuple[int, ...] = (16, 32, 64)
    batch: int = 4
    seed: int = 0


SMOKE = Config(designs=6, depths=(12, 24), widths=(64,), tokens=(16,))


def chosen(cfg: Config) -> list[dict[str, Any]]:
    """The designs: arguments of advise()."""
    pick = random.Random(cfg.seed).choice
    return [
        {
            "wiring": pick(WIRINGS),
            "depth": pick(cfg.depths),
            "d": pick(cfg.widths),
            "h": pick([2, 4, 8]),
            "n": pick(cfg.tokens),
            "alpha": pick([0.5, 1.0, 1.0, 1.5]),
            "weights": pick(["xavier", "torch_default", "unit_gain"]),
            "activation": pick(["relu", "gelu", "swiglu"]),
            "causal": pick([False, False, True]),
            "output": pick([False, True]),
        }
        for _ in range(cfg.designs)
    ]


def run(cfg: Config) -> dict[str, Tensor]:
    """Measured t_div at the end, as it is, with the choice, and as forecast: (designs, 3); needed: (designs,).

    growth: of token gradients over all blocks, measured as it is and with the choice, (designs, 2).
    """
    rows, needed, growth = [], [], []
    for sizes in track(chosen(cfg), cfg.designs):
        advice = advise(**sizes)
        design = Design(**{name: value for name, value in sizes.items() if name != "n"})
        X = torch.randn(cfg.batch, sizes["n"], sizes["d"])
        seed = int(torch.randint(2**31, ()))
        (before, old), (after, new) = (_measured(design, X, s, seed) for s in ({}, advice.choice.settings))
        rows.append([before, after, advice.choice.t_div])
        growth.append([old, new])
        needed.append(advice.needed)
    harmless = [advise(n=64, **sizes).needed for sizes in HARMLESS]
    return {
        "t_div": torch.tensor(rows, dtype=torch.float64),
        "needed": torch.tensor(needed),
        "growth": torch.tensor(growth, dtype=torch.float64),
        "harmless": torch.tensor(harmless),
    }


def _measured(design: Design, X: Tensor, settings: dict[str, Any], seed: int) -> tuple[float, float]:
    """t_div after the last block of a model with a choice's settings, and how much token gradients grow on the way."""
    torch.manual_seed(seed)  # the same draws before and after
    inside = {name: value for name, value in settings.items() if name in ("alpha", "wiring")}
    model = Transformer(replace(design, **inside))
    with torch.no_grad():
        for block in model:
            for matrix in (block.attention.W_q, block.attention.W_k):
                matrix.weight.mul_(settings.get("scores", 1.0) ** 0.5)
    if "tau" in settings:
        form = "sink" if design.causal else "full"
        with fix_(model, DeEscalate(settings["tau"], form=form), at=settings["site"]):
            return _end(model, X)
    return _end(model, X)


def _end(model: Transformer, X: Tensor) -> tuple[float, float]:
    reads = torch.randn(X.shape[-1])

    def loss(output: Tensor) -> Tensor:
        return (output[:, -1] @ reads).sum()  # one token of every sequence

    seen = scan(model, X, metrics=["t_div"], attention=False, gradients=loss)
    gradients = seen["token_gradient_norm"]
    return float(seen["t_div"][-1]), float(gradients[1] / gradients[-1])


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    before, after, expected = numbers["t_div"].T
    helped, harmless = numbers["needed"], numbers["harmless"]
    was, kept = (before >= FLOOR).double(), (after >= FLOOR).double()
    lost = 1 - was
    error, same = ((after - one).abs().mean() for one in (expected, after.mean()))
    calm = (numbers["growth"] < 60).double().mean(0)
    above = f"share of designs whose measured t_div stays above the floor of {FLOOR:g}"
    rows = [  # the null: of the designs as they are; of those that need no change; one forecast for all
        (above, kept.mean(), 0.95, 1.0, was.mean()),
        ("of those that need a change, share kept above the floor", kept[helped].mean(), 0.9, 1.0, was[helped].mean()),
        ("of these, share measured below it as they are", lost[helped].mean(), 0.6, 1.0, lost[~helped].mean()),
        ("t_div forecast for the choice, mean error", error, 0.0, 0.05, same),
        ("DeepNorm, ReZero, pre-norm of depth 12: a fix is needed by", harmless.sum(), 0.0, 0.0, len(harmless)),
    ]
    return stated(cfg.designs, *rows) + reported(
        cfg.designs,
        ("share of designs that need a change", helped.double().mean()),
        ("share whose gradients, measured, grow less than 60 times, as they are", calm[0]),
        ("the same with the choice", calm[1]),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    ax = figure.subplots()
    before, after, expected = numbers["t_div"].clamp(min=1e-6).T
    order = expected.argsort()
    ax.semilogy(before[order], ".", color="0.6", label="measured, as it is")
    ax.semilogy(expected[order], "-", lw=1, label="forecast for the advisor's choice")
    ax.semilogy(after[order], "o", ms=4, label="measured with it")
    ax.axhline(FLOOR, color="k", ls=":", lw=1, label="floor")
    ax.set(title="t_div after the last block", xlabel="designs")
