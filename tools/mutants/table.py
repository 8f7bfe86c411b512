"""The section "Mutants" of a page, between two markers."""

import json
import textwrap
from pathlib import Path

from tools.mutants.source import AREAS

BEGIN, END = "<!-- mutants -->", "<!-- end of mutants -->"
REASONS = Path(__file__).with_name("equivalent.json")  # names of mutants that change nothing that counts, and why
WIDTH = 100
FENCE = "```"


def reasons() -> dict[str, str]:
    return json.loads(REASONS.read_text())


def write(page: Path, found: list[dict], n: int, seed: int) -> None:
    """Put the section where its markers are, or at the end of the page."""
    text = page.read_text() if page.exists() else "# Reliability\n\nWhat was tried to break depthscope.\n"
    section = f"{BEGIN}\n{as_page(found, n, seed)}{END}\n"
    if BEGIN in text:
        head, rest = text.split(BEGIN)
        text = head + section + rest.split(END)[1].removeprefix("\n")
    else:
        text = f"{text.rstrip()}\n\n{section}"
    page.write_text(text)


def as_page(found: list[dict], n: int, seed: int) -> str:
    lived = [result for result in found if result["outcome"] != "killed"]
    same = [result for result in lived if result["name"] in reasons()]
    killed = len(found) - len(lived)
    words = (
        f"The package is broken in {n} places drawn by chance (seed {seed}), one at a time: a comparison, a sign, a "
        "constant, an argument, a statement. The tests that run the changed lines must fail. "
        f"They notice {killed} of {len(found)}, {killed / len(found):.1%}. Of the {len(lived)} others, {len(same)} "
        "change nothing that a test could see, for the reason that is given."
    )
    lines = ["## Mutants", "", "`make mutants` tries it anew, and goes on where it was stopped.", ""]
    lines += [*textwrap.wrap(words, WIDTH), "", "| package | mutants | noticed | the same | not noticed |"]
    lines += ["|---|---|---|---|---|"]
    for area in AREAS:
        mine = [result for result in found if result["file"].startswith(f"{area}/")]
        quiet = [result for result in mine if result in lived]
        equal = sum(result in same for result in quiet)
        lines += [f"| {area} | {len(mine)} | {len(mine) - len(quiet)} | {equal} | {len(quiet) - equal} |"]
    for title, rows in (("The same", same), ("Not noticed", [r for r in lived if r not in same])):
        if rows:
            lines += ["", f"### {title}", ""]
        for result in sorted(rows, key=lambda result: (result["file"], result["line"])):
            lines += [*_told(result), ""]
        lines = lines[:-1] if rows else lines
    return "\n".join(lines) + "\n"


def _told(result: dict) -> list[str]:
    head = f"`{result['file']}`, line {result['line']}. {reasons().get(result['name'], '')}".strip()
    code = [f"{mark} {result[side]}".rstrip() for mark, side in (("-", "before"), ("+", "after"))]
    return [*textwrap.wrap(head, WIDTH), "", f"{FENCE}diff", *code, FENCE]
