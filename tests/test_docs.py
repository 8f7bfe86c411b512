"""The pages: what they link to is there, their lines are short, and what the reference is made of has not changed."""

import re
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
OLD = {"findings.md", "claims.md", "questions.md", "benchmarks.md", "coverage.md"}  # written before lines were short
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The names that a link may have after #: of headings as mkdocs and GitHub make them, of objects of the API."""
    text = prose(page)
    headings = re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower() for heading in headings]
    return {re.sub(r"\s+", "-", name) for name in plain} | set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


def dead(page: Path) -> list[str]:
    """The links of a page to files or anchors that are not there."""
    found = []
    for first, second in LINK.findall(prose(page)):
        target = first or second
        if target.startswith(("http://", "https://", "mailto:", "data:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_no_link_is_dead(page: Path) -> None:
    assert dead(page) == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# One two\n[x](#one-two) [y](#three) [z](b.md)\n\n[w]: c.md\n\n```\n[no](link.md)\n```\n")
    assert dead(page) == ["#three", "b.md", "c.md"]


def test_a_dead_link_of_the_built_site_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "tools" / "site")
    import links

    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h2 id="one">x</h2> <a href="../a.html#two">a</a> <img src="no.png">')
    (tmp_path / "a.html").write_text('<p id="two"> <a class="x" href="b#one">b</a> <a href="b/#three">b</a>')
    (tmp_path / "404.html").write_text('<a href="/nowhere.html">x</a> <a href="https://a.b/c">y</a>')
    assert links.dead(tmp_path) == ["a.html: b/#three", "b/index.html: no.png"]
    sys.modules.pop("links")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_lines_are_short(page: Path) -> None:
    """Tables, formulas and the API may be wider; the README may not."""
    if page.name in OLD and page.parent == DOCS:
        return
    free = ("|", "$$", "    options:", "([`") if page.parent != REPOSITORY else ()
    text = page.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if len(line) > 100 and not line.startswith(free or "\0")] == []


def test_the_readme_is_one_page() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_the_reference_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "tools" / "site")
    import reference

    made = reference.pages()
    stale = [name for name, text in made.items() if (DOCS / "reference" / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run make docs"
    assert {path.name for path in (DOCS / "reference").glob("*.md")} == {*made, "index.md"}
    sys.modules.pop("reference")


def test_every_public_name_has_a_place_in_the_reference() -> None:
    import depthscope as ds

    text = "".join(path.read_text() for path in (DOCS / "reference").glob("api-*.md"))
    missing = [name for name in ds.__all__ if name not in ds.PACKAGES and f"{{heading: {name}," not in text]
    assert missing == []
