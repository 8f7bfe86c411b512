"""The coverage run.

    python tools/coverage/run.py [--only PATTERN] [--verb scan] [--json FILE] [--known FILE] [--table docs/coverage.md]

Every case runs in a process of its own, two at a time, within a limit of time. --executor dask:ADDRESS sends them to
workers that have this repository, and were started with --no-nanny: those of a nanny may not start processes.
"""

import argparse
import json
import os
import sys
from concurrent.futures import Executor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # as in tests/conftest.py
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.coverage.case import Case, all_cases
from tools.coverage.checks import VERBS, Finding
from tools.coverage.one_case import findings
from tools.coverage.table import as_page, show

from depthscope.training.executors import opened
from depthscope.training.handed_out import Call, HandedOut, Lost

AT_ONCE = 2
PAUSE = 1.0  # seconds between two looks at an executor
Findings = dict[str, dict[str, Finding]]


def run(cases: list[Case], verbs: tuple[str, ...], executor: Executor) -> Findings:
    """The findings of all cases, in their order."""
    hands: HandedOut[str] = HandedOut(executor)
    found: Findings = {}
    for case in cases:
        hands.submit(Call(case.name, case.name, findings, (case.name, verbs)))
    while len(found) < len(cases):
        for name, result in hands.ended(PAUSE):
            lost = isinstance(result, Lost)
            found[name] = {verb: Finding("crash", result.why) for verb in verbs} if lost else result
            print(f"\r{len(found)} of {len(cases)} {name:40.40s}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return {case.name: found[case.name] for case in cases}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--only", default="*", help="names of cases, such as 'bert*', or a group; several with a comma"
    )
    arguments.add_argument("--verb", action="append", choices=VERBS, help="only this verb; may be given again")
    arguments.add_argument("--json", type=Path, help="write the findings to a file")
    arguments.add_argument("--known", type=Path, help="a file of --json: its cases are not run again, but reported")
    arguments.add_argument("--table", type=Path, help="write the page of the documentation")
    arguments.add_argument("--executor", default="local", help="local, dask:ADDRESS or slurm:OPTIONS")
    chosen = arguments.parse_args()
    patterns = chosen.only.split(",")
    cases = [c for c in all_cases().values() if any(fnmatch(c.name, p) or fnmatch(c.group, p) for p in patterns)]
    verbs = tuple(verb for verb in VERBS if not chosen.verb or verb in chosen.verb)
    known = _read(chosen.known) if chosen.known else {}
    with opened(chosen.executor, AT_ONCE if chosen.executor == "local" else None, Path("out", "coverage")) as crew:
        found = run([case for case in cases if case.name not in known], verbs, crew.executor)
    found = {case.name: found.get(case.name) or known[case.name] for case in cases}
    show(cases, found)
    if chosen.json:
        chosen.json.write_text(json.dumps(_plain(cases, found), indent=1))
    if chosen.table:
        chosen.table.write_text(as_page(cases, found))


def _plain(cases: list[Case], found: Findings) -> list[dict[str, Any]]:
    return [
        {"case": c.name, "group": c.group, "repeats": c.repeats, **{v: vars(f) for v, f in found[c.name].items()}}
        for c in cases
    ]


def _read(file: Path) -> Findings:
    rows = json.loads(file.read_text())
    return {row["case"]: {verb: Finding(**row[verb]) for verb in VERBS if verb in row} for row in rows}


if __name__ == "__main__":
    main()
