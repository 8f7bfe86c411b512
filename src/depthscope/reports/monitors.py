"""A monitored training: the alarms, the looks, and token similarity over blocks and steps as a heat map."""

from typing import Any

from depthscope.monitors.history import History
from depthscope.reports.chart import sampled
from depthscope.reports.sheet import Bars, Curves, Grid, Line, Part, Sheet, notes
from depthscope.reports.training_curves import similarity_map

SIZE = (9, 4.2)
ALARM = "#2471a3"  # the colour of its line
MOST = 12  # rows of looks, curves of a page


def sheets(history: History) -> list[Sheet]:
    of = "" if history.total is None else f" of {history.total}"
    looks = f"{len(history.steps)} looks, every {history.every} steps"
    upto = f", up to step {history.steps[-1]}{of}" if history.steps else ""
    body: list[Part] = [Line(f"{history.model}, {history.depth} blocks: {looks}{upto}", "dim")]
    body += [Line(str(alarm), "bold red") for alarm in history.alarms] or [Line("No alarm.", "bold")]
    body += _looks(history) if history.steps else []
    return [Sheet("monitor", [*body, *notes(history.notes)])]


def _looks(history: History) -> list[Part]:
    t_sim = history["t_sim"]
    shown = sampled(len(history.steps), MOST)
    alarms = {alarm.step: alarm.kind for alarm in reversed(history.alarms)}
    rows = [
        [
            str(history.steps[i]),
            history.verdicts[i],
            f"{float(history.diversity[i]):.3g}",
            f"{float(t_sim[i, -1]):.4f}",
            alarms.get(history.steps[i], ""),
        ]
        for i in shown
    ]
    table = Grid(["step", "verdict", "diversity", "t_sim", "alarm"], rows)
    curves = {f"step {history.steps[i]}": t_sim[i].tolist() for i in sampled(len(history.steps), 5)}
    return [table, Bars(t_sim[-1].tolist()), Curves(curves, "token similarity t_sim after every block")]


def draw(history: History, figure: Any) -> None:
    ax = figure.subplots()
    ax.set(title=f"{history.model}: t_sim, how alike tokens are", xlabel="step", ylabel="block")
    if not history.steps:
        ax.text(0.5, 0.5, "no look", ha="center", transform=ax.transAxes)
        return
    figure.colorbar(similarity_map(ax, history.steps, history["t_sim"].tolist()), ax=ax, label="t_sim")
    for alarm in history.alarms:
        ax.axvline(alarm.step, color=ALARM, lw=1.2)
        ax.annotate(alarm.kind, (alarm.step, history.depth), (4, -3), color=ALARM, textcoords="offset points")
