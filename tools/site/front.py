"""The front page of the site: the README, with its links turned to pages of the site."""

import re
from pathlib import Path

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")


def front_page(root: Path) -> str:
    """docs/x.md becomes x.md; a file of the repository that is no page of the site keeps its name, without a link."""
    text = (root / "README.md").read_text(encoding="utf-8").replace("]: docs/", "]: ")
    return LINK.sub(_turned, text)


def _turned(found: re.Match[str]) -> str:
    before, target, after = found.groups()
    if target.startswith(("http", "#")):
        return found[0]
    if target.startswith("docs/"):
        return before + target.removeprefix("docs/") + after
    return f"`{before.strip('![]()')}`"
