"""The story of a reproduction: which claims of a paper hold here, with the numbers they were held against."""

import io
import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from depthscope.records import plain
from depthscope.reports.reproductions import summary
from depthscope.reports.stories.by_sheets import charts_of_fields
from depthscope.reports.story import Code, Facts, Part, Picture, Story, Table, Tone, Words

TONES: Mapping[bool, Tone] = {True: "good", False: "bad"}


def story(result: Any) -> Story:
    status = "all counted claims hold" if result.holds else "a claim fails"
    tone = TONES[result.holds]
    tones: list[Tone] = [
        "plain" if c.reported else "good" if c.holds else "bad" if c.expected else "warn" for c in result.claims
    ]
    rows = [
        [c.says, c.wanted, "" if math.isnan(c.null) else c.null, c.value, c.status, c.trials] for c in result.claims
    ]
    small = ", smoke=True" if result.smoke else ""
    config = plain(result.config)
    facts = {**{name: str(value) for name, value in config.items()}, **result.versions}
    return Story(
        kind="reproduction",
        title=f"Reproduction: {result.name}",
        records={result.name: result},
        status=status,
        tone=tone,
        verdict=[Words(summary([result]), "lead", status, tone)],
        where=_figure(result),
        why=charts_of_fields(result),
        todo=[Code("Run it again:", f'ds.reproduce("{result.name}"{small})')],
        evidence=[Table("Claims", ["claim", "wanted", "null", "got", "status", "trials"], rows, 1, tones)],
        how=[
            Facts(
                facts
                | {"seconds": f"{result.seconds:.0f}", "sizes": "small (smoke)" if result.smoke else "the paper's"}
            )
        ],
    )


def _figure(result: Any) -> list[Part]:
    """The figure of the paper, drawn anew; nothing where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        return []
    file = io.BytesIO()
    result.draw().savefig(file, format="png", dpi=100)
    return [Picture("The figure", file.getvalue(), "Drawn from the numbers below, as the experiment draws it.")]
