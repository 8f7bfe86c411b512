"""The fault run: commands on tiny settings meet kills, full disks, damage, company, a jumping clock, a hanging worker.

    python tools/faults/run.py [--only PATTERN] [--kills 50] [--seed 0] [--write]

It ends by itself: the number of faults is fixed, and no command may take longer than five minutes.
"""

import argparse
import os
import sys
import time
import traceback
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # as in tests/conftest.py
sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.faults.commands import COMMANDS
from tools.faults.kills import killed
from tools.faults.others import ALL, Reference
from tools.reliability import Row, write


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="*", help="names, such as 'kill_*' or damage")
    arguments.add_argument("--kills", type=int, default=50, help="of all commands together")
    arguments.add_argument("--share", type=float, default=1.0, help="this share of all other faults")
    arguments.add_argument("--seed", type=int, default=0, help="other moments and other damage")
    arguments.add_argument("--write", action="store_true", help="write the table of docs/reliability.md")
    chosen = arguments.parse_args()
    rows, bad = [], 0
    shares = [chosen.kills // 4 + (k < chosen.kills % 4) for k in range(4)]
    with ExitStack() as stack:
        wanted: list[Reference] = []

        def other(name: str) -> Row:
            wanted[:] = wanted or [Reference(stack)]
            return ALL[name][0](max(1, round(ALL[name][1] * chosen.share)), Random(f"{name} {chosen.seed}"), wanted[0])

        named = {
            f"kill_{one.name}": lambda one=one, kills=kills: killed(one, kills, Random(f"{one.name} {chosen.seed}"))
            for one, kills in zip(COMMANDS, shares, strict=True)
        } | {name: lambda name=name: other(name) for name in ALL}
        for name, act in named.items():
            if not fnmatch(name, chosen.only):
                continue
            begin = time.monotonic()
            try:
                rows.append(act())
                print(f"{name}: {rows[-1].times} times; {rows[-1].came} ({time.monotonic() - begin:.0f} s)", flush=True)
            except Exception:
                bad += 1
                print(f"{name}: LOST\n{traceback.format_exc()}", flush=True)
    if chosen.write and not bad:
        write("faults", "make faults", rows)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
