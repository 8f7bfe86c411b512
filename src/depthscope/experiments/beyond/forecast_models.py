"""Other people's models at random initialisation: forecast by their weights, and calibrated on their first blocks.

By weights, the model itself is forecast before any block is computed. A scan of the first blocks only says what blocks
do on average; later blocks differ by chance, and the band says how far.

depthscope reproduce beyond/forecast_models     about 3 minutes on two cores, 6 kinds of models, 4 of each.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.experiments.claim import Claim, Row, reported, stated
from depthscope.experiments.progress import track
from depthscope.forecasts.forecast import forecast
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.scans.scan import scan
from depthscope.traces.blocks import blocks_by_name

COPIES = "nn.TransformerEncoder"


@dataclass(frozen=True)
class Config:
    """`seeds` models of each kind; weights have the gain of std 0.02 at width 768. wide: BERT's own width as well."""

    models: tuple[str, ...] = ("bert", "gpt2", "llama", "vit", COPIES)
    depth: int = 48
    d: int = 256
    h: int = 4
    n: int = 64
    batch: int = 4
    first: int = 8
    seeds: int = 4
    wide: tuple[int, ...] = (768, 24)
    seed: int = 0


SMOKE = Config(models=("bert", "llama"), depth=12, d=64, n=16, first=6, seeds=1, wide=())


def run(cfg: Config) -> dict[str, Tensor]:
    """Curves (models, seeds, depth + 1): measured, by weights, by the first blocks; how often t_sim is in the band.

    wide_band: its mean width; stays: how often t_sim is in a band of that width around the last of the first blocks.
    """
    rows: dict[str, list[Tensor]] = {
        name: [] for name in ("measured", "weights", "scan", "inside", "wide_band", "stays")
    }
    cells = [(name, seed) for name in cfg.models for seed in range(cfg.seeds)]
    for name, seed in track(cells, len(cells)):
        model, given = _model(name, Sizes(cfg.depth, cfg.d, cfg.h, cfg.n, cfg.batch, cfg.seed + seed))
        measured = scan(model, given, metrics=["t_sim"], attention=False)["t_sim"]
        start = scan(model, given, blocks=blocks_by_name(model, None)[: cfg.first])
        calibrated = forecast(start, depth=cfg.depth)
        low, high = calibrated.band  # type: ignore[misc]
        later = slice(cfg.first + 1, None)
        rows["measured"].append(measured)
        rows["weights"].append(forecast(model, given).t_sim)
        rows["scan"].append(calibrated.t_sim)
        rows["inside"].append(((low <= measured) & (measured <= high))[later].double().mean())
        rows["wide_band"].append((high - low)[later].mean())
        near = (measured - measured[cfg.first]).abs() <= (high - low) / 2
        rows["stays"].append(near[later].double().mean())
    found = {k: torch.stack(v).unflatten(0, (len(cfg.models), cfg.seeds)) for k, v in rows.items()}
    if cfg.wide:
        d, depth = cfg.wide
        model, given = _model("bert", Sizes(depth, d, d // 64, cfg.n, cfg.batch, cfg.seed))
        measured = scan(model, given, metrics=["t_sim"], attention=False)["t_sim"]
        found["wide"] = (forecast(model, given).t_sim - measured).abs().max()
    return found


def _model(name: str, sizes: Sizes) -> tuple[nn.Module, Any]:
    if name != COPIES:
        return resolve(name, sizes)
    torch.manual_seed(sizes.seed)
    layer = nn.TransformerEncoderLayer(sizes.width, sizes.heads, 4 * sizes.width, batch_first=True)
    model = nn.TransformerEncoder(layer, sizes.depth, enable_nested_tensor=False)  # as torch copies the layer
    return model.eval(), torch.randn(sizes.batch, sizes.tokens, sizes.width)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    measured = numbers["measured"]
    from_start, from_first = (measured - measured[..., i, None] for i in (0, cfg.first))  # the null: t_sim stays
    largest, moved = (x.abs().amax(-1) for x in (numbers["weights"] - measured, from_start))  # (models, seeds)
    ends, drift = ((x[..., -1]).abs() for x in (numbers["weights"] - measured, from_start))
    calibrated, later = (x[..., -1].abs() for x in (numbers["scan"] - measured, from_first))
    rows: list[Row] = [
        (f"{name}: by weights, largest error of t_sim at any block", error.max(), 0.0, 0.08, null.max())
        for name, error, null in zip(cfg.models, largest, moved, strict=True)
    ]
    if cfg.wide:
        d, depth = cfg.wide
        still = moved[cfg.models.index("bert")].max() if "bert" in cfg.models else moved.max()
        rows.append((f"bert of width {d}, {depth} blocks: the same", numbers["wide"], 0.0, 0.08, still))
    # what later blocks do by chance is not in the first ones: with the true gains the share is no larger
    within, stays = ((x <= 0.05).double().mean() for x in (calibrated, later))
    block = f"at block {cfg.depth}"
    rows += [
        (f"by weights: error {block}, the largest", ends.max(), 0.0, 0.05, drift.max()),
        (f"by {cfg.first} blocks: error {block}, the mean", calibrated.mean(), 0.0, 0.05, later.mean()),
        (f"by {cfg.first} blocks: share of models within 0.05 {block}", within, 0.8, 1.0, stays),
    ]
    inside, same = numbers["inside"].mean(), numbers["stays"].mean()
    rows.append(("by the first blocks: t_sim of later blocks within the band", inside, 0.8, 1.0, same))
    return stated(cfg.seeds, *rows) + reported(cfg.seeds, ("the mean width of that band", numbers["wide_band"].mean()))


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    figure.set_size_inches(3.2 * len(cfg.models), 3.2)
    axes = figure.subplots(1, len(cfg.models), sharey=True, squeeze=False)[0]
    for i, (ax, name) in enumerate(zip(axes, cfg.models, strict=True)):
        ax.plot(numbers["measured"][i, 0], "k.", ms=4, label="measured")
        ax.plot(numbers["weights"][i, 0], lw=1.2, label="by weights")
        ax.plot(numbers["scan"][i, 0], lw=1.2, label=f"by {cfg.first} blocks")
        ax.set(title=name, xlabel="block", ylim=(0, 1.02))
    axes[0].set(ylabel="t_sim")
