"""Peak memory of a pass or a scan in a process of its own: python -m depthscope.benches.peak '{"cell": ...}'"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from depthscope.benches.cell import Cell
from depthscope.benches.grid import smallest
from depthscope.benches.measure import sides_of
from depthscope.benches.record import HEADS, PLAIN, SIDES, Peak
from depthscope.benches.subject import device_called, subject

STATUS, MARK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESIDENT = "resident memory of the process, weights included"
ALLOCATED = "memory that torch allocated on the device, weights included"


def can_be_read(device: torch.device) -> bool:
    """Whether the mark of the peak can be wiped after the model was built, which takes more than a pass."""
    return device.type == "cuda" or (device.type == "cpu" and os.access(MARK, os.W_OK))


def peaks_of(cell: Cell, device: torch.device, threads: int) -> Peak:
    """The peak of the plain pass and of both scans, each in a process of its own.

    A small scan comes first on every side: what the first scan of a process loads is told apart, as `once`.
    """
    told = {side: _in_a_process(cell, side, device, threads) for side in (PLAIN, *SIDES)}
    mib = {side: peak for side, (_, peak) in told.items()}
    return Peak(cell, mib, min(once for once, _ in told.values()), RESIDENT if device.type == "cpu" else ALLOCATED)


def _in_a_process(cell: Cell, side: str, device: torch.device, threads: int) -> tuple[float, float]:
    said = json.dumps({"cell": asdict(cell), "side": side, "device": str(device), "threads": threads})
    once, peak = json.loads(subprocess.check_output([sys.executable, "-m", __name__, said], text=True))
    return once, peak


def peak_during(run: Callable[[], object], device: torch.device | None = None) -> float:
    """Peak memory in MiB while `run` runs, on Linux or CUDA: the mark that came before is wiped."""
    gc.collect()
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) / 2**20
    MARK.write_text("5")
    run()
    line = next(one for one in STATUS.read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main(said: str) -> None:
    given = json.loads(said)
    torch.set_num_threads(given["threads"])
    cell, device = Cell(**given["cell"]), device_called(given["device"])
    small = sides_of(*subject(smallest(cell.kind), device))
    before = peak_during(small[PLAIN], device)
    once = peak_during(small[HEADS], device) - before
    sides = sides_of(*subject(cell, device))
    print(json.dumps([once, peak_during(sides[given["side"]], device)]))


if __name__ == "__main__":
    main(sys.argv[1])
