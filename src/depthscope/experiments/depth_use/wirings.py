"""Which wiring makes deep blocks useful? Language models of four kinds, trained alike and priced block by block.

Claims were taken from the papers before the run: deep blocks of pre-norm models contribute less, and the second half
can be skipped at a smaller price (Csordas et al. 2025, Gromov et al. 2024); block influence and measured price agree in
rank (Men et al. 2024); removing a stretch beats removing scattered blocks (Gromov et al. 2024); LayerNorm scaling
levels the use of depth (Sun et al. 2025). Those papers are about models of 0.1 to 70 billion weights. The models here
have some hundred thousand, and see a few hundred thousand characters of pydoc, so what does not hold here may hold
there. The claims about LayerNorm scaling did not hold: in the run of 2026-11-18 its deep blocks were used less than
those of pre-norm. They are marked as known to differ. No paper says how a de-escalated model uses its depth, so this
arm is reported and not judged.

One rate for all is not fair to all: of several `rates`, every arm takes the one that had the least loss in a short run,
on validation text that prices nothing.

depthscope reproduce depth_use/wirings     about 4 minutes of one core: 12 blocks of width 64, 160 steps, one seed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.depths.depth import depth
from depthscope.experiments.claim import Claim, Row, reported, stated
from depthscope.experiments.gallery_trained import trained
from depthscope.traces.installed import fixes_in
from depthscope.training.tasks.pydoc import pydoc_corpus

SINK = {"remedy": "de_escalate", "remedy_settings": {"tau": 0.3, "form": "sink"}, "at": "ffn_in"}
ARMS: dict[str, dict[str, Any]] = {
    "pre-norm": {"wiring": "pre_norm"},
    "LayerNorm scaling": {"wiring": "layer_norm_scaling"},
    "post-norm": {"wiring": "post_norm"},
    "de-escalated post-norm": {"wiring": "post_norm", **SINK},
}
TAUGHT = 150  # steps; after fewer nothing is claimed, because nothing has been learned
LESS, AGREES, LEVELS = 0.8, 0.3, 1.2


@dataclass(frozen=True)
class Config:
    """rows: sequences that price blocks, and as many that judge removals. drops: blocks removed at most.

    rates: of several, each arm takes the one that is best after `searched` steps with the first seed.
    """

    LEAST = {"trials": 1, "rows": 2, "drops": 1}
    depth: int = 12
    d: int = 64
    h: int = 4
    q: int = 128
    segment: int = 64
    batch: int = 16
    steps: int = 160
    rates: tuple[float, ...] = (2e-3,)
    searched: int = 80
    rows: int = 8
    drops: int = 3
    trials: int = 1
    seed: int = 0


SMOKE = Config(depth=4, d=16, h=2, q=32, segment=32, batch=8, steps=12, rows=2, drops=1)


def run(cfg: Config) -> dict[str, Tensor]:
    """By arm, seed and block: influence, contribution (both branches), price (arms, seeds, L); lens KL (.., L+1);
    cost (arms, seeds, curves) of `drops` removals: greedy, influence, contiguous, last; rate and test loss (arms,
    seeds)."""
    found = []
    for choice in ARMS.values():
        own = choice | {"lr": best_rate(choice, cfg)}
        found.append([_priced(own, cfg, seed) for seed in range(cfg.seed, cfg.seed + cfg.trials)])
    names = found[0][0]
    return {name: torch.stack([torch.stack([one[name] for one in seeds]) for seeds in found]) for name in names}


def best_rate(choice: dict[str, Any], cfg: Config) -> float:
    """The rate that has the least loss after a short run; a run that broke has none."""
    if len(cfg.rates) == 1:
        return cfg.rates[0]
    losses = []
    for rate in cfg.rates:
        model, _ = _trained(choice | {"lr": rate}, cfg, cfg.seed, cfg.searched)
        losses.append(_valid_loss(model, cfg))
    return cfg.rates[int(torch.tensor(losses).nan_to_num(torch.inf).argmin())]


def _trained(choice: dict[str, Any], cfg: Config, seed: int, steps: int) -> tuple[nn.Module, float]:
    """A model and its test loss."""
    sizes = {"depth": cfg.depth, "d": cfg.d, "h": cfg.h, "q": cfg.q, "batch": cfg.batch}
    text = {"segment": cfg.segment, "test": 8192, "epoch_tokens": steps * cfg.batch * cfg.segment}
    (model, _), score, _ = trained("pydoc", sizes | text | choice | {"schedule": "cosine", "epochs": 1}, seed)
    return model, score


@torch.no_grad()
def _valid_loss(model: nn.Module, cfg: Config) -> float:
    """The loss on the end of the validation split; its beginning prices blocks."""
    words = pydoc_corpus().valid[-4 * cfg.rows * cfg.segment :].reshape(-1, cfg.segment)
    logits = model(words[:, :-1])[0]
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()))


def _priced(choice: dict[str, Any], cfg: Config, seed: int) -> dict[str, Tensor]:
    model, score = _trained(choice, cfg, seed, cfg.steps)
    made = depth(built_in(model), *_rows(cfg), drops=cfg.drops, what=("lens", "prices", "curves"))
    assert made.prices is not None and made.lens is not None
    return {
        "test_loss": torch.tensor(score, dtype=torch.float64),
        "rate": torch.tensor(choice["lr"], dtype=torch.float64),
        "influence": made.rest.influence,
        "contribution": made.rest.size.sum(0),
        "price": made.prices.skip,
        "kl": made.lens.kl,
        "passes": torch.tensor(made.prices.passes, dtype=torch.float64),
        "cost": torch.tensor([curve.losses[-1] - curve.losses[0] for curve in made.curves], dtype=torch.float64),
    }


class NormAndRemedy(nn.Module):
    """A norm, and what a remedy makes of its tokens."""

    def __init__(self, norm: nn.Module, remedy: nn.Module) -> None:
        super().__init__()
        self.norm, self.remedy = norm, remedy

    def forward(self, X: Tensor) -> Tensor:
        return self.remedy(self.norm(X))


def built_in(model: nn.Module) -> nn.Module:
    """The same model, with a remedy at ffn_in of post-norm blocks made a part of them: a skipped block skips it too.

    ds.depth refuses a model that was fixed, because there the remedy would outlive its block.
    """
    for fix in fixes_in(model):
        remedy = fix.remedy
        fix.undo()
        blocks: Any = model.transformer.blocks  # type: ignore[union-attr]
        for block in blocks:
            block.wiring.norm_1 = NormAndRemedy(block.wiring.norm_1, remedy)
    return model


def _rows(cfg: Config) -> tuple[Tensor]:
    """Characters of the validation split: the first half of the rows prices blocks, the second judges."""
    return (pydoc_corpus().valid[: 2 * cfg.rows * cfg.segment].reshape(2 * cfg.rows, cfg.segment),)


def halves(values: Tensor) -> Tensor:
    """The mean of the second half of the blocks over that of the first, (..., L) -> (...)."""
    middle = values.shape[-1] // 2
    return values[..., middle:].mean(-1) / values[..., :middle].mean(-1)


def rank_agreement(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's coefficient of (..., L): the correlation of ranks, no ties expected."""
    x, y = (one.argsort(-1).argsort(-1).double() for one in (a, b))
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    """Pre-norm is the first arm, LayerNorm scaling the second."""
    price, contribution = halves(numbers["price"]).mean(1), halves(numbers["contribution"]).mean(1)
    agree = rank_agreement(numbers["influence"], numbers["price"]).mean(1)
    _, scattered, stretch, _ = numbers["cost"][0].mean(0)
    apart = "pre-norm: cost of removing a stretch over scattered blocks of least influence"
    levels = "contribution, second half over first: LayerNorm scaling over pre-norm"
    rows: list[Row] = [
        ("pre-norm: contribution of the second half of the blocks over the first", contribution[0], 0.0, LESS, 1.0),
        ("pre-norm: price of skipping a block, second half over first", price[0], -1.0, LESS, 1.0),
        ("pre-norm: rank correlation of block influence and price", agree[0], AGREES, 1.0, 0.0),
        (apart, stretch / scattered, 0.0, 0.95, 1.0),
    ]
    known: list[Row] = [
        (levels, contribution[1] / contribution[0], LEVELS, 100.0, 1.0),
        ("price, second half over first: LayerNorm scaling minus pre-norm", price[1] - price[0], 0.1, 100.0, 0.0),
    ]
    others = [(f"{arm}: test loss, nats", numbers["test_loss"][i].mean()) for i, arm in enumerate(ARMS)]
    if len(cfg.rates) > 1:
        others += [(f"{arm}: rate that was best in a short run", numbers["rate"][i, 0]) for i, arm in enumerate(ARMS)]
    others += [(f"{arm}: price, second half over first", price[i]) for i, arm in enumerate(ARMS) if i > 1]
    others += [(f"{arm}: rank correlation of influence and price", agree[i]) for i, arm in enumerate(ARMS) if i]
    limit, one_each = cfg.depth / 2 + 2, cfg.depth + 1.0
    passes: Row = ("forward passes that price all blocks, at most", numbers["passes"].max(), 0.0, limit, one_each)
    if cfg.steps < TAUGHT:
        untaught = reported(cfg.trials, *(row[:2] for row in (*rows, *known)), *others)
        return [*stated(cfg.trials, passes), *untaught]
    return [
        *stated(cfg.trials, passes, *rows),
        *stated(cfg.trials, *known, expected=False),
        *reported(cfg.trials, *others),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    panels = figure.subplots(1, 3)
    titles = {
        "contribution": "|branches| / |stream|",
        "price": "price of skipping, nats",
        "kl": "lens: KL to the end, nats",
    }
    for ax, (name, title) in zip(panels, titles.items(), strict=True):
        for i, arm in enumerate(ARMS):
            values = numbers[name][i].mean(0)
            ax.plot(range(0 if name == "kl" else 1, cfg.depth + 1), values, marker=".", label=arm)
        ax.set(title=title, xlabel="block")
        ax.grid(alpha=0.25)
    panels[0].legend(fontsize=8, frameon=False)
