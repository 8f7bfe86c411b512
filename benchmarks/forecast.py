"""What a forecast saves: a deep model scanned, against its forecast in n x n overlaps and in two numbers, in one run.

python benchmarks/forecast.py   (about 2 minutes on 2 cores, 4 GB of memory: a model of 100 blocks is built)
"""

import torch
from _ratio import line, ratio
from torch import Tensor

import depthscope as ds
from depthscope.theory.stacks import similarity_by_depth
from depthscope.theory.two_numbers import network_gain

DEPTH, D, HEADS, TOKENS, SEQUENCES = 100, 768, 12, 128, 8
SIZES = {"depth": DEPTH, "d": D, "h": HEADS, "weights": "bert", "activation": "gelu", "output": True}
VARIANCE = 0.02**2  # of every matrix, BERT's law


def in_two_numbers() -> Tensor:
    s, hidden = (D * VARIANCE) ** 2, D * VARIANCE
    k = network_gain("gelu", hidden_variance=hidden, s_2=4 * D * VARIANCE)
    numbers = {"s_A": s, "score_variance": s, "k": k, "hidden_variance": hidden, "activation": "gelu"}
    return similarity_by_depth(depth=DEPTH, n=TOKENS, **numbers)


def in_overlaps() -> Tensor:
    return ds.forecast(n=TOKENS, **SIZES).t_sim


@torch.no_grad()
def forecasts() -> None:
    """The scan reads t_sim alone and leaves attention out: it is the cheapest that gives the same curve."""
    model, X = ds.models.classic(**SIZES).eval(), torch.randn(SEQUENCES, TOKENS, D)
    curves: list[Tensor] = []

    def scanned() -> None:
        curves.append(ds.scan(model, X, metrics=["t_sim"], attention=False)["t_sim"])

    times, overlaps = ratio(scanned, in_overlaps, 1)
    scan = times * overlaps
    less, numbers = ratio(in_overlaps, in_two_numbers, 10)
    overlaps = less * numbers
    what = f"BERT's sizes, {DEPTH} blocks, {SEQUENCES} x {TOKENS}"
    for words, seconds, curve, limit in (
        ("n x n forecast", overlaps, in_overlaps(), "at least 50"),
        ("two numbers", numbers, in_two_numbers(), "at least 1000"),
    ):
        off = float((curve - curves[-1]).abs().max())
        line(f"scan / {words} ({what})", scan / seconds, limit, f"{1e3 * seconds:.1f} ms, t_sim within {off:.3f}")
    line("the scan, seconds", scan, "")


if __name__ == "__main__":
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    forecasts()
