"""One model of the gallery with the verdict that is right for it, written before any verdict was seen."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Built = tuple[nn.Module, Any]  # a model, and inputs for it

COLLAPSED = frozenset({"collapsed", "at the numerical floor"})
HEALTHY = frozenset({"diverse", "escalating"})  # whether healthy tokens grow alike is for the numbers to say
DIVERSE = frozenset({"diverse"})
ESCALATING = frozenset({"escalating"})
ON_THE_WAY = COLLAPSED | ESCALATING  # lost or nearly so: people differ
NOT_A_NUMBER = frozenset({"not a number"})
VANISHED = frozenset({"vanished"})

LABELS = {
    "collapsed": COLLAPSED,
    "collapsed or escalating": ON_THE_WAY,
    "escalating": ESCALATING,
    "diverse or escalating": HEALTHY,
    "diverse": DIVERSE,
    "not a number": NOT_A_NUMBER,
    "vanished": VANISHED,
}


@dataclass(frozen=True)
class Entry:
    """name, the kind of trap or model, the statuses that are right, and why, from how the model is made."""

    name: str
    kind: str
    allowed: frozenset[str]
    why: str
    make: Callable[[], Built]
    seed: int

    @property
    def label(self) -> str:
        """The row of the confusion table."""
        return next(label for label, allowed in LABELS.items() if allowed == self.allowed)

    def build(self) -> Built:
        """The model and its inputs, the same at every call; the caller's random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random.Random(f"{self.seed} {self.name}").getrandbits(62))
            model, inputs = self.make()
            return model.eval(), inputs


class Shelf:
    """Collects entries of one seed; `draw` chooses sizes from that seed and the entry's name."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.entries: list[Entry] = []

    def draw(self, name: str) -> random.Random:
        """Chance for the sizes of an entry: another seed gives other sizes, another name too."""
        return random.Random(f"{self.seed} sizes of {name}")

    def add(self, name: str, kind: str, allowed: frozenset[str], why: str, make: Callable[[], Built]) -> None:
        self.entries.append(Entry(name, kind, allowed, why, make, self.seed))
