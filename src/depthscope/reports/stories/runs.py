"""The story of a training run: losses, and how alike tokens were on the way."""

from depthscope.records import plain
from depthscope.reports.story import Chart, Facts, Heat, Part, Story, Table, Tone, Trace, Words, notes
from depthscope.reports.training_curves import smooth
from depthscope.training.run import Run

TONES: dict[str, Tone] = {"done": "good", "diverged": "bad", "stopped": "warn"}


def story(run: Run) -> Story:
    build, tone = run.build, TONES.get(run.status, "plain")
    settings = {name: str(value) for name, value in plain(run.settings()).items() if value not in ("", None)}
    measured = [one for one in run.evaluations if "loss" in one]
    rows = [[one["step"], one["split"], one["loss"], one.get("accuracy", "")] for one in measured]
    return Story(
        kind="run",
        title=f"Run: {run.task}, {build.depth} blocks, {build.remedy or build.wiring}",
        records={"run": run},
        status=run.status,
        tone=tone,
        verdict=[Words(str(run), "lead", run.status, tone)],
        where=_similarity(run),
        why=[_loss(run)],
        evidence=[Table("Evaluations", ["step", "split", "loss", "accuracy"], rows)] if rows else [],
        how=[Facts(settings), *notes(run.notes)],
    )


def _loss(run: Run) -> Chart:
    traces = [Trace("batches, smoothed", smooth(run.history["loss"]), run.history["step"], colour=7)]
    for colour, split in enumerate(("train", "valid")):
        some = [one for one in run.evaluations if one["split"] == split]
        if some:
            values, steps = [one["loss"] for one in some], [one["step"] for one in some]
            traces.append(Trace(split, values, steps, line="points", colour=colour))
    return Chart("Loss", traces, x="step", y="loss")


def _similarity(run: Run) -> list[Part]:
    if not run.logs:
        return []
    steps, rows = [log["step"] for log in run.logs], [log["t_sim"] for log in run.logs]
    blocks = [list(row) for row in zip(*rows, strict=True)]
    last = Trace(f"step {steps[-1]}", rows[-1], range(len(blocks)), colour=1)
    first = Trace(f"step {steps[0]}", rows[0], range(len(blocks)), line="dash", colour=0)
    both = [first, last] if len(steps) > 1 else [last]
    parts: list[Part] = [Chart("Token similarity over depth", both, y="t_sim", low=0, high=1)]
    if len(steps) > 1:
        title = "Token similarity over blocks and steps"
        parts.append(Heat(title, blocks, range(len(blocks)), steps, x="step", y="block", unit="t_sim", low=0, high=1))
    return parts
