"""The load run: what a scan of many batches and a long monitor keep, threads that scan at once, a fork after import.

    python tools/load/run.py [--share 1.0] [--write]

Memory is that of tensors and of Python objects which are alive, counted, and of the process as the system sees it.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # as in tests/conftest.py
sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil
import torch
from tools.reliability import Row, write
from torch import Tensor

import depthscope as ds

MB = 2**20
ROOM = 8 * MB  # by which a process may grow: caches of allocators
OBJECTS = 200  # by which the tensors that are alive may grow


def small() -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    return ds.models.classic(depth=4, d=32, h=4).eval(), torch.randn(4, 16, 32)


def alive() -> tuple[int, int]:
    """Tensors that are alive, and bytes of the process."""
    gc.collect()
    with warnings.catch_warnings():  # of torch, whose deprecated objects are looked at too
        warnings.simplefilter("ignore")
        tensors = sum(isinstance(one, Tensor) for one in gc.get_objects())
    return tensors, psutil.Process().memory_info().rss


def grown(act: Callable[[int], None], first: int, rest: int) -> tuple[int, int]:
    """By how many tensors and bytes more we are after `rest` more turns."""
    act(first)
    tensors, memory = alive()
    act(rest)
    now, after = alive()
    return now - tensors, after - memory


def many_batches(share: float) -> Row:
    """One scan of many batches after another: the first takes what as many ever need, the second keeps nothing."""
    model, X = small()
    count = round(1000 * share)

    def scan(batches: int) -> None:
        found = ds.scan(model, (X for _ in range(batches)))
        assert found.batches == batches

    tensors, memory = grown(scan, count, count)
    _hold(tensors, memory)
    return Row("a scan of 1,000 batches, after one of as many", count, _said(tensors, memory))


def long_monitor(share: float) -> Row:
    """A monitor of a training, which looks at every hundredth step."""
    model, X = small()
    count = round(10_000 * share)
    monitor = ds.Monitor(model, X, every=100)
    at = [0]

    def train(steps: int) -> None:
        for _ in range(steps):
            monitor.step(at[0])
            model(X)
            at[0] += 1

    tensors, memory = grown(train, count // 10, count - count // 10)
    kept = sum(curve.numel() * 8 for curve in monitor.history.curves.values())
    _hold(tensors, memory - kept)
    return Row("a monitor over 10,000 steps", count, _said(tensors, memory))


def threads(share: float) -> Row:
    """Eight threads that scan a model each give what each gives alone."""
    made = []
    for seed in range(8):
        torch.manual_seed(seed)
        made.append((ds.models.classic(depth=4, d=32, h=4).eval(), torch.randn(4, 16, 32)))
    alone = [ds.scan(*one).to_dict() for one in made]
    rounds = max(1, round(10 * share))
    with ThreadPoolExecutor(8) as crew:
        for _ in range(rounds):
            assert [one.to_dict() for one in crew.map(lambda one: ds.scan(*one), made)] == alone, "other numbers"
    return Row("8 threads that scan 8 models at once", 8 * rounds, "the numbers of each alone")


def fork(share: float) -> Row:
    """A process that is forked after a scan gives the same scan."""
    model, X = small()
    wanted = json.dumps(ds.scan(model, X).to_dict())
    times = max(1, round(8 * share))
    for _ in range(times):
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        child = multiprocessing.get_context("fork").Process(
            target=lambda theirs=theirs: theirs.send(json.dumps(ds.scan(model, X).to_dict()))
        )
        child.start()
        assert ours.poll(120), "the forked process hangs"
        assert ours.recv() == wanted, "other numbers"
        child.join()
    return Row("a fork after import and a scan", times, "the same numbers")


def _hold(tensors: int, memory: int) -> None:
    assert tensors <= OBJECTS and memory <= ROOM, f"{tensors} tensors and {memory / MB:.1f} MB more"


def _said(tensors: int, memory: int) -> str:
    return f"{tensors:+d} tensors alive, {memory / MB:+.1f} MB"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--share", type=float, default=1.0, help="this share of all turns")
    arguments.add_argument("--write", action="store_true", help="write the table of docs/reliability.md")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    rows = []
    for act in (fork, threads, many_batches, long_monitor):
        begin = time.monotonic()
        rows.append(act(chosen.share))
        print(f"{rows[-1].tried}: {rows[-1].came} ({time.monotonic() - begin:.0f} s)", flush=True)
    if chosen.write:
        write("load", "make load", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
