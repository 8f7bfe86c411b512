"""Sequences of 32,768 tokens: time and memory of head statistics and of scans, one thread: benchmarks/long.py

No P is ever held: one head's would be 4 GiB in float32.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _ratio import line

import depthscope as ds
from depthscope.models.sizes import Sizes

N, D = 32768, 64
EVERY = 0.02  # seconds between two looks at the memory


def anonymous() -> float:
    """MiB that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(found.split()[1] for found in lines if found.startswith("RssAnon"))) / 1024


IDLE = anonymous()  # memory that was freed and not given back would hide what is needed next


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds, and how far memory is above that of the idle process at most."""
    peak, running = [0.0], True

    def look() -> None:
        while running:
            peak[0] = max(peak[0], anonymous() - IDLE)
            time.sleep(EVERY)

    watch = threading.Thread(target=look)
    watch.start()
    start = time.process_time()
    work()
    seconds, running = time.process_time() - start, False
    watch.join()
    return seconds, peak[0]


def said(what: str, work: Callable[[], object]) -> None:
    seconds, memory = measured(work)
    line(what, seconds, "CPU seconds", f"peak + {memory:.0f} MiB; n d in float64 is {N * D * 8 >> 20} MiB")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, N, D).unbind()
    said(f"sdpa of one head, n {N}, d {D}, causal", lambda: _sdpa(q, k, v))
    for causal in (True, False):
        way = "causal" if causal else "open"
        said(f"lambda_2(q=, k=) of one head, {way}", lambda causal=causal: ds.metrics.lambda_2(q=q, k=k, causal=causal))
        said(f"delta(q=, k=) of one head, {way}", lambda causal=causal: ds.metrics.delta(q=q, k=k, causal=causal))
    from depthscope.models.resolve import presets

    for name in ("llama", "classic"):
        model, inputs = presets()[name](Sizes(depth=2, width=D, heads=2, tokens=N, batch=1))
        what = f"of {name}, 2 blocks, d {D}, 2 heads"
        said(f"plain forward {what}", lambda model=model, inputs=inputs: _forward(model, inputs))
        for heads in (False, True):
            more = "all heads" if heads else "states alone"
            said(f"scan {what}, {more}", lambda model=model, inputs=inputs, heads=heads: _scan(model, inputs, heads))


def _scan(model: torch.nn.Module, inputs: torch.Tensor, heads: bool) -> None:
    scan = ds.scan(model, inputs, attention=heads)
    if heads:
        print(f"{'':26}delta {_row(scan['delta'])}, lambda_2 {_row(scan['lambda_2'])}", flush=True)


def _row(values: torch.Tensor) -> str:
    return " ".join(f"{value:.4f}" for value in values.tolist())


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@torch.no_grad()
def _forward(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model(ids)


if __name__ == "__main__":
    main()
