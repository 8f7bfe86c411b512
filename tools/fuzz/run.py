"""The fuzz run: hostile, damaged and odd input for everything that reads, and generated models for every verb.

    python tools/fuzz/run.py [--only PATTERN] [--share 0.1] [--seed 0] [--case KIND NUMBER] [--write]

It ends by itself: the number of cases is fixed. A finding is any error that depthscope does not raise on purpose.
"""

import argparse
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # as in tests/conftest.py
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "agg")
sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.fuzz import loaders, metrics, models, records, verbs  # noqa: F401
from tools.fuzz.case import KINDS, tried
from tools.reliability import Row, write


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="*", help="kinds of cases, such as 'record_*'")
    arguments.add_argument("--share", type=float, default=1.0, help="this share of all cases")
    arguments.add_argument("--seed", type=int, default=0, help="other cases")
    arguments.add_argument("--case", nargs=2, help="one case, with its traceback")
    arguments.add_argument("--write", action="store_true", help="write the table of docs/reliability.md")
    chosen = arguments.parse_args()
    warnings.simplefilter("ignore")
    if chosen.case:
        print(tried(chosen.case[0], int(chosen.case[1])))
        return 0
    rows = [
        report(name, range(chosen.seed, chosen.seed + max(1, round(KINDS[name][1] * chosen.share))))
        for name in KINDS
        if fnmatch(name, chosen.only)
    ]
    if chosen.write:
        write("fuzz", "make fuzz", rows)
    return int(any(row.lost != "nothing" for row in rows))


def report(name: str, numbers: range) -> Row:
    """Try the cases of a kind, and print what came."""
    came: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    begin = time.perf_counter()
    for number in numbers:
        try:
            came[tried(name, number)] += 1
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
            places.setdefault(where, []).append(f"{number}: {str(error)[:150]}")
    found = ", ".join(f"{word} {count}" for word, count in sorted(came.items()))
    bad = sum(map(len, places.values()))
    print(f"{name}: {len(numbers)} cases, {found}, findings {bad}; {time.perf_counter() - begin:.0f} s", flush=True)
    for where, cases in sorted(places.items(), key=lambda item: -len(item[1])):
        print(f"  {len(cases)} x {where}; {cases[0]}", flush=True)
    said = " ".join(str(KINDS[name][0].__doc__).split()).rstrip(".")
    return Row(f"`{name}`: {said}", len(numbers), found, f"{bad} findings" if bad else "nothing")


if __name__ == "__main__":
    sys.exit(main())
