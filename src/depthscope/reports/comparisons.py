"""A comparison for the terminal: a line for each arm, then what may be concluded from it and what may not."""

import io
import math
from typing import Any

from depthscope.training.arms import CAVEAT, rate_words
from depthscope.training.comparison import Comparison
from depthscope.training.lane import Lane
from depthscope.training.significance import FEWEST, LEVEL

COLUMNS = ("arm", "lr", "test accuracy", "test loss", "train loss", "seconds", "seeds")
FOLDED = {"arm": 13, "seeds": 8}  # may take several lines, of no fewer letters
CHANCE = 3  # deviations of the accuracy of guesses, up to which an arm has learned nothing that can be told


def comparison_view(comparison: Comparison) -> Any:
    """The comparison as a rich renderable."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in COLUMNS:
        if name in FOLDED:
            grid.add_column(name, overflow="fold", min_width=FOLDED[name])
        else:
            grid.add_column(name, justify="right", no_wrap=True)
    for lane in comparison.lanes:
        lost = lane.diverged or lane.failed
        grid.add_row(*map(Text, cells(lane)), style="red" if lost else None)
    parts: list[Any] = [Text(header(comparison), style="dim"), grid, Text()]
    parts += [Text(words, style=style) for words, style in sentences(comparison)]
    return Group(*parts)


def comparison_text(comparison: Comparison, width: int = 110) -> str:
    """The same as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(comparison_view(comparison))
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def header(comparison: Comparison) -> str:
    """One line: what was trained on what, for how long."""
    base, recipe, images = comparison.base, comparison.recipe, comparison.facts["images"]
    return (
        f"{comparison.task}: {images['train']} images to learn from, {images['test']} to test; ViT of {base.depth} "
        f"blocks, d {base.d}, {base.h} heads, ffn {base.q}, {base.weights} weights; "
        f"{epochs_in_words(recipe.epochs)} of batch {recipe.batch} ({comparison.steps} steps)"
    )


def cells(lane: Lane) -> list[str]:
    """The line of an arm."""
    accuracy = _range(100 * lane.mean("test", "accuracy"), 100 * lane.spread("test", "accuracy"), 1)
    losses = [_range(lane.mean(split, "loss"), lane.spread(split, "loss"), 3) for split in ("test", "train")]
    return [lane.arm.name, rate_words(lane.lr), f"{accuracy} %", *losses, f"{lane.seconds:.0f}", counts(lane)]


def counts(lane: Lane) -> str:
    """How many seeds the means are over, and what became of the others."""
    done, all_ = len(lane.done), len(lane.runs) + len(lane.failed)
    lost = [f"{len(some)} {word}" for some, word in ((lane.diverged, "diverged"), (lane.failed, "failed")) if some]
    return f"{done} of {all_}: {', '.join(lost)}" if lost else str(done)


def sentences(comparison: Comparison) -> list[tuple[str, str]]:
    """What follows, and in which style it is printed: losses first, then differences, the caveats last."""
    lines = [(words, "red") for lane in comparison.lanes for words in _lost(lane)]
    chance = at_chance(comparison.facts["guess"], comparison.facts["images"]["test"])
    lines += [(words, "") for lane in comparison.lanes for words in _at_chance(lane, chance)]
    lines += [(words, "bold") for words in differences_in_words(comparison)]
    lines += [
        (words, "") for lane in comparison.lanes if lane.arm.remark == CAVEAT for words in _caveat(comparison, lane)
    ]
    lines += [(words, "") for words in _reused(comparison)]
    return [*lines, (rates_in_words(comparison), ""), (_budget(comparison), "")]


def differences_in_words(comparison: Comparison) -> list[str]:
    """Which differences of test accuracy are more than noise between seeds, and which are within it."""
    found = comparison.differences()
    if not found:
        return []
    have, seeds = max(one.test.count for one in found), len(comparison.seeds)
    if have < FEWEST:
        how_many = f"{have} seed{'' if have == 1 else 's'}"
        if have < seeds:
            how_many = f"No two arms have done more than {have} of {seeds} seeds"
        return [
            f"{how_many}: of no difference can it be said whether it is more than noise. "
            f"Take --seeds {FEWEST + seeds - have} or more."
        ]
    lines = [_difference(one, comparison) for one in found]
    tested = sum(not math.isnan(one.p) for one in found)
    corrected = f", p corrected for {tested} comparisons by Holm's method" if tested > 1 else ""
    note = (
        f"(Mean ± deviation of the differences over seeds, paired t-test{corrected}; the sign-flip test cannot fall "
        f"below {2.0 ** (1 - have):.2g} with as many seeds. All of it is over seeds, {_on_these_images(comparison)}.)"
    )
    return [*lines, note]


def _on_these_images(comparison: Comparison) -> str:
    """What seeds cannot tell: the deviation of an accuracy over other test images, the largest of all arms."""
    images = comparison.facts["images"]["test"]
    means = [lane.mean("test", "accuracy") for lane in comparison.lanes if lane.done]
    moved = 100 * max(math.sqrt(p * (1 - p) / images) for p in means)
    return f"on these {images} test images; other images would move an accuracy by about ± {moved:.1f} points"


def _difference(one: Any, comparison: Comparison) -> str:
    count, seeds = one.test.count, len(comparison.seeds)
    if count < FEWEST:
        return f"{one.above} and {one.below}: nothing can be said, only {count} of {seeds} seeds were done by both."
    size = f"{_range(100 * one.test.mean, 100 * one.test.spread, 1)} points"
    flips = "" if math.isnan(one.test.p_flip) else f"; sign flips {one.test.p_flip:.2g}"
    over = f", over {count} of {seeds} seeds; {_left_out(one, comparison)}" if count < seeds else ""
    return f"{one.above} is above {one.below} by {size}: {one.verdict}{flips}{over}."


def _left_out(one: Any, comparison: Comparison) -> str:
    """Why a difference is not over all seeds: one of the two arms has no result for some."""
    lanes = [comparison[name] for name in (one.above, one.below)]
    diverged = {seed for lane in lanes for seed in lane.diverged}
    failed = {seed for lane in lanes for seed in lane.failed} - diverged
    lost = [f"{len(some)} {how}" for some, how in ((diverged, "diverged"), (failed, "failed")) if some]
    return f"{' and '.join(lost)} and {'is' if len(diverged | failed) == 1 else 'are'} left out"


def _lost(lane: Lane) -> list[str]:
    """Every run that has no place in the means."""
    gone = [(seed, f"diverged: {why}") for seed, why in lane.diverged.items()]
    gone += [(seed, f"failed: {why}") for seed, why in lane.failed.items()]
    return [f"{lane.arm.name}, seed {seed}, {words}." for seed, words in sorted(gone)]


def at_chance(guess: float, images: int) -> float:
    """The accuracy up to which an arm may just have guessed the largest class, whose share of the images is `guess`."""
    return guess + CHANCE * math.sqrt(guess * (1 - guess) / images)


def _at_chance(lane: Lane, chance: float) -> list[str]:
    """How many seeds learned nothing: a mean of some that did and some that did not is nobody's accuracy."""
    values = lane.values("test", "accuracy").values()
    stuck = sum(value <= chance for value in values)
    if not stuck:
        return []
    some = "" if stuck == len(values) else f"; the best reached {max(values):.1%}"
    return [f"{lane.arm.name} stayed at chance in {stuck} of {len(values)} seeds{some}."]


def _caveat(comparison: Comparison, lane: Lane) -> list[str]:
    """What a third of the rate does to post-norm."""
    usual = _before_caveat(comparison, lane)
    name, slow, fast = lane.arm.name.partition("@")[0], lane.mean("test", "accuracy"), usual.mean("test", "accuracy")
    if math.isnan(slow) or math.isnan(fast):
        return [f"{name} at {CAVEAT} ({rate_words(lane.lr)}): there is nothing to compare, no run was done."]
    here = f"{name} at {CAVEAT} ({rate_words(lane.lr)}) reaches {slow:.1%}, at {rate_words(usual.lr)} {fast:.1%}: "
    chance = at_chance(comparison.facts["guess"], comparison.facts["images"]["test"])
    pair = {usual.arm.name, lane.arm.name}
    differ = any(one.p < LEVEL for one in comparison.differences() if {one.above, one.below} == pair)
    if max(slow, fast) <= chance:
        return [here + "the smaller rate does not save it here. A still smaller one might."]
    if fast <= chance or (differ and slow > fast):
        return [here + "how badly it does beside the others is a matter of the rate; one rate for all overstates it."]
    if slow <= chance or differ:
        return [here + "the smaller rate is no help here."]
    return [here + "the rate makes no difference that can be told."]


def _before_caveat(comparison: Comparison, lane: Lane) -> Lane:
    """The lane whose third of the rate this is."""
    plain = [one for one in comparison.lanes if one.arm.plain and one.arm.remark != CAVEAT]
    return min(plain, key=lambda one: abs(math.log(one.lr / 3 / lane.lr)))


def _reused(comparison: Comparison) -> list[str]:
    """Which part of all this was computed earlier."""
    runs = len(comparison.seeds) * len(comparison.lanes)
    return [f"{comparison.reused} of {runs} runs were there already."] if comparison.reused else []


def rates_in_words(comparison: Comparison) -> str:
    """How fair the learning rates are."""
    if comparison.rates:
        return comparison.rates
    return (
        f"Arms without a rate of their own had lr {rate_words(comparison.recipe.lr)}, the same for all, and no search "
        "was made: --search 8 finds a rate for each on the validation split."
    )


def _budget(comparison: Comparison) -> str:
    epochs = comparison.recipe.epochs
    return (
        f"The budget was {epochs_in_words(epochs)}: who learns fastest may be ahead now and not in the "
        f"end. --epochs {3 * epochs} or more shows whether a lead lasts."
    )


def epochs_in_words(epochs: int) -> str:
    return "1 epoch" if epochs == 1 else f"{epochs} epochs"


def _range(mean: float, spread: float, digits: int) -> str:
    """mean ± spread; no spread where there is none to tell."""
    if math.isnan(mean):
        return "-"
    return f"{mean:.{digits}f}" if math.isnan(spread) else f"{mean:.{digits}f} ± {spread:.{digits}f}"
