"""Dead links of the built site: python tools/site/links.py out/site

mkdocs checks links between Markdown files. This reads the pages that were built: every link to a page, an anchor or a
picture must lead to something that is there. Links to other sites are not followed.
"""

import html
import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r"<(?:a|img|link|script)\b[^>]*?\s(?:href|src)=\"([^\"]*)\"")
NAME = re.compile(r"\s(?:id|name)=\"([^\"]+)\"")
ELSEWHERE = ("http:", "https:", "mailto:", "data:")


def dead(site: Path) -> list[str]:
    """Every link that leads nowhere, as "page: link"; 404.html has addresses of a server."""
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    return [f"{page.relative_to(site)}: {link}" for page in pages for link in _links(page) if not _leads(page, link)]


def _links(page: Path) -> list[str]:
    found = [html.unescape(link) for link in LINK.findall(page.read_text("utf-8"))]
    return [link for link in found if not link.startswith(ELSEWHERE)]


def _leads(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / unquote(name)).resolve() if name else page
    target = target / "index.html" if target.is_dir() else target
    return target.exists() and (not anchor or target.suffix != ".html" or unquote(anchor) in _names(target))


@cache
def _names(page: Path) -> set[str]:
    return set(NAME.findall(page.read_text("utf-8")))


if __name__ == "__main__":
    gone = dead(Path(sys.argv[1]))
    sys.exit("dead links:\n" + "\n".join(gone) if gone else 0)
