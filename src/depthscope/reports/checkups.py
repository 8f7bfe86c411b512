"""A checkup: what was recognised in a model, stream by stream, what was not, and lines to copy."""

from typing import Any

from depthscope.checkups.record import Checkup, Recognised
from depthscope.errors import UsageError
from depthscope.reports.sheet import Grid, Line, Part, Sheet, notes

SIZE = (1, 1)


def sheets(checkup: Checkup) -> list[Sheet]:
    count = len(checkup.streams)
    said = f"{count} streams recognised" if count > 1 else "1 stream recognised" if count else "nothing recognised"
    body: list[Part] = [Line([(checkup.model, "bold"), f": {said}"])]
    if checkup.remedies:
        body.append(Line(f"remedies in place: {', '.join(checkup.remedies)}"))
    if checkup.problem:
        body.append(Line([("not recognised: ", "bold red"), checkup.problem]))
        body += [Line(f"  {one}") for one in checkup.seen]
        body += [Line([f"  tried {line}: ", (came, "green")]) for line, came in checkup.tried.items()]
    if count > 1:
        body.append(Line("ds.scan(model, inputs) holds all of them, ds.fix_(model, remedy) acts in all of them."))
    for stream in checkup.streams:
        body += _stream(checkup, stream)
    return [Sheet(f"checkup of {checkup.model}", body, None)]


def _stream(checkup: Checkup, stream: Recognised) -> list[Part]:
    """One stream: findings in two columns, notes, lines to copy."""
    acts = [site for site, answer in stream.fixes.items() if answer == "yes"]
    stages = ", then ".join(f"{tokens} tokens of width {width}" for tokens, width in stream.stages)
    rows = [
        ("blocks", f"{stream.depth} x {stream.blocks}"),
        ("found as", stream.how),
        ("tokens", f"{stages}; {stream.layout}"),
        ("attention", stream.attention),
        ("norms", stream.norms),
        ("final norm", "yes, measured at a site of its own" if stream.final_norm else "none seen"),
        ("steps", ", ".join(stream.steps) or "not told apart"),
        ("padding", stream.padding),
        ("fix_", f"can act at {', '.join(acts)}" if acts else "cannot act"),
        *_refused(stream),
        ("forecast", stream.forecast),
    ]
    alone = len(checkup.streams) > 1
    lines = [*checkup.python(stream), *checkup.commands(stream)]
    return [
        Line(""),
        Grid([f"stream {stream.name}", ""], rows, left=2, fold={"": 40}),
        *notes(stream.notes),
        Line(f"to scan, fix and forecast {'this alone' if alone else 'it'}:", "dim"),
        *(Line(f"  {line}") for line in lines),
    ]


def _refused(stream: Recognised) -> list[tuple[str, str]]:
    """Why remedies cannot act at some sites; one row for all sites with the same reason."""
    reasons: dict[str, list[str]] = {}
    for site, answer in stream.fixes.items():
        if answer != "yes":
            reasons.setdefault(answer.removeprefix("no: ").replace(repr(site), "the site"), []).append(site)
    return [("", f"not at {', '.join(sites)}: {reason}") for reason, sites in reasons.items()]


def draw(checkup: Checkup, figure: Any) -> None:
    raise UsageError("a checkup has no picture. Write it as .html or .json.")
