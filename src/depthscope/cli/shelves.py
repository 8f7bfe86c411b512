"""The rows of depthscope ls, from the shelves themselves. Renew the file that is shown in their place with

python -m depthscope.cli.shelves > src/depthscope/cli/shelves.json
"""

import json
from typing import Any

Rows = tuple[list[str], list[list[str]]]  # names of the columns, cells


def rows_of(shelf: str) -> Rows:
    """What stands on a shelf."""
    return SHELVES[shelf]()


def as_json() -> str:
    """All shelves: the text of shelves.json, a row a line."""
    told = []
    for name in SHELVES:
        columns, rows = rows_of(name)
        lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
        told.append(f'"{name}": [{json.dumps(columns)}, [\n{lines}\n]]')
    return "{\n" + ",\n".join(told) + "\n}\n"


def metrics() -> Rows:
    from depthscope.registry import TABLES

    def row(f: Any) -> list[str]:
        facts = f.facts
        asked = "" if facts.default else "on request"
        return [facts.name, facts.kind, asked, facts.summary]

    ordered = sorted(
        TABLES["metric"].values(), key=lambda f: (["state", "step", "attention"].index(f.facts.kind), f.facts.name)
    )
    return ["metric", "of one", "", "what it says"], [row(f) for f in ordered]


def remedies() -> Rows:
    from depthscope.models.design import shelves
    from depthscope.registry import TABLES

    def causal(remedy: Any) -> str:
        if remedy.at in ("attn", "weights", "values"):
            return "safe"
        return _pairs(remedy.causal) if remedy.causal else "no form"

    def about(thing: Any) -> str:  # the last part of some lines is the source
        *formula, source = _first_line(thing).split("    ")
        return "   ".join(formula or [source]).rstrip(".") + f"\n{thing.source}"

    shelves()
    ops = [
        [name, f"at {r.at}\ncausal: {causal(r)}\noff: {_pairs(r.off)}", about(r)]
        for name, r in sorted(TABLES["remedy"].items())
    ]
    wirings = [
        [name, f"wiring\ncausal: safe\noff: {w.plain}", about(w)]
        for name, w in sorted(TABLES["wiring"].items())
        if w.plain
    ]
    return ["remedy", "site, causal, off", "formula, source"], ops + wirings


def models() -> Rows:
    from depthscope.models.design import shelves
    from depthscope.models.resolve import presets
    from depthscope.registry import TABLES

    shelves()
    rows = [["preset", name, _first_line(build)] for name, build in sorted(presets().items())]
    for table in ("wiring", "attention", "activation", "weight law"):
        rows += [[table, name, _first_line(part)] for name, part in sorted(TABLES[table].items())]
    return ["", "name", "what it is"], rows


def experiments() -> Rows:
    from depthscope.experiments.found import shelf

    return ["experiment", "what it shows"], [list(row) for row in shelf()]


def tasks() -> Rows:
    from depthscope.registry import TABLES
    from depthscope.training.tasks import names

    return ["task", "what it is"], [[name, _first_line(TABLES["task"][name])] for name in names()]


def _pairs(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()
    )


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


SHELVES = {"metrics": metrics, "remedies": remedies, "models": models, "experiments": experiments, "tasks": tasks}

if __name__ == "__main__":
    print(as_json(), end="")
