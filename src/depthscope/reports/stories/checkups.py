"""The story of a checkup: what was recognised in a model, and lines to copy."""

from depthscope.checkups.record import Checkup
from depthscope.reports.checkups import sheets
from depthscope.reports.sheet import Grid
from depthscope.reports.stories.by_sheets import table_of
from depthscope.reports.story import Code, Part, Story, Tone, Words, notes


def story(checkup: Checkup) -> Story:
    status = "recognised" if checkup.recognised else "not recognised"
    tone: Tone = "good" if checkup.recognised else "bad"
    found = [f"{one.name}: {one.depth} blocks, {one.blocks}" for one in checkup.streams]
    said = checkup.problem or f"{len(found)} stream{'' if len(found) == 1 else 's'}: {'; '.join(found)}."
    lines = [
        Code(f"{one.name}:", line) for one in checkup.streams for line in (*checkup.python(one), *checkup.commands(one))
    ]
    tried: list[Part] = [Words(f"Tried {line}: {came}") for line, came in checkup.tried.items()]
    grids = [part for sheet in sheets(checkup) for part in sheet.body if isinstance(part, Grid)]
    return Story(
        kind="checkup",
        title=f"Checkup of {checkup.model}",
        records={"checkup": checkup},
        status=status,
        tone=tone,
        verdict=[Words(said, "lead", status, tone)],
        where=[Words(one) for one in checkup.seen],
        why=tried,
        todo=lines,
        evidence=[table_of(grid, grid.names[0]) for grid in grids],
        how=[part for one in checkup.streams for part in notes(one.notes)],
    )
