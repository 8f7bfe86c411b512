"""The story of ablations: which part of a block keeps the tokens apart?"""

from depthscope.ablations.record import COLLAPSED, Ablations
from depthscope.reports.ablations import LEGEND, remarks, table
from depthscope.reports.rows import header
from depthscope.reports.stories.by_sheets import value_of
from depthscope.reports.story import PALETTE, Chart, Facts, Story, Table, Tone, Trace, Words, curve, notes


def story(ablations: Ablations) -> Story:
    whole = ablations[()]
    names, cells = table(ablations)
    tones: list[Tone] = ["good" if row.collapse is None else "bad" for row in ablations.rows]
    lost = sum(row.collapse is not None for row in ablations.rows)
    status = f"{lost} of {len(ablations.rows)} combinations collapse"
    tone: Tone = "plain" if whole.collapse is None else "bad"
    residual = "What differs between tokens, relative to them. Below the line all tokens count as one."
    return Story(
        kind="ablations",
        title=f"{whole.scan.title} without {', '.join(ablations.parts)}",
        records={"ablations": ablations},
        status=status,
        tone=tone,
        verdict=[Words(ablations.verdict, "lead", status, tone)],
        where=[
            Chart(
                "Relative residual over depth",
                _curves(ablations, "relative_residual"),
                residual,
                y="relative residual",
                log=True,
                marks={"collapse": COLLAPSED},
            )
        ],
        why=[Chart("Length of tokens over depth", _curves(ablations, "token_norm"), y="token norm", log=True)],
        evidence=[
            Table(
                "All combinations", names, [[*map(value_of, row)] for row in cells], len(ablations.parts), tones, LEGEND
            )
        ],
        how=[Facts({"model": whole.scan.title, "what ran": header(whole.scan)}), *notes(remarks(ablations))],
    )


def _curves(ablations: Ablations, name: str) -> list[Trace]:
    """One of each combination, as far as its tokens are numbers to go by; the last part is told by dashes."""
    *first, last = ablations.parts
    found = []
    for row in ablations.rows:
        colour = sum(2**k for k, part in enumerate(first) if part in row.removed) % PALETTE
        values = row.scan[name][: row.until + 1]
        values = values.clamp_min(row.floor) if name == "relative_residual" else values
        line = "dash" if last in row.removed else "solid"
        found.append(curve(row.label, values.tolist(), line=line, colour=colour))
    return found
