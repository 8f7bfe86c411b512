"""docs/explanation/architecture.md says what is: its lists are those that tools/walk.py makes now, and its files exist."""

import re
import sys
from functools import cache
from pathlib import Path

from loops import over

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "src" / "depthscope"
sys.path.insert(0, str(REPOSITORY / "tools"))
import walk

PAGE = walk.PAGE.read_text()
SECTIONS = (*(f"walk of {verb}" for verb in walk.VERBS), "calls up")


@cache
def found() -> dict[str, str]:
    return walk.sections(list(walk.VERBS))


@over("name", SECTIONS)
def test_lists_are_what_happens(name: str) -> None:
    """A new file on a walk, or a new call against the imports, is a change of the design: say it on the page.

    python tools/walk.py --write renews the lists.
    """
    assert walk.quoted(PAGE, name) == found()[name]


@over("verb", walk.VERBS)
def test_a_walk_passes_each_file_once_and_begins_with_the_verb(verb: str) -> None:
    """The number of the caller is lower: nobody is called by a file that the walk has not come to."""
    rows = [line.split()[:4] for line in found()[f"walk of {verb}"].splitlines()]
    assert len({file for _, file, *_ in rows}) == len(rows)
    assert all(caller in (walk.MODEL, walk.CALLER) or int(caller) < int(number) for number, _, _, caller in rows)


@over("file", [f for room in ("traces", "interventions") for f in sorted((ROOT / room).glob("[a-z]*.py"))])
def test_every_file_of_the_trunk_is_named(file: Path) -> None:
    assert re.search(rf"\b{file.name}\b", PAGE)


def test_files_that_are_named_exist() -> None:
    named = {path for path in re.findall(r"\b[a-z_]+/[a-z_0-9/]+\.py\b", PAGE)}
    assert [path for path in sorted(named) if not (ROOT / path).exists() and not (REPOSITORY / path).exists()] == []


@over("page", ["explanation/architecture.md", "how-to/add.md"])
def test_lines_fit(page: str) -> None:
    lines = (REPOSITORY / "docs" / page).read_text().splitlines()
    assert [line for line in lines if len(line) > walk.WIDTH] == []


def test_a_call_against_the_imports_is_seen() -> None:
    """The script itself: a file reaches what it imports, and what that imports; not what imports it."""
    assert "traces/watcher.py" in walk.reached("scans/scan.py")
    assert "scans/scan.py" not in walk.reached("traces/watcher.py")
