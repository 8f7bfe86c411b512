"""Drop curves: the loss after 1, 2, ... blocks are removed, by four ways to choose them, on inputs that did not choose.

greedy      the block whose removal raises the measured loss least, one after another
influence   blocks of least influence first (ShortGPT, Men et al. 2024)
contiguous  of each number, the stretch of blocks with the least angle between its ends (Gromov et al. 2024)
last        from the end
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthscope.circuits.subject import Subject
from depthscope.depths.losses import Loss
from depthscope.depths.replay import Replay

Told = Callable[[str], None]


@dataclass(frozen=True)
class Curve:
    """choices: after 1, 2, ... removals, the blocks (numbers from 1) that are gone. losses: held-out, from none on."""

    by: str
    choices: tuple[tuple[int, ...], ...]
    losses: tuple[float, ...]


def by_influence(influence: Tensor, count: int) -> list[tuple[int, ...]]:
    order = influence.argsort(stable=True).tolist()
    return [tuple(sorted(order[: k + 1])) for k in range(count)]


def contiguous(angular: Tensor, count: int) -> list[tuple[int, ...]]:
    """The stretch l ... l + k - 1 with the least angle between state l and state l + k, for k = 1 ... count."""
    found = []
    for k in range(1, count + 1):
        first = int(torch.diagonal(angular, k).argmin())
        found.append(tuple(range(first, first + k)))
    return found


def from_the_end(depth: int, count: int) -> list[tuple[int, ...]]:
    return [tuple(range(depth - k, depth)) for k in range(1, count + 1)]


def greedy(subjects: Sequence[Subject], judge: "Judge", first: int, count: int, told: Told) -> list[tuple[int, ...]]:
    """Blocks chosen by the loss that the judge measures, one after another, on subjects that he does not judge.

    first: the block of least price, which is known. At every step a batch is stored anew without what is gone, so that
    the next candidates reuse the longest prefix.
    """
    gone: list[int] = [first]
    found: list[tuple[int, ...]] = [(first,)]
    depth = len(subjects[0].spans)
    while len(gone) < count:
        total = torch.zeros(depth, dtype=torch.float64)
        for subject in subjects:
            replay = Replay(subject, reuse=judge.reuse)
            replay.store()
            replay.store(replay.without(*gone))
            for at in (at for at in range(depth) if at not in gone):
                told(f"without blocks {', '.join(str(g + 1) for g in gone)} and {at + 1}")
                items = judge.loss.of(replay.run(replay.without(*gone, at)), subject)
                total[at] += items.sum()
        total[gone] = torch.inf
        gone.append(int(total.nan_to_num(torch.inf).argmin()))
        found.append(tuple(sorted(gone)))
    return found


class Judge:
    """The loss of a model without some blocks, on held-out inputs; every set is measured once. reuse: see Replay."""

    def __init__(self, subjects: Sequence[Subject], loss: Loss, *, reuse: bool) -> None:
        self.subjects, self.loss, self.reuse = subjects, loss, reuse
        self._known: dict[tuple[int, ...], float] = {}

    def measure(self, sets: Sequence[tuple[int, ...]], told: Told) -> None:
        """One batch after another, so that the states of one alone are kept."""
        new = [one for one in dict.fromkeys(sets) if one not in self._known]
        if not new:
            return
        items: dict[tuple[int, ...], list[Tensor]] = {one: [] for one in new}
        for subject in self.subjects:
            replay = Replay(subject, reuse=self.reuse)
            replay.store()
            for gone in new:
                told(f"held-out loss without {len(gone)} blocks")
                items[gone].append(self.loss.of(replay.run(replay.without(*gone)), subject))
        self._known |= {gone: float(torch.cat(found).mean()) for gone, found in items.items()}

    def __getitem__(self, gone: tuple[int, ...]) -> float:
        return self._known[gone]

    def curve(self, by: str, choices: Sequence[tuple[int, ...]]) -> Curve:
        numbers = tuple(tuple(block + 1 for block in gone) for gone in choices)
        return Curve(by, numbers, (self[()], *(self[gone] for gone in choices)))
