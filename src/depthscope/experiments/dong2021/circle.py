"""Two points that walk on a circle: attention alone lets them meet, a feed-forward network or a skip keeps them apart.

Dong et al. 2021, section 4, train one layer to predict two arcs step by step, and then feed it its own output. The two
tokens are opposite points of a circle of radius 0.3. One layer of two heads, with no norms, learns to move both one
step on. Then it gets its own output as input 300 times, as in a deep network that repeats one block.

depthscope reproduce dong2021/circle     about 3 minutes on two cores. Points, heads, widths and the 300 steps are the
paper's. Adam at 1e-3, 8 trials, and training points that are 0.1 off the circle are ours: with exact points alone, no
variant learns the way back to the circle, and all fly off or meet. After 200 steps of training (found by trying), the
points meet with attention alone at width 32 and stay apart in the other variants, and width helps, as the paper says.
After 1,000 steps they stay apart with attention alone as well: such a layer starts with collapse, and training can lead
it out. Those claims are known to differ.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.experiments.claim import Claim, Known, Row, reported, stated
from depthscope.experiments.progress import track
from depthscope.training.significance import chance_gap

VARIANTS = {"attention": "attention alone", "mlp": "with feed-forward network", "skip": "with skip"}
HEADS = 2
APART = 0.5  # of the distance that the points should have: they count as apart
MET = 0.05
EARLY = 200  # steps of training after which the paper's picture shows
ENOUGH = 1000  # steps of training after which attention alone has learned to stay apart


@dataclass(frozen=True)
class Config:
    """points: on the half circle that each token walks. budgets: steps of training after which layers are let go."""

    widths: tuple[int, ...] = (32, 64, 128)
    radius: float = 0.3
    points: int = 1000
    rollout: int = 300
    budgets: tuple[int, ...] = (100, 200, 300, 600, 1000)
    batch: int = 64
    lr: float = 1e-3
    noise: float = 0.1
    trials: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.budgets or any(b <= a for a, b in pairwise((0, *self.budgets))):
            raise UsageError(
                f"circle: budgets must be steps of training, each more than the one before; got {list(self.budgets)}. "
                "For example --set budgets=[200,1000]."
            )


SMOKE = Config(widths=(32,), budgets=(200,), trials=12)


class Layer(nn.Module):
    """Points (S, B, 2, 2) -> the next points, by S layers at once, each with its own weights; no norms."""

    def __init__(self, variant: str, S: int, d: int) -> None:
        super().__init__()
        self.variant = variant
        sizes = {"read": (2, d), "q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "write": (d, 2)}
        if variant == "mlp":
            sizes |= {"up": (d, 4 * d), "down": (4 * d, d)}
        self.W = nn.ParameterDict({n: torch.randn(S, *size) / math.sqrt(size[0]) for n, size in sizes.items()})
        self.b = nn.ParameterDict({n: torch.zeros(S, 1, size[1]) for n, size in sizes.items()})

    def by(self, name: str, X: Tensor) -> Tensor:
        """(S, 2 B, .), one large product for each trial."""
        return torch.baddbmm(self.b[name], X, self.W[name])

    def heads(self, name: str, X: Tensor) -> Tensor:
        return self.by(name, X).unflatten(1, (-1, 2)).unflatten(-1, (HEADS, -1)).transpose(2, 3)  # (S, B, H, 2, d/H)

    def forward(self, points: Tensor) -> Tensor:
        X = self.by("read", points.expand(len(self.W["read"]), -1, -1, -1).flatten(1, 2))  # (S, 2 B, d)
        q, k, v = (self.heads(name, X) for name in "qkv")
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        Y = self.by("o", mixed.transpose(2, 3).flatten(3).flatten(1, 2))
        Y = Y + X if self.variant == "skip" else Y
        if self.variant == "mlp":
            Y = self.by("down", self.by("up", Y).relu())
        return self.by("write", Y).unflatten(1, (-1, 2))


def true_points(cfg: Config, index: Tensor) -> Tensor:
    """Both points after so many steps: (..., 2 tokens, 2)."""
    angle = math.pi * index[..., None].double() / cfg.points + math.pi * torch.arange(2)
    return (cfg.radius * torch.stack([angle.cos(), angle.sin()], -1)).float()


def taught(layer: Layer, cfg: Config) -> Iterator[None]:
    """Teach the layer one step, from points near the circle to points on it; stops at every budget."""
    optimiser = torch.optim.Adam(layer.parameters(), lr=cfg.lr)
    for step in range(1, cfg.budgets[-1] + 1):
        index = torch.randint(cfg.points, (cfg.batch,))
        near = true_points(cfg, index) + cfg.noise * torch.randn(cfg.batch, 2, 2)
        error = (layer(near) - true_points(cfg, index + 1)).square().sum((-2, -1)).mean(-1).sum()  # trials do not meet
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        if step in cfg.budgets:
            yield


@torch.no_grad()
def walked(layer: Layer, cfg: Config) -> Tensor:
    """What the layer makes of its own output, from the first true points on: (S, rollout + 1, 2, 2)."""
    points = true_points(cfg, torch.zeros(1)).expand(cfg.trials, 1, 2, 2)
    path = [points]
    for _ in range(cfg.rollout):
        path.append(layer(path[-1]))
    return torch.cat(path, 1)


def run(cfg: Config) -> dict[str, Tensor]:
    """Of each variant: how far apart the points end, over the true distance, (widths, budgets, trials); and paths
    (trials, steps, 2, 2) of the first width at the budget that is drawn."""
    numbers = {}
    turns = [(name, d) for name in VARIANTS for d in cfg.widths]
    ends: dict[str, list[Tensor]] = {name: [] for name in VARIANTS}
    for name, d in track(turns, len(turns)):
        layer = Layer(name, cfg.trials, d)
        paths = torch.stack([walked(layer, cfg) for _ in taught(layer, cfg)])
        ends[name].append(torch.linalg.vector_norm(paths[:, :, -1, 0] - paths[:, :, -1, 1], dim=-1) / (2 * cfg.radius))
        if d == cfg.widths[0]:
            numbers[name] = paths[shown(cfg)]
    return numbers | {f"{name}_apart": torch.stack(rows) for name, rows in ends.items()}


def shown(cfg: Config) -> int:
    """The budget that is drawn."""
    return cfg.budgets.index(EARLY) if EARLY in cfg.budgets else 0


def share(numbers: dict[str, Tensor], name: str, low: float, high: float) -> Tensor:
    """Of the trials, those that end within this distance, (widths, budgets); one that has flown off is in none."""
    ends = numbers[f"{name}_apart"]
    return ((ends >= low) & (ends <= high)).double().mean(-1)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    rows: list[Row] = []
    known, seen = list[Known](), list[tuple[str, Tensor]]()
    met = {name: share(numbers, name, 0, MET) for name in VARIANTS}
    apart = {name: share(numbers, name, APART, 2) for name in VARIANTS}
    for k, budget in enumerate(cfg.budgets):
        if budget != EARLY and budget < ENOUGH:
            continue
        for w, d in enumerate(cfg.widths):
            where = f"width {d}, {budget} steps of training"
            alone = f"attention alone: share that meets; {where}"
            if budget >= ENOUGH:
                known.append((alone, met["attention"][w, k], 0.6, 1))
            elif w == 0:
                rows.append((alone, met["attention"][w, k], 0.6, 1, met["mlp"][w, k]))
            for name, low in (("mlp", 0.75), ("skip", 0.5)):
                says, found = f"{VARIANTS[name]}: share that stays apart; {where}", apart[name][w, k]
                if budget == EARLY and w == 0:
                    rows.append((says, found, low, 1, apart["attention"][w, k]))
                else:  # here attention alone stays apart as well: nothing is told by what is beside it
                    seen.append((says, found))
        if budget == EARLY and len(cfg.widths) > 1:
            gain = apart["attention"][-1, k] - apart["attention"][0, k]
            says = f"attention alone: share that stays apart, width {cfg.widths[-1]} less width {cfg.widths[0]}"
            rows.append((says, gain, chance_gap(cfg.trials), 1, 0))
    return [
        *stated(cfg.trials, *rows),
        *stated(cfg.trials, *known, expected=False),
        *reported(cfg.trials, *seen),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    *panels, shares = figure.subplots(1, len(VARIANTS) + 1)
    true = true_points(cfg, torch.arange(cfg.rollout + 1))
    span = 1.7 * cfg.radius
    for ax, (name, label) in zip(panels, VARIANTS.items(), strict=True):
        ends = numbers[f"{name}_apart"][0, shown(cfg)]
        path = numbers[name][int((ends - ends.nanmedian()).abs().nan_to_num(9.0).argmin())]  # the usual trial
        for token, colour in enumerate(("C0", "C1")):
            ax.plot(*true[:, token].T, color="0.85", lw=5)
            ax.plot(*path[:, token].T, color=colour, lw=1.2)
            ax.plot(*path[0, token], "o", mfc="white", color=colour, ms=5)
            ax.plot(*path[-1, token], "o", color=colour, ms=5)
        ax.set(title=label, xlim=(-span, span), ylim=(-span, span), aspect="equal")
    panels[0].set_xlabel(f"width {cfg.widths[0]}, {cfg.budgets[shown(cfg)]} steps of training; grey: true")
    for index, (name, label) in enumerate(VARIANTS.items()):
        for row, d in zip(share(numbers, name, APART, 2), cfg.widths, strict=True):
            strength = 1.0 if d == cfg.widths[0] else 0.35
            shares.plot(cfg.budgets, row, "o-", ms=3, color=f"C{index}", alpha=strength)
        shares.plot([], color=f"C{index}", label=label)
    shares.set(title="share that stays apart", xlabel="steps of training (pale: wider)", ylim=(-0.05, 1.05))
