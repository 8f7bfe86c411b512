"""The coverage run.

    python tools/coverage/run.py [--only PATTERN] [--verb scan] [--json FILE] [--known FILE] [--table docs/coverage.md]

Every case runs in a process of its own, two at a time, within a limit of time.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import warnings
from fnmatch import fnmatch
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # as in tests/conftest.py
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import transformers
from tools.coverage.case import Case, all_cases
from tools.coverage.checks import VERBS, Finding, check
from tools.coverage.table import as_page, show

LIMIT = 120.0  # seconds a case
AT_ONCE = 2
Findings = dict[str, dict[str, Finding]]


def work(case: Case, verbs: tuple[str, ...], reply: Connection) -> None:
    """Check one case, and send what was found."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    try:
        reply.send(check(case, verbs))
    except Exception as error:  # the truth itself fails: the case must be mended
        why = f"NO TRUTH {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        reply.send({verb: Finding("none", why) for verb in verbs})


def run(cases: list[Case], verbs: tuple[str, ...]) -> Findings:
    """The findings of all cases, in their order."""
    context = multiprocessing.get_context("fork")  # what was imported is shared
    waiting, found, live = list(cases), {}, {}
    while waiting or live:
        while waiting and len(live) < AT_ONCE:
            case = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(case, verbs, theirs), daemon=True)
            process.start()
            theirs.close()
            live[ours] = (case, process, time.monotonic() + LIMIT)
        ready = wait(list(live), timeout=1.0)
        for pipe, (case, process, limit) in list(live.items()):
            if pipe not in ready and time.monotonic() < limit:
                continue
            found[case.name] = _received(pipe, verbs) if pipe in ready else _all(verbs, f"more than {LIMIT:.0f} s")
            process.kill()
            process.join()
            del live[pipe]
            print(f"\r{len(found)} of {len(cases)} {case.name:40.40s}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return {case.name: found[case.name] for case in cases}


def _received(pipe: Connection, verbs: tuple[str, ...]) -> dict[str, Finding]:
    try:
        return pipe.recv()
    except EOFError:
        return _all(verbs, "the process ended")


def _all(verbs: tuple[str, ...], why: str) -> dict[str, Finding]:
    return {verb: Finding("crash", why) for verb in verbs}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--only", default="*", help="names of cases, such as 'bert*', or a group; several with a comma"
    )
    arguments.add_argument("--verb", action="append", choices=VERBS, help="only this verb; may be given again")
    arguments.add_argument("--json", type=Path, help="write the findings to a file")
    arguments.add_argument("--known", type=Path, help="a file of --json: its cases are not run again, but reported")
    arguments.add_argument("--table", type=Path, help="write the page of the documentation")
    chosen = arguments.parse_args()
    patterns = chosen.only.split(",")
    cases = [c for c in all_cases().values() if any(fnmatch(c.name, p) or fnmatch(c.group, p) for p in patterns)]
    verbs = tuple(verb for verb in VERBS if not chosen.verb or verb in chosen.verb)
    known = _read(chosen.known) if chosen.known else {}
    found = run([case for case in cases if case.name not in known], verbs)
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
