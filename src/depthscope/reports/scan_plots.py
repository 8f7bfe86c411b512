"""The picture of one or more scans: similarity, diversity on a log scale, what each step adds, how attention mixes."""

from itertools import cycle
from typing import Any

import torch

from depthscope.reports.chart import COLOURS
from depthscope.reports.rows import called, hidden
from depthscope.scans.record import Scan
from depthscope.scans.verdict import floor_of


def draw_scans(figure: Any, *scans: Scan) -> None:
    """Four panels; steps and heads are those of the first scan."""
    ((similar, diverse), (steps, heads)) = figure.subplots(2, 2)
    for scan, colour in zip(scans, cycle(COLOURS), strict=False):
        _similarity(similar, scan, colour, first=scan is scans[0])
        diverse.semilogy(
            scan.states["t_div"].clamp_min(1e-32), color=colour, label=f"{called(scan)}: {scan.verdict.status}"
        )
        _hidden(diverse, scan, colour)
    floor = floor_of(scans[0].dtype)
    if any(float(scan.states["t_div"].nan_to_num(1.0).min()) < 1e3 * floor for scan in scans):
        diverse.axhline(floor, color="0.6", lw=0.8, ls=":", label=f"floor of {scans[0].dtype}")
    _steps(steps, scans[0])
    _heads(heads, scans[0])
    similar.set(title="token similarity", xlabel="block", ylim=(-0.02, 1.02))
    diverse.set(title="token diversity t_div", xlabel="block")
    for ax in (similar, diverse, steps, heads):
        ax.grid(alpha=0.25)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=8, frameon=False)


def _similarity(ax: Any, scan: Scan, colour: str, *, first: bool) -> None:
    ax.plot(scan.states["t_sim"], color=colour, label=f"t_sim, {called(scan)}")
    if "t_cos" in scan.states:
        ax.plot(scan.states["t_cos"], color=colour, ls="--", lw=1, label="t_cos (dashed)" if first else None)

    if scan.massive:
        rest = 1 - scan.states["t_div_rest"]
        ax.plot(rest, color=colour, ls=":", lw=2, label="t_sim without massive tokens (dotted)" if first else None)
        largest = max(scan.massive, key=lambda one: one.times * one.sequences)
        at = (largest.block, float(scan.states["t_sim"][largest.block]))
        words = f"token {largest.position}: {largest.times:.0f} x"
        ax.annotate(words, at, xytext=(4, 6), textcoords="offset points", fontsize=8, color=colour)


def _hidden(ax: Any, scan: Scan, colour: str) -> None:
    """Diversity without what hides it, where that differs."""
    if scan.massive:
        rest = scan.states["t_div_rest"].clamp_min(1e-32)
        ax.semilogy(rest, color=colour, ls=":", lw=2, label="without massive tokens (dotted)")
    if "core" in hidden(scan):
        core = scan.states["t_div_core"].clamp_min(1e-32)
        ax.semilogy(core, color=colour, ls="-.", lw=1, label="t_div_core: without outliers and shared channels")


def _steps(ax: Any, scan: Scan) -> None:
    ax.set(title=f"what each step adds to log(t_sim / t_div), {called(scan)}", xlabel="block")
    for step in scan.step_names:
        row = scan.steps[step]
        if "xi_1" in row:
            blocks = torch.arange(1, scan.depth + 1)
            ax.plot(blocks, (row["xi_1"] / row["xi_2"]).log(), marker=".", ms=3, lw=1, label=step)
    ax.axhline(0, color="0.6", lw=0.8)


def _heads(ax: Any, scan: Scan) -> None:
    ax.set(title=f"attention, mean over heads, {called(scan)}", xlabel="block")
    for name in ("delta", "lambda_2", "omega"):
        if name in scan.heads:
            ax.plot(torch.arange(1, scan.depth + 1), scan[name], marker=".", ms=3, lw=1, label=name)
