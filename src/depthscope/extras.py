"""How a missing optional package is installed: by its own name, which works whether or not an index knows ours."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

NAME = "depthscope"


def install(*extras: str) -> str:
    """The command that brings what extras need: install("report") is "pip install 'jinja2>=3.1'"."""
    try:
        lines = requires(NAME) or []
    except PackageNotFoundError:  # run from its sources, without an installation
        lines = []
    found = dict.fromkeys(one for extra in extras for one in _needs(extra, lines))
    return "pip install " + " ".join(f"'{one}'" for one in found or [f"{NAME}[{','.join(extras)}]"])


def _needs(extra: str, lines: list[str]) -> Iterator[str]:
    """What one extra needs; an extra that names others of ours is replaced by what these need."""
    for line in lines:
        wanted, _, marker = line.partition(";")
        if f"extra=={extra}" not in marker.replace(" ", "").replace("'", "").replace('"', "").split("and"):
            continue
        if wanted.startswith(f"{NAME}["):
            for other in wanted.strip().removeprefix(f"{NAME}[").rstrip("]").split(","):
                yield from _needs(other.strip(), lines)
        else:
            yield wanted.strip()
