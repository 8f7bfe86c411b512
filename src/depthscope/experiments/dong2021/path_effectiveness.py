"""Path effectiveness: what paths of each length know of three learned tasks; short ones much, long ones nothing.

From a trained model k paths of one length are drawn. Each runs as a network of its own (one head a block, norms without
scale, no residual connections); their tokens are summed, normed and classified. The longer the paths, the more the
accuracy falls towards a guess (Dong et al. 2021, section 4 and its public code).

depthscope reproduce dong2021/path_effectiveness     about 10 minutes on two cores; 3 where dong2021/sorting,
dong2021/convex_hull and dong2021/memorization ran just before (reproduce dong2021), whose models it uses.

Besides the paper's recipe there is an exact one. If attention and norms are held as they are in the whole model, the
model is a sum over all its (1 + H)^L paths; all paths of one length are summed, and none is drawn. Alone, long paths
know nothing, as the paper says. But a length that knows nothing alone may still be needed. When it is taken out of the
model, all is lost on the convex hull (known to differ): there the parts are several times as large as their sum and
cancel each other. Drawn paths of 1 to 3 attentions know no more about the hull than long ones (known to differ): what
single paths know is in the path without attention.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UnknownNameError, UsageError
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.dong_paths import drawn_hits, exactly
from depthscope.experiments.dong_tasks import SIZES, SMALL, trained
from depthscope.experiments.progress import track
from depthscope.experiments.races import one_thread
from depthscope.experiments.trainings import Trainings
from depthscope.registry import unknown
from depthscope.training.batches import seeded

TASKS = ("sorting", "convex_hull", "memorization")
EXACT = ("alone", "up_to", "without", "size")
LINES = {"alone": ("all paths, exact", "s-C3"), "without": ("the model without them, exact", "s--C2")}
LONG = 4  # paths from this length on are long


@dataclass(frozen=True)
class Config(Trainings):
    """counts: how many paths are drawn at once; repeats: how often; tokens: of each task's test split, so many at most.

    sizes: "paper" or "small", those of the experiments on each task.
    """

    LEAST = {"trials": 1, "repeats": 2}
    counts: tuple[int, ...] = (5, 20)
    repeats: int = 5
    tokens: int = 4096
    sizes: str = "paper"

    def __post_init__(self) -> None:
        if self.sizes not in ("paper", "small"):
            raise UnknownNameError("path_effectiveness: " + unknown("sizes", self.sizes, ("paper", "small")))
        if list(self.counts) != sorted(set(self.counts)):
            raise UsageError(f"path_effectiveness: counts must be different and grow; got {self.counts}. Write [5,20].")


SMOKE = Config(repeats=2, tokens=1024, sizes="small", trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """Accuracies drawn (tasks, counts, lengths, seeds x repeats); EXACT ones and sizes (tasks, lengths, seeds).

    And accuracies of the whole model (tasks, seeds) and of a guess (tasks,).
    """
    wanted = SIZES if cfg.sizes == "paper" else SMALL
    found = trained(wanted, cfg.seeds, side_by_side=cfg.side_by_side, folder=cfg.folder)
    turns = [(task, each) for task in TASKS for each in range(cfg.trials)]
    drawn, exact = list[Tensor](), {name: list[Tensor]() for name in EXACT}
    for task, each in track(turns, len(turns)):
        one = found[task][each]
        shown = one.task.test.take(torch.arange(min(len(one.task.test), math.ceil(cfg.tokens / one.task.length))))
        asked = (one.model, shown.tokens, shown.labels)
        with one_thread():
            for name, values in exactly(*asked).items():
                exact[name].append(values)
            for length, repeat in product(range(len(exact["alone"][0])), range(cfg.repeats)):
                drawn.append(drawn_hits(*asked, length, cfg.counts, seeded(cfg.seed, each, length, repeat)))
    rows = {name: torch.stack(own).view(len(TASKS), cfg.trials, -1).transpose(1, 2) for name, own in exact.items()}
    table = torch.stack(drawn).view(len(TASKS), cfg.trials, -1, cfg.repeats, len(cfg.counts))
    return {
        "drawn": table.permute(0, 4, 2, 1, 3).flatten(3),
        **rows,
        "whole": rows["up_to"][:, -1],
        "chance": torch.tensor([found[task][0].task.chance for task in TASKS]),
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    made, some = [], f"{cfg.counts[-1]} drawn paths"
    for index, task in enumerate(TASKS):
        name = task.replace("_", " ")
        drawn, alone, up_to = (numbers[what][index].mean(-1) for what in ("drawn", "alone", "up_to"))
        short, long, last = drawn[-1, 1:LONG].mean(), drawn[-1, LONG:].mean(), len(alone) - 1
        kept, guess, whole = up_to[LONG - 1] / up_to[-1], numbers["chance"][index], up_to[-1]
        # the null: all lengths know the same; long paths know what the whole model knows, or a guess is left
        falls = (
            f"{name}: {some}, the mean of lengths 1 to {LONG - 1} minus that of longer",
            short - long,
            0.05,
            1.0,
            0.0,
        )
        left = f"{name}: without all paths of length {LONG} or more, share of the accuracy that is left, exact"
        made += stated(
            cfg.trials,
            (f"{name}: {some} of length {LONG} or more, minus a guess", long - guess, -1.0, 0.05, whole - guess),
            (f"{name}: all paths of length 1 minus all of length {last}, exact", alone[1] - alone[-1], 0.1, 1.0, 0.0),
        )
        made += stated(cfg.trials, falls, (left, kept, 0.9, 1.1, guess / whole), expected=task != "convex_hull")
    return made


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    panels = figure.subplots(1, len(TASKS), sharey=True)
    for index, (ax, task) in enumerate(zip(panels, TASKS, strict=True)):
        lengths = torch.arange(numbers["alone"].shape[1])
        hidden = "" if ax is panels[-1] else "_"  # one legend tells for all panels
        for place, count in enumerate(cfg.counts):
            rows = numbers["drawn"][index, place]
            label, colour = f"{hidden}{count} paths, drawn", f"C{place}"
            ax.errorbar(lengths, rows.mean(-1), rows.std(-1), fmt="o-", ms=3, capsize=2, color=colour, label=label)
        for name, (label, style) in LINES.items():
            rows = numbers[name][index]
            error = rows.std(-1) if rows.shape[-1] > 1 else None
            ax.errorbar(lengths, rows.mean(-1), error, fmt=style, ms=3, capsize=2, label=hidden + label)
        ax.axhline(float(numbers["whole"][index].mean()), color="0.3", ls="--", lw=1, label=f"{hidden}whole model")
        ax.axhline(float(numbers["chance"][index]), color="0.3", ls=":", lw=1, label=f"{hidden}who does not look")
        ax.set(title=task.replace("_", " "), xlabel="path length", ylim=(0, 1.03))
    panels[0].set_ylabel("accuracy")
