"""docs/notebook: every entry says date, question, command and conclusion; links lead somewhere; lines are short."""

import re
from pathlib import Path

from loops import over

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "notebook").glob("*.md"))
ENTRIES = [page for page in PAGES if page.name != "index.md"]
INDEX = (DOCS / "notebook" / "index.md").read_text()


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


@over("page", ENTRIES)
def test_every_entry_has_its_four_lines_and_a_place_in_the_index(page: Path) -> None:
    for entry in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
        title = entry.partition("\n")[0]
        found = re.findall(r"^- \*\*(\w+):\*\* (.+)$", entry, re.MULTILINE)
        assert [name for name, _ in found[:4]] == ["Date", "Question", "Command", "Conclusion"], title
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", found[0][1])
        assert f"({page.name}#{slug(title)})" in INDEX, f"{title} is not in the index"


@over("page", [*PAGES, DOCS / "findings.md", *sorted((DOCS / "papers").glob("*.md"))])
def test_links_lead_somewhere_and_lines_are_short(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("http"):
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            assert file.exists(), f"{page.name}: {target}"
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else []
            assert not anchor or anchor in map(slug, headings), f"{page.name}: {target}"
    long = [line for line in text.splitlines() if len(line) > 100 and not line.startswith(("|", "#", "depthscope "))]
    assert long == []


def test_negative_results_have_an_index() -> None:
    negative = INDEX.partition("## Negative results")[2]
    assert negative.count("\n| ") > 20
    for page in ENTRIES:
        assert f"({page.name}#" in negative, f"{page.name} has no negative result in the index"
