"""The story of a comparison: who learned what, how sure that is, and how alike tokens were on the way."""

import math

from depthscope.reports.comparisons import cells, header, rates_in_words, sentences
from depthscope.reports.stories.by_sheets import value_of
from depthscope.reports.story import PALETTE, Chart, Code, Facts, Heat, Part, Story, Table, Tone, Trace, Value, Words
from depthscope.reports.training_curves import smooth, title
from depthscope.training.arms import CAVEAT
from depthscope.training.comparison import Comparison
from depthscope.training.significance import LEVEL

TONES: dict[str, Tone] = {"red": "bad"}


def story(comparison: Comparison) -> Story:
    said = [(words, style) for words, style in sentences(comparison) if words != rates_in_words(comparison)]
    rest = [Words(words, tone=TONES.get(style, "plain")) for words, style in said]
    status, lead = _lead(comparison)
    return Story(
        kind="comparison",
        title=f"Comparison on {comparison.task}: {', '.join(lane.arm.name for lane in comparison.lanes)}",
        records={"comparison": comparison},
        status=status,
        verdict=[Words(lead, "lead", status), *rest],
        where=[_scores(comparison), _losses(comparison)],
        why=_similarity(comparison),
        todo=_todo(comparison),
        evidence=[_arms(comparison), *_differences(comparison)],
        how=[_how(comparison), Words(rates_in_words(comparison))],
    )


def _lead(comparison: Comparison) -> tuple[str, str]:
    """How many differences are more than noise, and who is ahead."""
    found = comparison.differences()
    sure = sum(one.p < LEVEL for one in found)
    status = f"{sure or 'none'} of {len(found)} differences {'is' if sure <= 1 else 'are'} more than noise"
    score, done = comparison.score, [lane for lane in comparison.ranked if lane.done]
    if not done:
        return "no result", "No arm was trained to its end."
    best = max(done, key=lambda lane: score.sign * lane.mean("test", score.name))
    reached = score.words(best.mean("test", score.name), best.spread("test", score.name))
    return status, f"{best.arm.name} has the best test {score.name}: {reached}."


def _scores(comparison: Comparison) -> Chart:
    name, chance = comparison.score.name, comparison.facts["chance"]
    traces: list[Trace] = []
    for i, lane in enumerate(comparison.lanes):
        steps, means, lowest, highest = lane.curve(name)
        if steps:
            traces.append(Trace(title(lane), means, steps, band=(lowest, highest), colour=i % PALETTE))
        if steps and lane.done and not lane.leaks:
            end = [lane.mean("test", name)]
            traces.append(
                Trace(f"{lane.arm.name}: test, at the end", end, steps[-1:], line="points", colour=i % PALETTE)
            )
    says = "On the validation split; points: test at the end. Mean over seeds, the band from lowest to highest."
    top = {"low": 0.0, "high": 1.0} if name == "accuracy" else {}
    marks = {"without looking": chance}
    return Chart(name.capitalize(), traces, says, x="step", y=name, marks=marks, **top)  # type: ignore[arg-type]


def _losses(comparison: Comparison) -> Chart:
    traces = []
    for i, lane in enumerate(comparison.lanes):
        steps, *lines = lane.curve("batch_loss")
        mean, lowest, highest = map(smooth, lines)
        if steps:
            traces.append(Trace(title(lane), mean, steps, band=(lowest, highest), colour=i % PALETTE))
    guess = math.log(comparison.facts["answers"])
    marks = {"guessing": guess}
    return Chart("Training loss", traces, "Smoothed over a few steps.", x="step", y="loss", marks=marks)


def _similarity(comparison: Comparison) -> list[Part]:
    """A heat map of t_sim over blocks and steps for each arm; at the end of training side by side."""
    ends, maps = [], []
    for i, lane in enumerate(comparison.lanes):
        steps, looks = lane.similarity()
        if not steps:
            continue
        last = looks[-1]
        ends.append(Trace(title(lane), last, range(len(last)), colour=i % PALETTE))
        if len(steps) > 1:
            rows = [list(row) for row in zip(*looks, strict=True)]
            maps.append(
                Heat(
                    f"t_sim while training: {title(lane)}",
                    rows,
                    range(len(rows)),
                    steps,
                    x="step",
                    y="block",
                    low=0,
                    high=1,
                )
            )
    if not ends:
        return []
    says = "How alike tokens are after each block at the last look."
    return [Chart("Token similarity when trained", ends, says, y="t_sim", low=0, high=1), *maps]


def _todo(comparison: Comparison) -> list[Part]:
    arms = ",".join(lane.arm.name for lane in comparison.lanes if lane.arm.remark != CAVEAT)  # that one comes by itself
    epochs, seeds = 3 * comparison.recipe.epochs, max(3, len(comparison.seeds))
    line = f'ds.compare("{comparison.task}", "{arms}", depth={comparison.base.depth}, epochs={epochs}, seeds={seeds})'
    return [Code("Who learns fastest may be ahead now and not in the end. Train longer:", line)]


def _arms(comparison: Comparison) -> Table:
    rows = [cells(lane, comparison) for lane in comparison.lanes]
    tones: list[Tone] = ["bad" if lane.diverged or lane.failed or lane.leaks else "plain" for lane in comparison.lanes]
    return Table("Arms", [*rows[0]], [[*map(value_of, row.values())] for row in rows], 1, tones)


def _differences(comparison: Comparison) -> list[Part]:
    found = comparison.differences()
    rows: list[list[Value]] = [
        [one.better, one.worse, one.test.mean, one.test.spread, one.test.count, one.p, one.verdict] for one in found
    ]
    names = ["better", "worse", "difference", "deviation", "seeds", "p", "verdict"]
    return [Table(f"Differences of {comparison.score.name}, paired over seeds", names, rows, 2)] if rows else []


def _how(comparison: Comparison) -> Facts:
    from depthscope.records import plain

    def flat(settings: object) -> str:
        return ", ".join(f"{name} {value}" for name, value in plain(settings).items() if value not in ("", None))

    return Facts(
        {
            "trained": header(comparison),
            "seeds": ", ".join(map(str, comparison.seeds)),
            "model": flat(comparison.base),
            "recipe": flat(comparison.recipe),
            "data": ", ".join(f"{name} {value}" for name, value in comparison.facts.items()),
        }
    )
