"""What mkdocs is told beside mkdocs.yml: pages of the nav by folder, notebooks as pages, formulas as MathML.

Formulas are turned into MathML while the site is built, so that pages need neither a script nor a font for them.
"""

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from front import front_page
from notebooks import as_markdown

ROOT = Path(__file__).parents[2]
NOTEBOOK = re.compile(r"(?<=\w)\.ipynb(?=[#)])")  # at the end of a link
FORMULA = re.compile(r'<(span|pre|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
HIDE = "---\nhide: [navigation]\n---\n\n"  # the front page has no neighbours to show
FIRST = {  # the order of a folder's pages where the alphabet is not the best one; the others follow
    "start": ["install", "first-scan", "reading-a-scan"],
    "tutorials": ["diagnose", "fix_and_check", "forecast_a_design", "fair_comparison"],
    "how-to": ["scan", "doctor", "fix", "forecast", "advise", "compare", "train", "monitor", "gate", "depth"],
    "explanation": ["similarity", "odds-and-gain", "critical-tau", "rank-collapse", "smoothing", "forecasts"],
    "papers": ["yu2023", "dong2021", "dovonon2024", "questions"],
    "notebook": ["yu2023", "dong2021", "dovonon2024"],
    "reference": ["cli", "metrics", "remedies", "models", "tasks", "experiments", "notation"],
}


def on_config(config: Any) -> Any:
    """Put the pages of a folder where the nav has `folder/*`; a folder without pages is left out."""
    config.nav = [item for item in map(_filled, config.nav) if item]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the front page, which is the README, and a page for each notebook."""
    files.append(File.generated(config, "index.md", content=HIDE + front_page(ROOT)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        page = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content=as_markdown(Path(file.abs_src_path))))
    return files


def on_page_markdown(text: str, **_: Any) -> str:
    """A notebook is a page of the site: links to it lead there."""
    return NOTEBOOK.sub(".md", text)


def on_page_content(text: str, **_: Any) -> str:
    """Formulas of arithmatex become MathML."""
    return FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    tex, display = html.unescape(found[3]).strip(), found[2] == "["
    made = convert(tex, display="block" if display else "inline")
    return f'<div class="formula">{made}</div>' if display else made


def _filled(item: dict[str, Any]) -> dict[str, Any] | None:
    [(title, held)] = item.items()
    if isinstance(held, str) and not held.endswith("*"):
        return item
    pages = [page for entry in ([held] if isinstance(held, str) else held) for page in _pages(entry)]
    return {title: pages} if pages else None


def _pages(entry: str) -> list[str]:
    if not entry.endswith("*"):
        return [entry] if (ROOT / "docs" / entry).exists() else []
    folder = entry.removesuffix("/*")
    here = [path for path in (ROOT / "docs" / folder).glob("*") if path.suffix in (".md", ".ipynb")]
    order = ["index", *FIRST.get(folder, [])]

    def turn(path: Path) -> tuple[int, str]:
        return (order.index(path.stem) if path.stem in order else len(order), path.stem)

    return [f"{folder}/{path.stem}.md" for path in sorted(here, key=turn)]
