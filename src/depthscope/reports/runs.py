"""A training run: how it ended, what was measured on the way, the losses and token similarity as curves."""

from typing import Any

from depthscope.reports.sheet import Grid, Line, Sheet, notes
from depthscope.reports.training_curves import smooth
from depthscope.training.run import Run

SIZE = (11, 3.8)


def sheets(run: Run) -> list[Sheet]:
    build = run.build
    model = f"{run.task}: {build.depth} blocks, d {build.d}, {build.h} heads, {build.remedy or build.wiring}"
    rows = [[str(one["step"]), one["split"], f"{one['loss']:.4g}"] for one in run.evaluations]
    table = [Grid(["step", "split", "loss"], rows)] if rows else []
    return [Sheet(f"run: {run.task}", [Line(model, "dim"), Line(str(run), "bold"), *table, *notes(run.notes)])]


def draw(run: Run, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    left.plot(run.history["step"], smooth(run.history["loss"]), color="0.3", label="batches, smoothed")
    for split in ("train", "valid"):
        some = [one for one in run.evaluations if one["split"] == split]
        left.plot([one["step"] for one in some], [one["loss"] for one in some], "o", ms=4, label=split)
    left.set(title="loss", xlabel="step")
    left.legend(fontsize=8, frameon=False)
    for log in run.logs:
        right.plot(log["t_sim"], lw=1, label=f"step {log['step']}")
    right.set(title="token similarity", xlabel="block", ylabel="t_sim", ylim=(0, 1.02))
    if 0 < len(run.logs) <= 8:
        right.legend(fontsize=8, frameon=False)
