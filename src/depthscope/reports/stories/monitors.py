"""The story of a monitored training: the alarms, and how alike tokens were over blocks and steps."""

import math

from depthscope.monitors.history import History
from depthscope.reports.story import Chart, Facts, Heat, Part, Story, Table, Tone, Trace, Value, Words, notes


def story(history: History) -> Story:
    alarms, steps = history.alarms, history.steps
    status = f"{len(alarms)} alarm{'' if len(alarms) == 1 else 's'}" if alarms else "no alarm"
    tone: Tone = "bad" if alarms else "good"
    said = [Words(str(alarm), "lead", alarm.kind, "bad") for alarm in alarms]
    last = f"{len(steps)} looks" + (f", up to step {steps[-1]}: {history.verdicts[-1]}." if steps else ".")
    of = "" if history.total is None else f" of {history.total}"
    until = f", up to step {steps[-1]}{of}" if steps else ""
    return Story(
        kind="monitor",
        title=f"Monitor: {history.model}",
        records={"monitor": history},
        status=status,
        tone=tone,
        verdict=said or [Words(last, "lead", status, tone)],
        where=_where(history) if steps else [],
        why=[_map(name, history) for name in history.curves if name != "t_sim"] if steps else [],
        evidence=[_table(history)] if steps else [],
        how=[
            Facts(
                {
                    "model": f"{history.model}, {history.depth} blocks",
                    "looks": f"{len(steps)}, every {history.every} steps{until}",
                }
            ),
            *notes(history.notes),
        ],
    )


def _where(history: History) -> list[Part]:
    says = "What still differs between tokens at the last block. A straight line down is loss by a factor."
    diversity = Trace("diversity", history.diversity.tolist(), history.steps, colour=1)
    marks = {"1 %: tokens count as lost": 0.01}
    chart = Chart("Diversity at the last block", [diversity], says, x="step", y="diversity", log=True, marks=marks)
    return [_map("t_sim", history), chart]


def _map(name: str, history: History) -> Heat:
    """Blocks upwards, steps to the right; states begin at block 0, what blocks and heads do at block 1."""
    rows = history[name].T
    first = history.depth + 1 - len(rows)
    bounded = name in ("t_sim", "t_div")
    blocks = range(first, first + len(rows))
    return Heat(
        f"{name} over blocks and steps",
        rows.tolist(),
        blocks,
        history.steps,
        x="step",
        y="block",
        unit=name,
        low=0.0 if bounded else math.nan,
        high=1.0 if bounded else math.nan,
    )


def _table(history: History) -> Table:
    alarms = {alarm.step: alarm.kind for alarm in reversed(history.alarms)}
    ends = history["t_sim"][:, -1].tolist()
    looks = zip(history.steps, history.verdicts, history.diversity.tolist(), ends, strict=True)
    rows: list[list[Value]] = [[step, verdict, left, end, alarms.get(step, "")] for step, verdict, left, end in looks]
    return Table("All looks", ["step", "verdict", "diversity", "t_sim", "alarm"], rows)
