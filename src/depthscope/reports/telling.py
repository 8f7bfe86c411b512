"""Which story is told of which records: all scans of a page together, every other record by itself."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from depthscope.records import Record
from depthscope.reports.show import MODULES
from depthscope.reports.story import Story

SCAN, FORECAST = "depthscope.scan", "depthscope.forecast"


def told(records: Sequence[tuple[str, Record]]) -> list[Story]:
    """The stories of a page. Forecasts are drawn into the curves of scans too, where there are scans."""
    scans = _by_label(records, SCAN)
    found = []
    if scans:
        from depthscope.reports.stories.scans import told_together

        found.append(told_together(scans, _by_label(records, FORECAST)))
    return [*found, *(story_of(record, label) for label, record in records if record.FORMAT != SCAN)]


def _by_label(records: Sequence[tuple[str, Record]], kind: str) -> dict[str, Any]:
    """The records of a kind, each under a label of its own: the one it was given, or its title with a number."""
    chosen = [(label, one) for label, one in records if one.FORMAT == kind]
    if len(chosen) == 1:
        return {chosen[0][0]: chosen[0][1]}
    found: dict[str, Any] = {}
    for i, (label, one) in enumerate(chosen, start=1):
        name = label or f"{i}: {getattr(one, 'title', '') or getattr(one, 'source', kind)}"
        found[name if name not in found else f"{name} ({i})"] = one
    return found


def story_of(record: Record, label: str = "") -> Story:
    """The story of one record; a kind that has none of its own is told by its sheets."""
    name = f"depthscope.reports.stories.{MODULES.get(record.FORMAT, '')}"
    known = record.FORMAT in MODULES and find_spec(name) is not None
    module = import_module(name if known else "depthscope.reports.stories.by_sheets")
    story: Story = module.story(record)
    if not label:
        return story
    from dataclasses import replace

    return replace(story, title=f"{label}: {story.title}")
