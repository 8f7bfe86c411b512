"""What every block is worth: the change of the loss when it is left out, swapped, or robbed of one branch.

Price of block l: loss without l minus loss, on the same items, with the standard error of the mean of the differences.
Effect of l on m > l: mean over tokens of |c_m - c'_m| / |c_m|, with c_m = y_m - x_m what block m adds to the stream,
and c'_m what it adds when l is left out (Csordas et al. 2025 take the largest over tokens; the mean is robust).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.depths.losses import Loss, Score, given_to, items_of
from depthscope.depths.measures import rows_of
from depthscope.depths.replay import Replay
from depthscope.errors import UsageError
from depthscope.traces.events import Passage
from depthscope.traces.remove_parts import PartsRemover

Told = Callable[[str], None]


@dataclass
class PriceSums:
    """Items (items,) of all batches, by kind and block; effects (L, L) as sums over tokens."""

    base: list[Tensor] = field(default_factory=list)
    items: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)
    effect: Tensor | None = None
    tokens: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, kind: str, block: int, items: Tensor) -> None:
        self.items.setdefault((kind, block), []).append(items)

    def price(self, kind: str, depth: int, base: str = "loss") -> tuple[Tensor, Tensor]:
        """The mean difference to the whole model and its standard error, (depth,) each; NaN where it was not made."""
        whole = torch.cat(self.base if base == "loss" else self.items[base, -1])
        found = torch.full((2, depth), torch.nan, dtype=torch.float64)
        for block in range(depth):
            if (kind, block) in self.items:
                items = torch.cat(self.items[kind, block])
                if len(items) != len(whole):
                    raise UsageError(
                        f"{base} must give as many numbers in every pass; got {len(whole)} of the whole model and "
                        f"{len(items)} without block {block + 1}. Return one for each item of the inputs, or a mean."
                    )
                change = items - whole
                error = change.std() / len(change) ** 0.5 if len(change) > 1 else torch.tensor(torch.nan)
                found[:, block] = torch.stack([change.mean(), error])
        return found[0], found[1]


def add_prices(replay: Replay, sums: PriceSums, base: Any, loss: Loss, score: Score | None, told: Told) -> None:
    """Price all blocks on one batch. base: what the whole model gives in the stored pass."""
    subject, depth = replay.subject, replay.depth
    whole = loss.of(base, subject)
    if not bool(whole.isfinite().all()):
        raise UsageError(
            f"the loss of the whole model must be finite, or no block has a price; {loss.name} gives "
            f"{float(whole[~whole.isfinite()][0])} in batch {len(sums.base) + 1}. Look for labels that are all -100 "
            "and for NaN among the weights; what=[] leaves prices out."
        )
    sums.base.append(whole)
    if score is not None:
        sums.add("score", -1, items_of(score(base, given_to(subject))))
    effect = Effect(replay)
    for at in range(depth):
        told(f"without block {at + 1}")
        effect.skipped = at
        output = replay.run(replay.without(at), on_block=effect)
        sums.add("skip", at, loss.of(output, subject))
        if score is not None:
            sums.add("score", at, items_of(score(output, given_to(subject))))
    sums.effect = effect.sums if sums.effect is None else sums.effect + effect.sums
    sums.tokens += effect.tokens


def add_swaps(replay: Replay, sums: PriceSums, loss: Loss, told: Told) -> None:
    """Price the exchange of every block with the next one; of blocks that are no modules there is none."""
    for at in range(replay.depth - 1 if replay.are_modules else 0):
        told(f"blocks {at + 1} and {at + 2} swapped")
        sums.add("swap", at, loss.of(replay.run(replay.swapped(at)), replay.subject))


def add_parts(replay: Replay, sums: PriceSums, loss: Loss, told: Told) -> None:
    """Price attention and feed-forward network alone, where a block joins each by a sum of its own."""
    for part in ("attention", "ffn"):
        for at in range(replay.depth):
            told(f"without the {part} of block {at + 1}")
            remover = OneBlock(part, at)
            output = replay.run_from(at, remover)
            if remover.reason:
                sums.reasons.append(f"block {at + 1} without {part}: {remover.reason}")
            else:
                sums.add(part, at, loss.of(output, replay.subject))


class OneBlock(PartsRemover):
    """One block runs without a part."""

    def __init__(self, part: str, place: int) -> None:
        super().__init__((part,), self._ended, lambda _: None)
        self.part, self.place, self.now, self.reason = part, place, -1, ""

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self.now += 1
        self.parts = frozenset((self.part,) if self.now == self.place else ())
        return super().begins(now, tokens)

    def _ended(self, block: str, reason: str) -> None:
        if self.now == self.place:
            self.reason = reason


class Effect:
    """What later blocks add to the stream when one is left out, beside what they add in the stored pass."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.skipped = replay, 0
        self.added = [self._rows(y) - self._rows(x) for x, y in zip(replay.given, replay.gave, strict=True)]
        self.sums = torch.zeros(replay.depth, replay.depth, dtype=torch.float64)
        self.tokens = len(self.added[0])

    def __call__(self, place: int, given: Tensor, gave: Tensor) -> None:
        if place <= self.skipped:
            return
        with torch._C.DisableTorchFunction():
            here = self.added[place]
            sizes, change = here.norm(dim=-1), (self._rows(gave) - self._rows(given) - here).norm(dim=-1)
            self.sums[self.skipped, place] += (change / sizes).masked_fill(sizes == 0, 0.0).sum()

    def _rows(self, tokens: Tensor) -> Tensor:
        return rows_of(self.replay.subject, tokens)
