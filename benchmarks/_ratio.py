"""Ratios of times: both sides alternate in one process, and the fastest run of each counts, because noise only adds."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn


def ratio(
    slow: Callable[[], object],
    fast: Callable[[], object],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Fastest time of the first over that of the second, the two alternating; and the second's in seconds.

    clock: time.process_time counts what this process computes, also where others run beside it.
    """
    slow(), fast()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for f, column in zip((slow, fast), times, strict=True):
            start = clock()
            f()
            column.append(clock() - start)
    a, b = map(min, times)
    return a / b, b


def training_step(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], None]:
    """One step of a classifier: forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def line(what: str, value: float, limit: str, more: str = "") -> None:
    """The number, its limit and what it is; more on a line of its own, so that all lines fit on a page."""
    print(f"{value:9.2f}  {limit:<13}  {what}", flush=True)
    if more:
        print(f"{'':26}{more}", flush=True)
