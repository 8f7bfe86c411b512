"""What every experiment gave at its small size, and how far each number may be from that: golden.json.

A number may move as far as rounding moves it, and no further. How far that is was measured: the same experiment twice,
with two threads, and with the instructions of an old CPU. A tolerance is SLACK times the largest difference found,
and at least 1e-6 of the number. Training multiplies rounding, differently on every CPU: where an optimizer made a step,
the tolerance is at least 20 % of the number, and 0.02 for one that is no rounding (accuracies move by whole samples).

python tests/experiments/golden.py [NAME ...]      renew the numbers, of all or of these experiments: a change that moves
                                                   numbers on purpose does this and says so. Tolerances are kept.
python tests/experiments/golden.py --measure ...   renew the tolerances too, about 8 minutes for all experiments.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import depthscope as ds

FILE = Path(__file__).with_name("golden.json")
SLACK = 20
OLD_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
ONE = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}  # as in conftest.py
WAYS = [ONE, ONE, ONE | {"OMP_NUM_THREADS": "2"}, ONE | OLD_CPU]  # the first one gives the numbers

Golden = dict[str, list[float]]  # what is claimed -> the number and its tolerance


def read() -> dict[str, Golden]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def within(value: float, others: list[float], *, trained: bool) -> float:
    """How far a number may be from its golden value."""
    tolerance = max(SLACK * max(abs(other - value) for other in others), 1e-6 * abs(value), 1e-12)
    if not trained:
        return tolerance
    return max(tolerance, 0.2 * abs(value), 0.02 if abs(value) > 1e-3 else 1e-6)


def run(name: str) -> dict:
    """The numbers of one experiment, and whether it trained; in a process of its own, so that no other was before it."""
    steps: list[bool] = []
    register_optimizer_step_post_hook(lambda *_: steps.append(True))
    torch.manual_seed(0)
    claims = ds.reproduce(name, smoke=True).claims
    return {"trained": bool(steps), "values": {claim.says: claim.value for claim in claims}}


def run_all(names: list[str], way: dict[str, str]) -> dict[str, dict]:
    """run() of every name, in Python processes that compute in this way."""
    command = [sys.executable, __file__, "--run", *names]
    return json.loads(subprocess.run(command, env=os.environ | way, stdout=subprocess.PIPE, check=True).stdout)


def renew(names: list[str], *, measure: bool) -> None:
    kept = read()
    first = run_all(names, WAYS[0])
    unknown = [n for n in names if measure or not set(first[n]["values"]) <= set(kept.get(n, {}))]
    ways = [run_all(unknown, way) for way in WAYS[1:]] if unknown else []
    for name in names:
        values, trained = first[name]["values"], first[name]["trained"]
        kept[name] = {
            says: [value, within(value, [way[name]["values"][says] for way in ways], trained=trained)]
            if name in unknown
            else [value, kept[name][says][1]]
            for says, value in values.items()
        }
    FILE.write_text("{\n" + ",\n".join(told(name, kept[name]) for name in ds.experiments.names()) + "\n}\n")


def told(name: str, numbers: Golden) -> str:
    """One line for each number."""
    lines = [f"  {json.dumps(says)}: [{value!r}, {tolerance:.1e}]" for says, (value, tolerance) in numbers.items()]
    return f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}"


def main(words: list[str]) -> None:
    names = [word for word in words if not word.startswith("--")] or ds.experiments.names()
    if "--run" in words:
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            print(json.dumps(dict(zip(names, pool.map(run, names, chunksize=1), strict=True))))
    else:
        renew(names, measure="--measure" in words)


if __name__ == "__main__":
    main(sys.argv[1:])
