"""Residual by depth: what of the tokens is not common, in BERT, ALBERT and XLNet with and without skips and MLPs.

Attention alone loses rank doubly exponentially, skips stop that, an MLP slows it down (Dong et al. 2021, section 4.1).
When the attention skip and the MLP are removed as the authors do it (the norms stay), the relative residual is below
0.001 by block 2 in all three models. At initialisation an MLP does not slow this down, with or without a skip of its
own. In BERT and ALBERT the logarithm falls almost three times as far in the second block as in the first: that is the
cubic rate. XLNet's residual falls by a factor near 20 in every block, which is only exponential: its scores of relative
positions do not vanish with the residual, so its attention never becomes uniform. With the keys of its positions set to
zero it is cubic too.

depthscope reproduce dong2021/residual_by_depth     about 2 minutes on two cores, in float64: its floor is 6e-16.
--set trained=folder,folder adds trained Hugging Face models; --set text=file says which text they read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscope.ablations.without import without_
from depthscope.errors import UsageError
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.scans.scan import scan

ARMS = {  # the authors' names, and what is taken out
    "attention only": ("attention_skip", "ffn"),
    "+ MLP": ("attention_skip",),
    "+ MLP without its skip": ("skips",),
    "+ skip": ("ffn",),
    "whole model": (),
}
COLLAPSED, WITHIN = 1e-3, 6
CONTROL = "xlnet_without_positions"


@dataclass(frozen=True)
class Config:
    """Base sizes; weights of std 0.02, as Hugging Face draws them. trained: folders, commas between them."""

    families: tuple[str, ...] = ("bert", "albert", "xlnet")
    trained: str = ""
    text: str = ""
    depth: int = 12
    d: int = 768
    h: int = 12
    n: int = 128
    batch: int = 2
    seeds: int = 2
    seed: int = 0


SMOKE = Config(depth=8, d=128, h=4, n=32, seeds=1)


def run(cfg: Config) -> dict[str, Tensor]:
    """The relative residual of every model, (seeds, arms, depth + 1), mean over sequences."""
    names = (*cfg.families, *filter(None, cfg.trained.split(",")))
    if len({*map(label, names)}) < len(names):
        raise UsageError(f"trained: folders must differ in their last name, which labels them; got {cfg.trained!r}.")
    cells = [(name, seed) for name in names for seed in range(cfg.seeds)]
    rows: dict[str, list[Tensor]] = {label(name): [] for name in names}
    for name, seed in track(cells, len(cells)):
        sizes = Sizes(cfg.depth, cfg.d, cfg.h, cfg.n, cfg.batch, cfg.seed + seed)
        model, given = resolve(name, sizes, text=cfg.text or None)
        rows[label(name)].append(torch.stack([_curve(model.double(), given, parts) for parts in ARMS.values()]))
    found = {name: torch.stack(curves) for name, curves in rows.items()}
    if "xlnet" in cfg.families:
        found[CONTROL] = torch.stack([_without_positions(cfg, cfg.seed + seed) for seed in range(cfg.seeds)])
    return found


def _without_positions(cfg: Config, seed: int) -> Tensor:
    """The relative residual of XLNet's attention alone, its keys of relative positions set to zero."""
    model, given = resolve("xlnet", Sizes(cfg.depth, cfg.d, cfg.h, cfg.n, cfg.batch, seed))
    for block in model.layer:  # type: ignore[union-attr]
        block.rel_attn.r.data.zero_()  # type: ignore[union-attr]
    return _curve(model.double(), given, ARMS["attention only"])


def label(name: str) -> str:
    """A family, or the folder of a trained model."""
    return Path(name).name


def _curve(model: Any, given: Any, parts: tuple[str, ...]) -> Tensor:
    chosen: dict[str, Any] = {"metrics": ["relative_residual"], "attention": False}
    if not parts:
        return scan(model, given, **chosen)["relative_residual"]
    with without_(model, *parts):
        return scan(model, given, **chosen)["relative_residual"]


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    """On random weights; trained models are in the figure and the record."""
    made = []
    arm = {name: index for index, name in enumerate(ARMS)}
    met = 0
    for family in cfg.families:
        curves = numbers[family]
        pure = collapse(curves[:, arm["attention only"]])
        full = float(curves[:, arm["whole model"], -1].min())
        met += pure <= WITHIN and full > 0.1
        mlp, unskipped = (collapse(curves[:, arm[name]]) for name in ("+ MLP", "+ MLP without its skip"))
        never, gone = collapse(curves[:, arm["whole model"]]), float(curves[:, arm["attention only"], -1].max())
        made += stated(  # the null: the whole model where a collapse is claimed, attention alone where none is
            cfg.seeds,
            (f"{family}: attention only, block from which the residual is below 0.001", pure, 1, WITHIN, never),
            (f"{family}: + MLP, the same", mlp, 1, WITHIN, never),
            (f"{family}: + MLP without its skip, the same", unskipped, 1, WITHIN, never),
            (f"{family}: + skip, residual after the last block", curves[:, arm["+ skip"], -1].min(), 0.01, 2.0, gone),
            (f"{family}: whole model, residual after the last block", full, 0.1, 2.0, gone),
        )
        says = f"{family}: attention only, fall of log residual in block 2 over block 1 (cubic: 3)"
        rate = order(curves[:, arm["attention only"]])
        made += stated(cfg.seeds, (says, rate, 2.0, 4.0, 1.0), expected=family != "xlnet")
    if CONTROL in numbers:
        says = "xlnet: the same, keys of relative positions set to zero"
        as_it_is = order(numbers["xlnet"][:, arm["attention only"]])
        made += stated(cfg.seeds, (says, order(numbers[CONTROL]), 2.0, 4.0, as_it_is))
    says = "families whose attention alone collapses while the whole model does not"
    return made + reported(cfg.seeds, (says, met))  # it follows from what is claimed of each


def collapse(curves: Tensor) -> int:
    """The first block from which on all curves (seeds, depth + 1) stay below 0.001; depth + 1 when none is."""
    above = (~(curves < COLLAPSED)).any(0).nonzero()  # what is not a number is not below
    return int(above[-1]) + 1 if len(above) else 0


def order(curves: Tensor) -> float:
    """How much further the logarithm falls in block 2 than in block 1: 3 where r -> c r^3, 1 where r -> c r."""
    falls = curves[:, :3].log().diff(dim=-1)  # (seeds, 2)
    return float((falls[:, 1] / falls[:, 0]).mean())


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    panels = {name: curves for name, curves in numbers.items() if name != CONTROL}
    figure.set_size_inches(3.6 * len(panels), 3.6)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (name, curves) in zip(axes, panels.items(), strict=True):
        for index, arm in enumerate(ARMS):
            mean = curves[:, index].clamp_min(1e-16).log().mean(0).exp()
            ax.semilogy(mean, marker=".", ms=4, lw=1.2, color=f"C{index}", label=arm if ax is axes[0] else None)
            ax.fill_between(
                range(len(mean)), *curves[:, index].clamp_min(1e-16).aminmax(dim=0), color=f"C{index}", alpha=0.2
            )
        if name == "xlnet":
            control = numbers[CONTROL].clamp_min(1e-16).log().mean(0).exp()
            line = ax.semilogy(control, "k:", lw=1.2, label="attention only, no keys of positions")
            ax.legend(handles=line, loc=(0.2, 0.66), frameon=False, fontsize=8)
            ax.grid(alpha=0.25)
        ax.axhline(COLLAPSED, color="0.6", lw=0.8, ls=":")
        ax.set(title=name, xlabel="block")
    axes[0].set(ylabel="relative residual", ylim=(1e-16, 3))
