"""What a forecast saves: a deep model scanned, against its forecast in n x n overlaps and in two numbers, in one run.

python benchmarks/forecast.py   (about 2 minutes on 2 cores, 4 GB of memory: a model of 100 blocks is built)
"""

import torch
from _ratio import line, ratio
from torch import Tensor

import depthscope as ds
from depthscope.forecasts.numbers import numbers_of_design
from depthscope.models.design import Design
from depthscope.theory.stacks import covariances_by_depth, similarities, similarity_by_depth

DEPTH, D, HEADS, TOKENS, SEQUENCES = 100, 768, 12, 128, 8
DESIGN = Design(DEPTH, D, HEADS, weights="bert", activation="gelu", output=True)
NUMBERS = numbers_of_design(DESIGN)


def in_two_numbers() -> Tensor:
    return similarity_by_depth(depth=DEPTH, n=TOKENS, **NUMBERS)


def in_overlaps() -> Tensor:
    return similarities(covariances_by_depth(torch.eye(TOKENS), depth=DEPTH, **NUMBERS))


def with_gradients() -> Tensor:
    """What ds.forecast does: curves of three metrics, and the growth of gradients."""
    sizes = {"d": D, "h": HEADS, "weights": "bert", "activation": "gelu", "output": True}
    return ds.forecast(depth=DEPTH, n=TOKENS, **sizes).t_sim


@torch.no_grad()
def forecasts() -> None:
    """The scan reads t_sim alone and leaves attention out: it is the cheapest that gives the same curve."""
    model = ds.models.classic(DEPTH, D, HEADS, weights="bert", activation="gelu", output=True).eval()
    X = torch.randn(SEQUENCES, TOKENS, D)
    curves: list[Tensor] = []

    def scanned() -> None:
        curves.append(ds.scan(model, X, metrics=["t_sim"], attention=False)["t_sim"])

    times, whole = ratio(scanned, with_gradients, 1)
    scan = times * whole
    what = f"BERT's sizes, {DEPTH} blocks, {SEQUENCES} x {TOKENS}"
    for words, form, limit in (
        ("two numbers", in_two_numbers, "at least 1000"),
        ("n x n forecast", in_overlaps, "at least 50"),
        ("ds.forecast, gradients too", with_gradients, ""),
    ):
        _, seconds = ratio(with_gradients, form, 10)
        off = float((form() - curves[-1]).abs().max())
        line(f"scan / {words} ({what})", scan / seconds, limit, f"{1e3 * seconds:.1f} ms, t_sim within {off:.3f}")
    line("the scan, seconds", scan, "")


if __name__ == "__main__":
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    forecasts()
