"""How does de-escalation compare with other remedies? All remedies on one deep post-norm model, before training.

Every remedy with its default settings (DeEscalate also with tau = 0.5) and every other wiring, at the same sizes: t_sim
after the last block, and how many parameters it adds. This does not say what a remedy is worth in training: it may keep
tokens apart and spoil something else. `depthscope compare` measures that.

depthscope reproduce beyond/shelf     5 minutes beside other work: 48 blocks, 14 remedies, 14 wirings, one model each.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.models.transformer import classic
from depthscope.registry import lookup
from depthscope.remedies.fix import fix_
from depthscope.scans.scan import scan

# The mean token, or what attention makes of it, is taken away; attention is only reshaped; the skip is weighed anew.
MEAN = ("DeEscalate tau=0.5", "CentredAttention", "GainControl", "PairNorm")
RESHAPED = ("GFSA", "QKNorm", "SigmaReparam", "AttnScale")
OTHERS = ("DeEscalate", "ContraNorm", "LaplacianHeads", "MindTheGap", "NeuTRENO", "ShapedAttention")
KNOWN = ("pre_norm", "deep_norm", "rezero")
WIRINGS = (
    *KNOWN, "layer_scale", "depth_scaled", "admin", "b2t", "sub_ln", "mix_ln", "peri_ln", "resi_dual", "sandwich",
    "skip_init", "layer_norm_scaling",
)  # fmt: skip
ARMS = ("none", *MEAN, *RESHAPED, *OTHERS, *WIRINGS)
COLLAPSED = 0.99


@dataclass(frozen=True)
class Config:
    """`trials` models of `depth` blocks with their own weights, a batch of Gaussian tokens; none is the first arm."""

    LEAST = {"trials": 1}
    arms: tuple[str, ...] = ARMS
    depth: int = 48
    d: int = 64
    h: int = 4
    n: int = 64
    batch: int = 2
    trials: int = 1
    seed: int = 0


SMOKE = Config(depth=24, d=32, n=16)


def run(cfg: Config) -> dict[str, Tensor]:
    """t_sim after the last block, mean over trials, and the parameters that an arm adds: (arms,) each."""
    similar, added = [], []
    for arm in track(cfg.arms, len(cfg.arms)):
        wiring = arm if arm in WIRINGS else "post_norm"
        ends = []
        for trial in range(cfg.trials):
            torch.manual_seed(cfg.seed + trial)
            X = torch.randn(cfg.batch, cfg.n, cfg.d)
            model = classic(depth=cfg.depth, d=cfg.d, h=cfg.h, wiring=wiring)
            if arm not in ("none", *WIRINGS):
                name, _, tau = arm.partition(" tau=")
                fix_(model, lookup("remedy", name)(*([float(tau)] if tau else [])))
            ends.append(scan(model, X, metrics=("t_sim",))["t_sim"][-1].mean())
        size = sum(value.numel() for value in model.parameters())
        similar.append(torch.stack(ends).mean())
        added.append(size)
    return {"t_sim": torch.stack(similar), "parameters": torch.tensor(added) - added[0]}


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    end = dict(zip(cfg.arms, numbers["t_sim"].tolist(), strict=True))
    added = dict(zip(cfg.arms, numbers["parameters"].tolist(), strict=True))
    none, largest = end["none"], "largest t_sim after the last block"
    free = sum(added[arm] <= 0 and end[arm] < COLLAPSED for arm in end)
    return [
        *stated(
            cfg.trials,
            ("none: t_sim after the last block", none, COLLAPSED, 1.0, end["DeEscalate tau=0.5"]),
            (f"the mean is taken away ({', '.join(MEAN)}): {largest}", max(_of(end, MEAN)), 0.0, 0.9, none),
            (f"{', '.join(KNOWN)}: {largest}", max(_of(end, KNOWN)), 0.0, 0.989, none),
            (
                f"attention is reshaped ({', '.join(RESHAPED)}): least t_sim after the last block",
                min(_of(end, RESHAPED)), COLLAPSED, 1.0, end["DeEscalate tau=0.5"],
            ),
        ),
        *reported(
            cfg.trials,
            ("arms that keep t_sim below 0.99", sum(end[arm] < COLLAPSED for arm in end)),
            ("and add no parameter", free),
            *((f"{arm}: t_sim after the last block", value) for arm, value in end.items()),
            *((f"{arm}: parameters added", value) for arm, value in added.items() if value),
        ),
    ]  # fmt: skip


def _of(end: dict[str, float], arms: tuple[str, ...]) -> list[float]:
    return [end[arm] for arm in arms if arm in end]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    figure.set_size_inches(8, 8)
    ax = figure.subplots()
    ax.barh(cfg.arms, numbers["t_sim"].tolist())
    ax.axvline(COLLAPSED, color="0.4", lw=0.8)
    ax.set(title=f"t_sim after {cfg.depth} blocks, before training", xlim=(0, 1.02))
