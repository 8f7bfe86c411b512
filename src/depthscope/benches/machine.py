"""The machine: its threads, its free memory, its name, and how fast it multiplies."""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

PRODUCT = 512  # side of the matrices by which the rate of products is found


def operations_per_second(device: torch.device) -> float:
    """The rate of matrix products, roughly: it foresees times and is in no result."""
    A = torch.randn(PRODUCT, PRODUCT, device=device)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        float((A @ A).sum())  # waits for the device
        times.append(time.perf_counter() - start)
    return 2 * PRODUCT**3 / min(times)


@contextmanager
def threads_of_torch(count: int | None) -> Iterator[None]:
    """So many threads of torch, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory(device: torch.device) -> float | None:
    """Bytes that are free on the device; None where nobody tells."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    told = Path("/proc/meminfo")
    if device.type != "cpu" or not told.exists():
        return None
    line = next((one for one in told.read_text().splitlines() if one.startswith("MemAvailable")), None)
    return None if line is None else 1024.0 * int(line.split()[1])


def processor() -> str:
    told = Path("/proc/cpuinfo")
    names = [one for one in told.read_text().splitlines() if one.startswith("model name")] if told.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
