"""Chained attention: the product of attention matrices along a path nears rank one with every factor.

After Dong et al. 2021 (section 2, and the authors' plots): 100 times, some blocks are drawn in order, a head of each
and a sequence; their P are multiplied, and the product is held against its best rank-one approximation.

depthscope reproduce dong2021/chained_attention     about 30 s on two cores; random weights, and those of Hugging
Face folders given by `trained`. Every factor divides the distance to rank one by about the same number, so the
decrease is exponential. Under a causal mask (gpt2, not in the paper) it is slow: uniform causal attention has the
eigenvalues 1, 1/2, 1/3, ..., and halves the distance at best.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, least, stated
from depthscope.experiments.progress import track
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes

FAMILIES = ("bert", "albert", "xlnet", "gpt2")
FLOOR = 1e-14  # below it the product is of rank one as far as float64 can tell


@dataclass(frozen=True)
class Config:
    """The base models' sizes; trained: folders of Hugging Face models with their own."""

    repeats: int = 100
    depth: int = 12
    d: int = 768
    h: int = 12
    n: int = 128
    sequences: int = 8
    trained: tuple[str, ...] = ()
    seed: int = 0


SMOKE = Config(repeats=30, d=96, h=4, n=32, sequences=4)


@torch.no_grad()
def run(cfg: Config) -> dict[str, Tensor]:
    """log10 of the distance to rank one, (repeats, depth), for each family and each trained model."""
    names = [*FAMILIES, *cfg.trained]
    numbers = {}
    for index, name in track(enumerate(names), len(names)):
        model: Any
        model, ids = resolve(name, Sizes(cfg.depth, cfg.d, cfg.h, cfg.n, cfg.sequences, cfg.seed))
        model.set_attn_implementation("eager")  # the one that shows P
        P = torch.stack([one.double() for one in model(ids, output_attentions=True).attentions])  # (L, B, H, n, n)
        key = name if name in FAMILIES else f"trained_{index - len(FAMILIES)}"
        numbers[key] = distances(P, cfg.repeats, torch.Generator().manual_seed(cfg.seed)).clamp(min=FLOOR).log10()
    return numbers


def distances(P: Tensor, repeats: int, chance: torch.Generator) -> Tensor:
    """|M - best rank one|_F / |M|_F for products M of 1 .. L matrices of P (L, B, H, n, n), (repeats, L)."""
    L, B, H = P.shape[:3]
    rows = []
    for _ in range(repeats):
        products = []
        for factors in range(1, L + 1):
            blocks = torch.randperm(L, generator=chance)[:factors].sort().values
            heads = torch.randint(H, (factors,), generator=chance)
            sequence = int(torch.randint(B, (), generator=chance))
            M = torch.eye(P.shape[-1], dtype=P.dtype)
            for block, head in zip(blocks.tolist(), heads.tolist(), strict=True):
                M = P[block, sequence, head] @ M  # the later block acts on what the earlier one gave
            products.append(M)
        energies = torch.linalg.svdvals(torch.stack(products)).square()
        rows.append((energies[:, 1:].sum(-1) / energies.sum(-1)).sqrt())
    return torch.stack(rows)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    made = []
    for name in FAMILIES:  # the null: a factor that does nothing; one matrix; a doubly exponential fall
        distance = numbers[name].median(0).values
        told = distance > torch.tensor(FLOOR).log10() + 0.5
        slowest = 10 ** -least(-distance.diff()[told[1:]])
        high = 1e-3 if name != "gpt2" else 0.3
        low = 0 if name != "gpt2" else 1e-3
        steps = distance[:5].diff()
        made += stated(
            cfg.repeats,
            (
                f"{name}: every factor brings the product nearer to rank one (slowest: distance times)",
                slowest,
                0,
                0.999,
                1,
            ),
            (
                f"{name}: distance of a product of 4 matrices to rank one",
                10 ** distance[3],
                low,
                high,
                10 ** distance[0],
            ),
            (f"{name}: log distance per factor, the last over the first of four", steps[-1] / steps[0], 0.5, 1.5, 3),
        )
    return made


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    ax = figure.subplots()
    factors = list(range(1, cfg.depth + 1))
    for index, (name, rows) in enumerate(numbers.items()):
        low, middle, high = torch.quantile(rows, torch.tensor([0.1, 0.5, 0.9], dtype=rows.dtype), 0).tolist()
        own = "random" if name in FAMILIES else "trained"
        label = name if own == "random" else cfg.trained[int(name.rpartition("_")[2])].rpartition("/")[2]
        ax.plot(factors, [10**x for x in middle], ".-", color=f"C{index}", label=f"{label}, {own} weights")
        ax.fill_between(factors, [10**x for x in low], [10**x for x in high], color=f"C{index}", alpha=0.15)
    ax.axhline(FLOOR, color="0.6", lw=0.8, ls="--", label="float64 can tell no more")
    ax.set(
        yscale="log",
        title="products of attention matrices: median, and a band that holds 8 of 10",
        xlabel="attention matrices in the product",
        ylabel="distance to the best rank-one matrix, relative",
    )
