"""A comparison for the terminal: a line for each arm, then what may be concluded from it and what may not."""

import math
from typing import Any

from depthscope.reports.sheet import Grid, Line, Sheet
from depthscope.reports.training_curves import draw as draw
from depthscope.reports.training_curves import epochs_in_words, size
from depthscope.training.arms import CAVEAT, LITERAL, rate_words
from depthscope.training.comparison import Comparison
from depthscope.training.lane import Lane
from depthscope.training.scores import in_range
from depthscope.training.significance import FEWEST, LEVEL

SIZE = size  # as many rows of heat maps as there are arms
FOLDED = {"arm": 13, "seeds": 5}  # may take several lines, of no fewer letters
STATED = {"bits_per_character": "bits/char", "perplexity": "perplexity"}  # of a loss, as the field writes it
DAMAGED = "accuracy_"  # with the damage behind it: of the same model on test images made worse


def sheets(comparison: Comparison) -> list[Sheet]:
    rows = [cells(lane, comparison) for lane in comparison.lanes]
    styles = ["red" if lane.diverged or lane.failed or lane.leaks else "" for lane in comparison.lanes]
    grid = Grid([*rows[0]], [[*row.values()] for row in rows], gap=1, fold=FOLDED, styles=styles)
    said = [Line(words, style) for words, style in sentences(comparison)]
    return [Sheet(f"comparison: {comparison.task}", [Line(header(comparison), "dim"), grid, Line(""), *said], None)]


def header(comparison: Comparison) -> str:
    """One line: what was trained on what, for how long."""
    base, recipe, facts = comparison.base, comparison.recipe, comparison.facts
    network = f"ffn {base.q}" if facts.get("ffn", True) else "no ffn"
    return (
        f"{comparison.task}: {facts['data']}; {facts['model']} of {base.depth} blocks, d {base.d}, {base.h} "
        f"heads, {network}, {base.weights} weights; "
        f"{epochs_in_words(recipe.epochs)} of batch {recipe.batch} ({comparison.steps} steps)"
    )


def cells(lane: Lane, comparison: Comparison) -> dict[str, str]:
    """The line of an arm, by the names of the columns."""
    measured = _measured(comparison)
    line = {"arm": lane.arm.name, "lr": rate_words(lane.lr)}
    if comparison.score.name == "accuracy":
        line["test accuracy"] = comparison.score.words(lane.mean("test", "accuracy"), lane.spread("test", "accuracy"))
    line["test loss"] = "LEAKS" if lane.leaks else _range(lane, "test", "loss", 3)
    for what, name in STATED.items():
        if what in measured:
            line[name] = "-" if lane.leaks else in_range(lane.mean("test", what), math.nan, 2)
    if "gap" in measured:
        line["gap"] = in_range(lane.mean("test", "gap"), math.nan, 3)
    line["train loss"] = "-" if lane.leaks else _range(lane, "train", "loss", 3)
    return line | {"seconds": f"{lane.seconds:.0f}", "seeds": counts(lane)}


def _measured(comparison: Comparison) -> dict[str, None]:
    """The names of all that was measured on the test split, in that order."""
    return dict.fromkeys(w for lane in comparison.lanes for run in lane.done.values() for w in run.final["test"])


def counts(lane: Lane) -> str:
    """How many seeds the means are over, and what became of the others."""
    done, all_ = len(lane.done), len(lane.runs) + len(lane.failed)
    lost = [f"{len(some)} {word}" for some, word in ((lane.diverged, "diverged"), (lane.failed, "failed")) if some]
    return f"{done} of {all_}: {', '.join(lost)}" if lost else str(done)


def sentences(comparison: Comparison) -> list[tuple[str, str]]:
    """What follows, and in which style it is printed: losses first, then differences, the caveats last."""
    lines = [(f"{lane.arm.name}: {lane.arm.remark}.", "") for lane in comparison.lanes if lane.arm.advised]
    lines += [(words, "red") for lane in comparison.lanes for words in (*_lost(lane), *_leaks(lane))]
    lines += [(words, "") for words in _honest(comparison)]
    lines += [(words, "") for words in _damaged(comparison)]
    lines += [(words, "") for lane in comparison.ranked for words in _at_chance(lane, comparison)]
    lines += [(words, "bold") for words in differences_in_words(comparison)]
    lines += [
        (words, "") for lane in comparison.lanes if lane.arm.remark == CAVEAT for words in _caveat(comparison, lane)
    ]
    lines += [(words, "") for words in _reused(comparison)]
    return [*lines, (rates_in_words(comparison), ""), (_budget(comparison), "")]


def differences_in_words(comparison: Comparison) -> list[str]:
    """Which differences of the score are more than noise between seeds, and which are within it."""
    found = comparison.differences()
    if not found:
        return []
    have, seeds = max(one.test.count for one in found), len(comparison.seeds)
    if have < FEWEST:
        how_many = f"{have} seed{'' if have == 1 else 's'}"
        if have < seeds:
            how_many = f"No two arms have done more than {have} of {seeds} seeds"
        return [
            f"{how_many}: too few to tell whether any difference is more than noise. "
            f"Take --seeds {FEWEST + seeds - have} or more."
        ]
    lines = [_difference(one, comparison) for one in found]
    tested = sum(not math.isnan(one.p) for one in found)
    corrected = f", p corrected for {tested} comparisons by Holm's method" if tested > 1 else ""
    note = (
        f"(Mean ± deviation of the differences over seeds, paired t-test{corrected}; the sign-flip test cannot fall "
        f"below {2.0 ** (1 - have):.2g} with as many seeds. All of it is over seeds, {_on_this_split(comparison)}.)"
    )
    return [*lines, note]


def _on_this_split(comparison: Comparison) -> str:
    """What seeds cannot tell: the deviation of an accuracy over other test examples, the largest of all arms."""
    count, asked = comparison.facts["count"], comparison.facts.get("asked", "images")
    if comparison.score.name == "loss":
        return comparison.facts.get("tested") or f"on these {count:,} test tokens; another text would move all losses"
    means = [lane.mean("test", "accuracy") for lane in comparison.lanes if lane.done]
    moved = 100 * max(math.sqrt(p * (1 - p) / count) for p in means)
    return f"on these {count} test {asked}; other {asked} would move an accuracy by about ± {moved:.1f} points"


def _difference(one: Any, comparison: Comparison) -> str:
    count, seeds = one.test.count, len(comparison.seeds)
    if count < FEWEST:
        return f"{one.better} and {one.worse}: no comparison, both finished only {count} of {seeds} seeds."
    score = comparison.score
    by = score.difference(abs(one.test.mean), one.test.spread)
    flips = "" if math.isnan(one.test.p_flip) else f"; sign flips {one.test.p_flip:.2g}"
    over = f", over {count} of {seeds} seeds; {_left_out(one, comparison)}" if count < seeds else ""
    return f"{one.better} is {score.ahead} {one.worse} by {by}: {one.verdict}{flips}{over}."


def _left_out(one: Any, comparison: Comparison) -> str:
    """Why a difference is not over all seeds: one of the two arms has no result for some."""
    lanes = [comparison[name] for name in (one.better, one.worse)]
    diverged = {seed for lane in lanes for seed in lane.diverged}
    failed = {seed for lane in lanes for seed in lane.failed} - diverged
    lost = [f"{len(some)} {how}" for some, how in ((diverged, "diverged"), (failed, "failed")) if some]
    return f"{' and '.join(lost)} and {'is' if len(diverged | failed) == 1 else 'are'} left out"


def _lost(lane: Lane) -> list[str]:
    """Every run that has no place in the means."""
    gone = [(seed, f"diverged: {why}") for seed, why in lane.diverged.items()]
    gone += [(seed, f"failed: {why}") for seed, why in lane.failed.items()]
    return [f"{lane.arm.name}, seed {seed}, {words}." for seed, words in sorted(gone)]


def _leaks(lane: Lane) -> list[str]:
    """That the losses of an arm are not those of a predictor."""
    if not lane.leaks:
        return []
    form = ", the paper's literal form," if lane.arm.remark == LITERAL else ""
    return [
        f"{lane.arm.name}{form} LEAKS: it sees the tokens that it is to predict. Its loss is "
        f"{lane.mean('test', 'forced'):.3f} when a segment is fed at once, and {lane.mean('test', 'honest'):.3f} when "
        "only what came before is. It is not ranked."
    ]


def _honest(comparison: Comparison) -> list[str]:
    """What the column of gaps says."""
    if not any("gap" in run.final["test"] for lane in comparison.ranked for run in lane.done.values()):
        return []
    return [
        "The test losses are honest: fed only what came before a token, these arms predict it as well as when the "
        "segment is fed at once (gap: mean change of a token's loss, in windows of the test split)."
    ]


def _damaged(comparison: Comparison) -> list[str]:
    """The same models on test images made worse, a line for each kind and strength of damage."""
    lines = []
    for what in (what for what in _measured(comparison) if what.startswith(DAMAGED)):
        scores = ((lane.arm.name, lane.mean("test", what), lane.spread("test", what)) for lane in comparison.lanes)
        words = ", ".join(f"{name} {comparison.score.words(mean, spread)}" for name, mean, spread in scores)
        lines.append(f"On test images with {what.removeprefix(DAMAGED).replace('_', ' ')}: {words}.")
    return lines


def _at_chance(lane: Lane, comparison: Comparison) -> list[str]:
    """How many seeds learned nothing: a mean of some that did and some that did not is nobody's score."""
    score, facts = comparison.score, comparison.facts
    values = lane.values("test", score.name).values()
    stuck = sum(score.nothing_learned(value, facts) for value in values)
    if not stuck:
        return []
    best = max(values, key=lambda value: score.sign * value)
    some = "" if stuck == len(values) else f"; the best reached {score.words(best)}"
    frequent = facts.get("unlearned") or "learned no more than how frequent tokens are"
    chance = "stayed at chance" if score.name == "accuracy" else frequent
    return [f"{lane.arm.name} {chance} in {stuck} of {len(values)} seeds{some}."]


def _caveat(comparison: Comparison, lane: Lane) -> list[str]:
    """What a third of the rate does to post-norm."""
    usual, score = _before_caveat(comparison, lane), comparison.score
    name, slow, fast = lane.arm.name.partition("@")[0], lane.mean("test", score.name), usual.mean("test", score.name)
    if math.isnan(slow) or math.isnan(fast):
        return [f"{name} at {CAVEAT} ({rate_words(lane.lr)}): nothing can be compared, because no run finished."]
    reached = f"reaches {score.words(slow)}, at {rate_words(usual.lr)} {score.words(fast)}"
    here = f"{name} at {CAVEAT} ({rate_words(lane.lr)}) {reached}: "
    lost_slow, lost_fast = (score.nothing_learned(value, comparison.facts) for value in (slow, fast))
    pair = {usual.arm.name, lane.arm.name}
    differ = any(one.p < LEVEL for one in comparison.differences() if {one.better, one.worse} == pair)
    if lost_slow and lost_fast:
        return [here + "the smaller rate does not help it here. A still smaller one might."]
    if lost_fast or (differ and score.sign * (slow - fast) > 0):
        return [here + "how badly it does depends on the rate, and one rate for all overstates it."]
    if lost_slow or differ:
        return [here + "the smaller rate does not help here."]
    return [here + "no difference between the two rates can be shown."]


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
        f"The budget was {epochs_in_words(epochs)}: an arm that learns fast may be ahead now and not in the end. "
        f"--epochs {3 * epochs} or more shows whether a lead lasts."
    )


def _range(lane: Lane, split: str, what: str, digits: int) -> str:
    return in_range(lane.mean(split, what), lane.spread(split, what), digits)
