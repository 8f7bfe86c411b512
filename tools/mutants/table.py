"""The section "Mutants" of a page, between two markers."""

import json
import textwrap
from pathlib import Path

from tools.mutants.source import AREAS

BEGIN, END = "<!-- mutants -->", "<!-- end of mutants -->"
REASONS = Path(__file__).with_name("equivalent.json")  # mutants that change nothing that counts, and why; by hand
WIDTH = 100
FENCE = "```"


def reason(result: dict) -> str:
    """Why no test can notice it, or "": written for this change of this line, and of no other that has its name now."""
    for known in json.loads(REASONS.read_text()):
        if all(known[fact] == result[fact] for fact in ("name", "before", "after")):
            return known["reason"]
    return ""


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
    same = [result for result in lived if reason(result)]
    killed = len(found) - len(lived)
    ended = sum(result.get("by", "").startswith(("no end", "exit")) for result in found)
    words = (
        f"The package is broken in places drawn by chance (seed {seed}, {n} places), one at a time: a comparison, a "
        "sign, a constant, an argument, a statement. The tests that run the changed lines must fail. "
        f"They notice {killed} of {len(found)}, {killed / len(found):.1%}; {ended} of these by a test that comes to no "
        f"end. Of the {len(lived)} others, {len(same)} change nothing that a test could see, for the reason that is "
        f"given: without them it is {killed / max(1, len(found) - len(same)):.1%}."
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
    head = f"`{result['file']}`, line {result['line']}. {reason(result)}".strip()
    code = [f"{mark} {result[side]}".rstrip() for mark, side in (("-", "before"), ("+", "after"))]
    return [*textwrap.wrap(head, WIDTH), "", f"{FENCE}diff", *code, FENCE]
