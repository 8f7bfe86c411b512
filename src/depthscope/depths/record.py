"""EffectiveDepth: what every block does, what it is worth, and what it costs to do without some."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.depths.curves import Curve
from depthscope.depths.measures import Means
from depthscope.depths.words import numbered
from depthscope.errors import UsageError
from depthscope.records import Record

HALF = 0.5  # of the final top five


@dataclass(frozen=True)
class Lens:
    """By state (L+1,), the first before block 1: KL(final || here) in nats, share of the final top five, loss or NaN.

    classes: how many the head tells apart; top: how many of the likeliest were compared.
    """

    kl: Tensor
    overlap: Tensor
    loss: Tensor
    classes: int
    top: int

    @property
    def depth(self) -> int:
        """The first state from which on at least half of the final top five is in the top five."""
        below = [at for at, share in enumerate(self.overlap.tolist()) if not share >= HALF]
        return below[-1] + 1 if below else 0


@dataclass(frozen=True)
class Prices:
    """Changes of the loss by block (L,), NaN where they were not measured; swap[l]: block l + 1 with the next, (L,).

    base: the loss of the whole model on the inputs that chose. error: standard error of skip. effect (L, L): row l,
    column m: by how much m adds something else to the stream without l, relative. score: change of the user's own.
    passes: forward passes, counted in blocks computed, that skip took, the stored one included.
    """

    loss: str
    base: float
    skip: Tensor
    error: Tensor
    swap: Tensor
    attention: Tensor
    ffn: Tensor
    effect: Tensor
    score: Tensor | None
    items: int
    passes: float

    @property
    def in_nats(self) -> bool:
        return self.loss.endswith("nats")


@dataclass(frozen=True)
class Removal:
    """What the model loses and gains without some blocks (numbers from 1): held-out losses, seconds of a pass."""

    blocks: tuple[int, ...]
    loss: float
    loss_without: float
    seconds: float
    seconds_without: float

    @property
    def saved(self) -> float:
        """The part of the time of a forward pass that is saved."""
        return 1 - self.seconds_without / self.seconds


@dataclass(frozen=True)
class EffectiveDepth(Record):
    """Which blocks earn their place. Blocks are numbered from 1, as in scans.

    Attributes:
        plain: Means over all tokens.
        rest: Means over the tokens that are massive in no state.
        depth_of_use: The smallest number of leading blocks after which skipping each further one raises the loss by
            less than the tolerance.

    Examples:
        >>> model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8)  # (batch, n, d)
        >>> found = ds.depth(model, X, what=["lens"])
        >>> len(found.blocks), found.rest.influence.shape
        (2, torch.Size([2]))
    """

    FORMAT = "depthscope.depth"

    model: str
    blocks: tuple[str, ...]
    width: int
    tolerance: float
    plain: Means
    rest: Means
    lens: Lens | None
    prices: Prices | None
    curves: tuple[Curve, ...]
    removal: Removal | None
    notes: tuple[str, ...]

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def earning(self) -> tuple[int, ...] | None:
        """The blocks whose skipping raises the loss by the tolerance or more; None where there is no loss."""
        if self.prices is None:
            return None
        # a price that is no number is a model that broke without the block
        return tuple(at + 1 for at, price in enumerate(self.prices.skip.tolist()) if not price < self.tolerance)

    @property
    def idle(self) -> tuple[int, ...]:
        """The blocks whose skipping raises the loss by less, or lowers it."""
        return () if self.earning is None else tuple(at for at in range(1, self.depth + 1) if at not in self.earning)

    @property
    def depth_of_use(self) -> int | None:
        return None if self.earning is None else max(self.earning, default=0)

    @property
    def lens_depth(self) -> int | None:
        return None if self.lens is None else self.lens.depth

    @property
    def share(self) -> float | None:
        """The share of blocks that earn their place."""
        return None if self.earning is None else len(self.earning) / self.depth

    def to_drop(self, count: int) -> tuple[int, ...]:
        """The blocks to remove when so many must go: by measured loss, else the stretch that turns tokens least."""
        if not 0 < count < self.depth:
            raise UsageError(
                f"the number of blocks that go must be 1 to {self.depth - 1}, of {self.depth}; got {count}. "
                "Leave at least one."
            )
        known = [c.choices[count - 1] for c in self.curves if c.by == "greedy" and len(c.choices) >= count]
        if known:
            return known[0]
        first = int(torch.diagonal(self.rest.angular, count).argmin())
        return tuple(range(first + 1, first + count + 1))

    @property
    def verdict(self) -> str:
        """What a reader should take away, in a few sentences."""
        if self.prices is None:
            influence = self.rest.influence.nan_to_num(math.inf)
            if not bool(influence.isfinite().any()):
                return "Without a loss no block can be priced, and the tokens of no block are numbers: see the notes."
            return (
                f"Without a loss no block can be priced. Block {int(influence.argmin()) + 1} turns the tokens least "
                f"(block influence {float(influence.min()):.3g})."
            )
        words = self._idle_words, self._depth_words, self._doubt_words, self._lens_words, self._best_words
        return " ".join(filter(None, (say() for say in words)))

    def _unit(self) -> str:
        return "nats" if self.prices is not None and self.prices.in_nats else "of the loss"

    def _idle_words(self) -> str:
        assert self.prices is not None
        unit = self._unit()
        if not self.idle:
            cheapest = int(self.prices.skip.nan_to_num(math.inf).argmin())
            said = f"Every block raises the loss by {self.tolerance:g} {unit} or more when it alone is skipped"
            price, error = (float(values[cheapest]) for values in (self.prices.skip, self.prices.error))
            sure = "" if math.isnan(error) else f" ± {error:.2g}"
            said += f"; block {cheapest + 1} is the cheapest ({price:+.2g}{sure})."
        else:
            one = len(self.idle) == 1
            said = f"{numbered(self.idle).capitalize()} {'raises' if one else 'raise'} the loss by less than "
            said += f"{self.tolerance:g} {unit}{'' if one else ' each'} when skipped{'' if one else ' alone'}."
        return said if self.removal is None else f"{said} {self._removal_words(self.removal)}"

    def _removal_words(self, removal: Removal) -> str:
        cost = removal.loss_without - removal.loss
        does = f"gains {-cost:.2g}" if cost < 0 else f"costs {cost:.2g}"  # NaN is no gain
        said = f"Removing {numbered(removal.blocks)} {does} {self._unit()} on held-out inputs"
        if self.prices is not None and self.prices.in_nats:
            said += f" (perplexity {_perplexity(removal.loss)} -> {_perplexity(removal.loss_without)})"
        return f"{said} and saves {max(removal.saved, 0.0):.0%} of the time of a forward pass."

    def _depth_words(self) -> str:
        assert self.earning is not None
        return (
            f"Effective depth: {self.depth_of_use} of {self.depth} blocks at this tolerance; {len(self.earning)} "
            f"({self.share:.0%}) earn their place."
        )

    def _doubt_words(self) -> str:
        assert self.prices is not None
        error = float(self.prices.error.nanmedian())
        if not error > self.tolerance:
            return ""
        return f"These few inputs tell prices to ± {error:.2g} (median standard error), so give more to be sure."

    def _lens_words(self) -> str:
        if self.lens is None:
            return ""
        half = f"half of the final top {self.lens.top} is" if self.lens.top > 1 else "the final answer is mostly"
        return f"Read by the model's own head, {half} there from block {self.lens.depth} on."

    def _best_words(self) -> str:
        if not self.curves:
            return ""
        best = min(self.curves, key=lambda c: c.losses[-1] if math.isfinite(c.losses[-1]) else math.inf)
        count = len(best.choices)
        if count < 2 or (self.removal is not None and best.choices[-1] == self.removal.blocks):
            return ""
        cost = best.losses[-1] - best.losses[0]
        return f"Of {count} removals, {numbered(best.choices[-1])} cost least ({cost:+.2g}, chosen by {best.by})."

    def gist(self) -> str:
        return f"{self.model}, {self.depth} blocks: {self.verdict}"

    def derived(self) -> dict[str, Any]:
        names = ("depth", "depth_of_use", "lens_depth", "share", "earning", "idle", "verdict")
        return {name: getattr(self, name) for name in names}


def _perplexity(loss: float) -> str:
    return f"{math.exp(loss):.3g}" if loss < 100 else "above 1e43"
