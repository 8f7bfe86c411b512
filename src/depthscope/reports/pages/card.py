"""A card for notebooks: the verdict, one line to copy, and the first chart as a small picture."""

import base64
from importlib.util import find_spec

from depthscope.records import Record
from depthscope.reports.pages.figures import description
from depthscope.reports.pages.page import environment
from depthscope.reports.story import Code, Story, Tone, Words

FEW = 2  # sentences of a card, beside those to read first
COLOURS: dict[Tone, str] = {"good": "#2da44e", "warn": "#bf8700", "bad": "#cf222e", "plain": "#6e7781"}


def card(record: Record) -> str | None:
    """The record as a few lines of HTML; None where jinja2 is missing, so that a notebook shows the text."""
    if find_spec("jinja2") is None:
        return None
    from depthscope.reports.telling import told

    return "".join(_card(story) for story in told([("", one) for one in record.told_as()]))


def short_card(title: str, status: str, tone: Tone, said: list[str]) -> str | None:
    """The same of words alone."""
    if find_spec("jinja2") is None:
        return None
    first, *rest = said
    told = [Words(first, "lead", status, tone), *(Words(one, "lead") for one in rest)]
    return _card(Story(status, title, {}, told, tone=tone))


def _card(story: Story) -> str:
    words = [part for part in story.verdict if isinstance(part, Words)]
    said = [one for i, one in enumerate(words) if one.kind in ("lead", "note") or i < FEW]
    lines = [part for part in story.todo if isinstance(part, Code)][:1]
    told = [part.said for part in story.how if isinstance(part, Words) and part.kind == "note"]
    picture, alt = "", ""
    if story.charts and find_spec("matplotlib") is not None:
        from depthscope.reports.pages.thumbnail import thumbnail

        picture, alt = base64.b64encode(thumbnail(story.charts[0])).decode(), description(story.charts[0])
    found: str = (
        environment()
        .get_template("card.html.j2")
        .render(story=story, said=said, lines=lines, notes=told, picture=picture, alt=alt, colours=COLOURS)
    )
    return found
