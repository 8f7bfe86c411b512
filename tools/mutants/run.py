"""make mutants: the package is broken in many places, one at a time; which of them do the tests not notice?

    python tools/mutants/run.py [--n 300] [--seed 0] [--only traces/] [--seconds 30] [--again] [--table PAGE]

Mutants are drawn from all modules of metrics, theory, traces, scans, remedies, forecasts and training. Each runs in a
forked process, compiled in memory; the tests that run the changed block come first, to the first failure. At the end
every test that noticed one is run with nothing broken: should it fail, it is left out, and its mutants run again. What
is known of a mutant is kept in out/mutants/results.jsonl, so that a run that was stopped goes on; --again runs those
that lived for no known reason once more. Which test runs what is in out/mutants/seen, made by the first run (as long as
`make test`); after new tests: python tools/mutants/seen.py tests/that.py.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # as in tests/conftest.py
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.mutants.mutant import CONTROL, Mutant, controlled, sample, seen, shown
from tools.mutants.one import FAULT, KILLED, control, outcome, warm
from tools.mutants.seen import SEEN, WHOLE
from tools.mutants.source import ROOT
from tools.mutants.table import reason, write

RESULTS = SEEN.with_name("results.jsonl")


def facts(mutant: Mutant) -> dict:
    before, after = shown(mutant)
    return {"name": mutant.name, "file": mutant.file, "line": mutant.line, "before": before, "after": after}


def known(mutants: list[Mutant]) -> dict[str, dict]:
    """What became of each mutant, the last word of it; nothing of one whose line was edited since."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    found = {result["name"]: result for result in map(json.loads, lines)}
    now = {mutant.name: facts(mutant) for mutant in mutants if mutant.name in found}
    return {name: found[name] | now[name] for name in now if found[name]["after"] == now[name]["after"]}


def settled(result: dict | None, again: bool) -> bool:
    """Whether a mutant need not be tried: what became of it is known. again: those that live are, for no reason."""
    if result is None or result["outcome"] == FAULT:
        return False
    return not again or result["outcome"] == KILLED or bool(reason(result))


def try_one(mutant: Mutant, seconds: float) -> dict:
    result = facts(mutant) | outcome(mutant, seconds)
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")
    return result


def try_all(todo: list[Mutant], done: dict[str, dict], seconds: float) -> None:
    for i, mutant in enumerate(todo):
        done[mutant.name] = result = try_one(mutant, seconds)
        print(f"{i + 1} of {len(todo)} {result['outcome']:6} {mutant.file}:{mutant.line} {result.get('by', '')}")
        if result["outcome"] != KILLED:
            print(f"    {mutant.name}\n    - {result['before']}\n    + {result['after']}")
        sys.stdout.flush()


def judge(found: list[dict]) -> set[str]:
    """Run the tests that noticed a mutant with nothing broken; those that fail, then or earlier."""
    known = controlled()
    new = {result["by"] for result in found if result["outcome"] == KILLED} & set(seen())
    new = sorted(new - set(known["sound"]), key=lambda test: seen()[test]["time"])  # not as they stand in their files
    failed = control(new)
    known = {"sound": sorted({*known["sound"], *new} - {*failed}), "unsound": sorted({*known["unsound"], *failed})}
    CONTROL.write_text(json.dumps(known, indent=1))
    seen.cache_clear()
    return set(known["unsound"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--n", type=int, default=300, help="mutants in the sample")
    arguments.add_argument("--seed", type=int, default=0, help="which sample")
    arguments.add_argument("--only", default="", help="of the sample, those whose name has this expression")
    arguments.add_argument("--seconds", type=float, default=30, help="of tests, after which a mutant is said to live")
    arguments.add_argument("--again", action="store_true", help="run those that lived for no known reason again")
    arguments.add_argument("--table", type=Path, help="write the section of the documentation")
    chosen = arguments.parse_args()
    if not WHOLE.exists():
        subprocess.run([sys.executable, ROOT / "tools" / "mutants" / "seen.py"], cwd=ROOT)
    if not WHOLE.exists():
        raise SystemExit("mutants: which test runs what must be known of all tests; that run was stopped. Start again.")
    everything = sample(chosen.n, chosen.seed)
    done = known(everything)
    wanted = [mutant for mutant in everything if re.search(chosen.only, mutant.name)]
    todo = [mutant for mutant in wanted if not settled(done.get(mutant.name), chosen.again)]
    warm()
    while True:
        try_all(todo, done, chosen.seconds)
        unsound = judge([done[mutant.name] for mutant in wanted])
        todo = [mutant for mutant in wanted if done[mutant.name].get("by") in unsound]
        if not todo:
            break
    found = [done[mutant.name] for mutant in everything if mutant.name in done]
    print(dict(Counter(result["outcome"] for result in found)))
    if faults := [result["name"] for result in found if result["outcome"] == FAULT]:
        raise SystemExit(f"mutants: nothing is known of {faults}; what went wrong is in {RESULTS}.")
    if chosen.table:
        write(chosen.table, found, chosen.n, chosen.seed)


if __name__ == "__main__":
    main()
