"""ds.depth: which blocks of a trained model earn their place, and what removing the others costs."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from depthscope.circuits.subject import Subject, subjects_of
from depthscope.depths.curves import Curve, Judge, by_influence, contiguous, from_the_end, greedy
from depthscope.depths.held_out import halves
from depthscope.depths.lens import LensSums, add_lens, top_of, watched_heads
from depthscope.depths.losses import MISSING, Loss, Score, logits_in, loss_for
from depthscope.depths.measures import KINDS, Sums, measure
from depthscope.depths.prices import PriceSums, add_parts, add_prices, add_swaps
from depthscope.depths.record import EffectiveDepth, Lens, Prices, Removal
from depthscope.depths.replay import Replay
from depthscope.depths.words import numbered
from depthscope.errors import UnknownNameError, UsageError, said_by
from depthscope.registry import unknown
from depthscope.traces.entry import enter
from depthscope.traces.installed import fixes_in

WHAT = ("lens", "prices", "swaps", "parts", "curves")
TOLERANCE = 0.01
TIMES = 3  # passes of which the fastest is taken
PER_DROP = 10  # curves go as far as one block in so many


@said_by("depth")
def depth(
    model: nn.Module,
    inputs: Any,
    loss: Score | None = None,
    *,
    held_out: Any = None,
    score: Score | None = None,
    tolerance: float = TOLERANCE,
    drops: int | None = None,
    what: Iterable[str] = WHAT,
    mask: Any = None,
    blocks: str | Iterable[str] | None = None,
    stream: str | None = None,
    on_step: Callable[[str], None] | None = None,
) -> EffectiveDepth:
    """Measure what every block does, price it, and say which blocks a model could do without.

    The model runs in evaluation mode with its own weights, and is left as it was, bit for bit.

    Args:
        model: Any torch module.
        inputs: Inputs of the model, as for ds.scan.
        loss: A function of (output, inputs) that returns a mean, or one number for each item. By default the model's
            own loss (with labels among the inputs), or that of the next token of a causal language model.
        held_out: Inputs that test the removals; by default half of the batches, or of the rows, are kept for that.
        score: A function like loss, whose change is reported beside the price.
        tolerance: A block earns its place if the loss rises by at least this much without it.
        drops: Up to how many removals the drop curves go.
        what: Some of lens, prices, swaps, parts, curves; the measures of one pass are always made.
        mask: As for ds.scan.
        blocks: As for ds.scan.
        stream: As for ds.scan.
        on_step: Is called with a word for what is being done.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3).eval()
        >>> X = torch.randn(4, 8, 16)  # (sequences, tokens, channels)
        >>> found = ds.depth(model, X, loss=lambda output, inputs: output.square().mean())
        >>> found.prices.skip.shape, found.rest.influence.shape
        (torch.Size([3]), torch.Size([3]))
    """
    wanted = _checked(what, tolerance, loss, score)
    told = on_step or (lambda _: None)
    _refuse_fixes(enter(model).model)
    told("one pass: influence, angles, branches")
    subjects = list(subjects_of(model, inputs, blocks, mask, stream))
    if held_out is None:
        choosing, judging, same = halves(subjects)
    else:
        choosing, judging, same = subjects, list(subjects_of(model, held_out, blocks, None, stream)), ""
    count = len(choosing[0].spans)
    drops = _drops(drops, count)
    plain, rest = Sums(), Sums()
    joint: set[int] = set()
    broken: set[int] = set()
    for subject in choosing:
        seen = measure(subject, plain, rest)
        joint, broken = joint | seen.joint, broken | seen.broken
    notes = [*choosing[0].notes]
    if broken:
        notes.append(f"block {min(broken) + 1} is the first to give NaN or infinity: numbers from it on mean nothing")
    if joint:
        notes.append("attention and ffn join the stream in one sum: their contributions are not told apart")
    notes += _unseen(rest.means().size, joint)
    found = _Found(choosing, wanted, loss, score, told)
    found.run()
    notes += found.notes
    curves: list[Curve] = []
    removal = None
    if found.loss is not None and found.prices is not None:
        judge = Judge(judging, found.loss, reuse=found.reuse)
        notes += [same] if same and "curves" in wanted else []
        skip = found.prices.skip
        if "curves" in wanted and count > 1:
            chosen = {
                "greedy": greedy(choosing, judge, int(skip.nan_to_num(torch.inf).argmin()), drops, told),
                "influence": by_influence(rest.means().influence, drops),
                "contiguous": contiguous(rest.means().angular, drops),
                "last": from_the_end(count, drops),
            }
            judge.measure([(), *(one for choices in chosen.values() for one in choices)], told)
            curves = [judge.curve(by, choices) for by, choices in chosen.items()]
        removal = _removal(judge, skip, tolerance, told)
    return EffectiveDepth(
        choosing[0].name,
        tuple(span.block for span in choosing[0].spans),
        next(iter(choosing[0].stream.widths.values()), 0),
        tolerance,
        plain.means(),
        rest.means(),
        found.lens,
        found.prices,
        tuple(curves),
        removal,
        tuple(dict.fromkeys(notes)),
    )


class _Found:
    """What passes over the inputs that choose have shown."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        wanted: tuple[str, ...],
        asked: Score | None,
        score: Score | None,
        told: Callable[[str], None],
    ) -> None:
        self.subjects, self.wanted, self.asked, self.score, self.told = subjects, wanted, asked, score, told
        self.reuse = True
        self.loss: Loss | None = None
        self.lens: Lens | None = None
        self.prices: Prices | None = None
        self.notes: list[str] = []

    def run(self) -> None:
        """One batch after another: the states of one alone are kept."""
        sums, depth = PriceSums(), len(self.subjects[0].spans)
        seen = LensSums.empty(depth + 1)
        work = classes = 0
        for i, subject in enumerate(self.subjects):
            replay = Replay(subject, reuse=self.reuse)
            with watched_heads(subject.model, list(replay.places)) as made:
                base = replay.store()
                final = logits_in(base)
                head = made.find(final)
            if i == 0:
                self.reuse = replay.reuse = replay.answers_suffice()
                self.loss, why = loss_for(subject, base, self.asked)
                self.notes += [] if self.loss is not None else [MISSING.format(why)]
            if "prices" in self.wanted and self.loss is not None:
                add_prices(replay, sums, base, self.loss, self.score, self.told)
                work += replay.blocks_run
                if "swaps" in self.wanted:
                    add_swaps(replay, sums, self.loss, self.told)
                if "parts" in self.wanted:
                    add_parts(replay, sums, self.loss, self.told)
            is_said = head is not None or not torch.is_tensor(base) or (self.loss is not None and self.loss.by_token)
            if "lens" in self.wanted and final is not None and is_said:
                self.told("the lens: final norm and head after every block")
                classes = final.shape[-1]
                add_lens(replay, seen, head, final, self.loss)
        if seen.count:
            none = torch.full_like(seen.loss, torch.nan)
            losses = seen.loss / seen.items if seen.items else none
            self.lens = Lens(seen.kl / seen.count, seen.overlap / seen.count, losses, classes, top_of(classes))
        elif "lens" in self.wanted:
            self.notes.append("no lens: the model gives no logits by a head. Load it with its head")
        if sums.base and self.loss is not None:
            self.prices = _priced(sums, self.loss, depth, work / (depth * len(self.subjects)))
            self.notes += sums.reasons[:1]


def _priced(sums: PriceSums, loss: Loss, depth: int, passes: float) -> Prices:
    base = torch.cat(sums.base)
    skip, error = sums.price("skip", depth)
    swap, attention, ffn = (sums.price(kind, depth)[0] for kind in ("swap", "attention", "ffn"))
    assert sums.effect is not None
    effect = sums.effect / max(sums.tokens, 1)
    score = sums.price("score", depth, "score")[0] if ("score", -1) in sums.items else None
    return Prices(loss.name, float(base.mean()), skip, error, swap, attention, ffn, effect, score, len(base), passes)


def _removal(judge: Judge, skip: torch.Tensor, tolerance: float, told: Callable[[str], None]) -> Removal | None:
    """All blocks below the tolerance at once, the cheapest where none is; None where nothing would be left."""
    idle = tuple(at for at, price in enumerate(skip.tolist()) if price < tolerance)
    gone = idle or (int(skip.nan_to_num(torch.inf).argmin()),)
    if len(gone) >= len(skip):
        return None
    judge.measure([(), gone], told)
    replay = Replay(judge.subjects[0], reuse=judge.reuse)
    replay.store()
    told("the time of a pass")
    plans = (replay.whole, replay.without(*gone))
    times: list[list[float]] = [[], []]
    for _ in range(TIMES):
        for own, plan in zip(times, plans, strict=True):
            begin = time.perf_counter()
            replay.run(plan, from_start=True)
            own.append(time.perf_counter() - begin)
    return Removal(tuple(at + 1 for at in gone), judge[()], judge[gone], min(times[0]), min(times[1]))


def _unseen(size: torch.Tensor, joint: set[int]) -> list[str]:
    """What to say of branches whose sum with the stream was not seen. size (2, L); joint: blocks of one sum."""
    said = []
    for kind, one in zip(KINDS, size.isnan().tolist(), strict=True):
        missing = [at + 1 for at, is_missing in enumerate(one) if is_missing and at not in joint]
        if missing:
            said.append(f"no sum of the stream and {kind} was seen in {numbered(missing)}: its contribution is missing")
    return said


def _checked(what: Any, tolerance: Any, *functions: Any) -> tuple[str, ...]:
    if not isinstance(what, Iterable):
        raise UsageError(f"what must be some of {', '.join(WHAT)}; got {what!r}. Leave it out for all.")
    names = (what,) if isinstance(what, str) else tuple(what)
    for name in names:
        if name not in WHAT:
            raise UnknownNameError(unknown("measure", name, WHAT))
    if {"swaps", "parts", "curves"} & {*names} and "prices" not in names:
        raise UsageError(f"swaps, parts and curves must go with prices; got what={list(names)}. Add prices.")
    for function in functions:
        if function is not None and not callable(function):
            raise UsageError(f"loss and score must be functions of output and inputs; got {function!r}. Give one.")
    if not isinstance(tolerance, int | float) or not 0 < tolerance < math.inf:
        raise UsageError(
            f"tolerance must be above 0 and finite, in units of the loss; got {tolerance!r}. Leave it out for 0.01."
        )
    return names


def _drops(drops: int | None, count: int) -> int:
    if drops is None:
        return min(max(1, count // PER_DROP), max(count - 1, 1))
    if not isinstance(drops, int) or isinstance(drops, bool) or not 0 < drops < count:
        raise UsageError(f"drops must be 1 to {count - 1} of {count} blocks; got {drops!r}. Leave at least one block.")
    return drops


def _refuse_fixes(model: nn.Module) -> None:
    if fixes_in(model):
        raise UsageError(
            "the model must have no remedy, because a remedy in a skipped block cannot act; it has "
            f"{', '.join(map(repr, fixes_in(model)))}. Undo it first: handle.undo()."
        )
