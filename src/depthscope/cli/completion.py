"""What a shell may complete: names from shelves.json, so that pressing a key costs no import of torch."""

import json
from pathlib import Path

LISTED = Path(__file__).with_name("shelves.json")


def presets(incomplete: str) -> list[str]:
    """Models that begin so."""
    _, rows = json.loads(LISTED.read_text(encoding="utf-8"))["models"]
    return [name for kind, name, _ in rows if kind == "preset" and name.startswith(incomplete)]


def tasks(incomplete: str) -> list[str]:
    _, rows = json.loads(LISTED.read_text(encoding="utf-8"))["tasks"]
    return [name for name, _ in rows if name.startswith(incomplete)]


def experiments(incomplete: str) -> list[str]:
    """Experiments, their papers, and all."""
    _, rows = json.loads(LISTED.read_text(encoding="utf-8"))["experiments"]
    names = [name for name, _ in rows]
    papers = dict.fromkeys(name.partition("/")[0] for name in names)
    return [name for name in ("all", *papers, *names) if name.startswith(incomplete)]
