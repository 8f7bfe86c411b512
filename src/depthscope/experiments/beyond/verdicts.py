"""Can the verdict be fooled? Models whose right verdict was written down beforehand: how often a scan finds it.

A gallery has constructed traps (massive tokens, equal tokens, clusters, lines, single sequences), random models of many
designs, and trained models. Labels follow from how a model is made or from what it learned, never from a verdict. The
next seed makes a second gallery of the same kinds, with other sizes, positions, depths and weights.

depthscope reproduce beyond/verdicts     about 5 minutes on two cores: two galleries of 143 models, some trained here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import DepthscopeError, MissingExtraError
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.gallery_fixed import fixed_gallery
from depthscope.experiments.gallery_trained import NAMES as TRAINED
from depthscope.experiments.gallery_trained import trained_gallery
from depthscope.experiments.progress import track
from depthscope.forecasts.advise import in_a_verdict
from depthscope.models.gallery import gallery
from depthscope.models.gallery.entry import COLLAPSED, LABELS, Entry
from depthscope.scans.scan import scan
from depthscope.scans.verdict import advised_by

STATUSES = ("diverse", "escalating", "collapsed", "at the numerical floor", "not a number", "vanished", "an error")
NONE = -1  # an entry whose packages are missing, or which got no label


@dataclass(frozen=True)
class Config:
    """galleries: how many, from seed on. every: only every so-manieth entry. trained: with the trained models."""

    galleries: int = 2
    every: int = 1
    trained: bool = True
    seed: int = 0


SMOKE = Config(galleries=1, every=9, trained=False)


def names(cfg: Config, number: int) -> list[str]:
    """Of all entries of one gallery, in their order."""
    made = [entry.name for entry in _untrained(cfg, number)]
    return made + (TRAINED if cfg.trained else [])


def _untrained(cfg: Config, number: int) -> list[Entry]:
    return [*gallery(cfg.seed + number), *fixed_gallery(cfg.seed + number)][:: cfg.every]


def run(cfg: Config) -> dict[str, Tensor]:
    """label and status of every entry by their number in LABELS and STATUSES, NONE if left out: (galleries, entries).

    trained: 1 for trained models, 0 for all others.
    """
    labels, statuses = [], []
    total = cfg.galleries * len(names(cfg, 0))
    for entry in track(_entries(cfg), total):
        status = None if entry is None else called(entry)
        labels.append(NONE if entry is None or status is None else list(LABELS).index(entry.label))
        statuses.append(NONE if status is None else STATUSES.index(status))
    shape = (cfg.galleries, -1)
    trained = [name in TRAINED for number in range(cfg.galleries) for name in names(cfg, number)]
    return {
        "label": torch.tensor(labels).view(shape),
        "status": torch.tensor(statuses).view(shape),
        "trained": torch.tensor(trained, dtype=torch.int64).view(shape),
    }


def _entries(cfg: Config) -> Iterator[Entry | None]:
    for number in range(cfg.galleries):
        yield from _untrained(cfg, number)
        if cfg.trained:
            yield from trained_gallery(cfg.seed + number)


def called(entry: Entry) -> str | None:
    """The status that a scan gives an entry; None where the package that it needs is missing."""
    try:
        model, inputs = entry.build()
    except MissingExtraError:
        return None
    try:
        with _without_advice():
            return scan(model, inputs).verdict.status
    except DepthscopeError:
        return "an error"


@contextmanager
def _without_advice() -> Iterator[None]:
    """What to do about a model takes seconds to find, and no status depends on it."""
    advised_by(lambda scan, depth: "")
    try:
        yield
    finally:
        advised_by(in_a_verdict)


def confusion(numbers: dict[str, Tensor]) -> Tensor:
    """How many models of a label were given a status: (galleries, labels, statuses)."""
    table = torch.zeros(len(numbers["label"]), len(LABELS), len(STATUSES), dtype=torch.int64)
    for number, (labels, statuses) in enumerate(zip(numbers["label"], numbers["status"], strict=True)):
        for label, status in zip(labels.tolist(), statuses.tolist(), strict=True):
            if label != NONE:
                table[number, label, status] += 1
    return table


def right() -> Tensor:
    """Which statuses are right for a label: (labels, statuses)."""
    return torch.tensor([[status in allowed for status in STATUSES] for allowed in LABELS.values()])


def wrong(numbers: dict[str, Tensor], cfg: Config) -> list[str]:
    """Every disagreement in words."""
    found, allowed = [], right()
    for number in range(cfg.galleries):
        rows = zip(names(cfg, number), numbers["label"][number], numbers["status"][number], strict=True)
        for name, label, status in rows:
            if label != NONE and not allowed[label, status]:
                found.append(f"{name} (seed {cfg.seed + number}): {list(LABELS)[label]}, called {STATUSES[status]}")
    return found


def left_out(numbers: dict[str, Tensor], cfg: Config) -> list[str]:
    """Entries that need a package which is missing, and trained models for which no label follows."""
    pairs = (zip(names(cfg, i), labels, strict=True) for i, labels in enumerate(numbers["label"].tolist()))
    return list(dict.fromkeys(name for own in pairs for name, label in own if label == NONE))


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    table, allowed = confusion(numbers).sum(0), right()
    lost = torch.tensor([bool(statuses & COLLAPSED) for statuses in LABELS.values()])
    healthy = torch.tensor(["diverse" in statuses for statuses in LABELS.values()])
    calls = torch.tensor([status in COLLAPSED for status in STATUSES])
    label, status = (numbers[key][numbers["trained"] == 1] for key in ("label", "status"))
    trained = (label != NONE) & healthy[label]
    # null: a verdict that says "diverse" of every model, or "collapsed" of every model, or never the right word
    all_lost, all_healthy, all_trained = (
        int(count) for count in (table[lost].sum(), table[healthy].sum(), trained.sum())
    )
    rows: list[tuple[str, float | Tensor, float, float, float]] = [
        (f"of {all_lost} collapsed models, called diverse", table[lost, 0].sum(), 0, 0, all_lost),
        (f"of {all_healthy} healthy models, called collapsed", table[healthy][:, calls].sum(), 0, 0, all_healthy),
    ]
    if all_trained:
        wrongly = calls[status[trained]].sum()
        rows.append((f"of {all_trained} healthy trained models, called collapsed", wrongly, 0, 0, all_trained))
    for i, name in enumerate(LABELS):
        if count := int(table[i].sum()):
            rows.append((f"of {count} labelled {name}, called so", table[i][allowed[i]].sum(), count, count, 0))
    least = (numbers["label"] != NONE).sum(1).min()
    without = f", without {', '.join(gone)}" if (gone := left_out(numbers, cfg)) else ""
    size = reported(cfg.galleries, (f"models in the smallest gallery{without}", least))
    named = reported(cfg.galleries, *((disagreement, 1) for disagreement in wrong(numbers, cfg)))
    return [*stated(cfg.galleries, *rows), *size, *named]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    """The confusion table: rows are labels, columns what scans said; right cells are green, wrong ones pink."""
    table, allowed = confusion(numbers).sum(0), right()
    ax = figure.subplots()
    share = table / table.sum(1, keepdim=True).clamp(min=1)
    ax.imshow(torch.where(allowed, share, -share).numpy(), cmap="PiYG", vmin=-1.5, vmax=1.5, aspect="auto")
    for row, counts in enumerate(table.tolist()):
        for column, count in enumerate(counts):
            good = bool(allowed[row, column])
            ax.text(column, row, str(count) if count or good else "", ha="center", va="center")
    ax.set_xticks(range(len(STATUSES)), [status.replace("numerical ", "numerical\n") for status in STATUSES])
    ax.set_yticks(range(len(LABELS)), [f"{name} ({int(n)})" for name, n in zip(LABELS, table.sum(1), strict=True)])
    ax.set(title=f"{int(table.sum())} models, right {int(table[allowed].sum())}", xlabel="called", ylabel="labelled")
    ax.grid(False)
