"""The story of paths: how many there are of each length, and what they contribute to the output."""

from depthscope.circuits.path_lengths import FORMS, PathLengths
from depthscope.reports.paths import DRAWN, LEGEND, checks, drawn_rows, rows
from depthscope.reports.stories.by_sheets import value_of
from depthscope.reports.story import Chart, Facts, Part, Story, Table, Words, curve

X = "attentions on the path"


def story(found: PathLengths) -> Story:
    heads = f"{min(found.heads)} to {max(found.heads)}" if len(set(found.heads)) > 1 else f"{found.heads[0]}"
    drawn: list[Part] = [_table("Single paths, drawn at random", drawn_rows(found), DRAWN)] if found.drawn else []
    return Story(
        kind="paths",
        title=f"Paths: {found.model}",
        records={"paths": found},
        verdict=[Words(found.verdict, "lead")],
        where=[
            Chart(
                "Paths by length",
                [
                    curve("share of the output", found.share.tolist(), colour=0),
                    curve("part of all paths, by number", found.counts.shares.tolist(), line="dash", colour=7),
                ],
                "Where the solid line is high and the dashed one low, few paths make most of the output.",
                x=X,
                y="share",
            )
        ],
        why=[_sizes(found)],
        evidence=[_table("All lengths", rows(found, most=found.depth + 1), LEGEND), *drawn],
        how=[
            Facts(
                {
                    "model": found.model,
                    "sizes": f"{found.depth} blocks of {heads} heads, {found.samples} x {found.tokens} tokens",
                    "of": FORMS[found.form],
                }
            ),
            Words(checks(found)),
        ],
    )


def _sizes(found: PathLengths) -> Chart:
    """How large the parts are, and how alike their tokens."""
    traces = [
        curve("size relative to the output", found.norm.tolist(), colour=1),
        curve("relative residual", found.residual.tolist(), colour=2),
    ]
    if found.drawn:
        one = [10**x for x in found.drawn["log10_norm"].tolist()]
        traces.append(curve("size of one path", one, line="dot", colour=1))
        residual = found.drawn["residual"].tolist()
        traces.append(curve("relative residual of one path", residual, line="points", colour=7))
    says = "A relative residual near 0: what these paths add is the same for all tokens."
    return Chart("Size, and what differs between tokens", traces, says, x=X, log=True)


def _table(caption: str, grid: tuple[list[str], list[list[str]]], about: str) -> Table:
    names, cells = grid
    return Table(caption, names, [[*map(value_of, row)] for row in cells], about=about)
