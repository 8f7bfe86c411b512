"""Maps of collapse, by two numbers: which (gain, tau) keep tokens apart, and how deep (n, alpha) can go."""

from typing import Any

import torch
from torch import Tensor

from depthscope.junctions import POST_NORM, declared
from depthscope.theory.depth import critical_tau
from depthscope.theory.stacks import similarity_by_depth


def phases(gains: Tensor, taus: Tensor, *, depth: int, n: int, **numbers: Any) -> Tensor:
    """t_sim after `depth` blocks for every attention gain alpha^2 s_A and every tau at block_out, (taus, gains)."""
    rows = [[_last(depth=depth, n=n, s_A=g, tau=t, **numbers) for g in gains.tolist()] for t in taus.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def collapse_depths(ns: Tensor, alphas: Tensor, *, most: int, threshold: float = 0.99, **numbers: Any) -> Tensor:
    """The first block with t_sim above the threshold for every n and alpha, (alphas, ns); inf beyond `most` blocks."""
    rows = []
    for alpha in alphas.tolist():
        curves = [similarity_by_depth(depth=most, n=int(n), alpha=alpha, **numbers) for n in ns.tolist()]
        lost = [(curve >= threshold).nonzero() for curve in curves]
        rows.append([float(found[0]) if len(found) else torch.inf for found in lost])
    return torch.tensor(rows, dtype=torch.float64)


def draw_phases(ax: Any, *, depth: int, n: int, points: Any = (), **numbers: Any) -> None:
    """points: (gain, tau, t_sim) of models, drawn in the colour of their own t_sim. The line is that of post-norm."""
    gains, taus = torch.linspace(0.02, 4, 48, dtype=torch.float64), torch.linspace(0, 1, 48, dtype=torch.float64)
    shown = phases(gains, taus, depth=depth, n=n, **numbers)
    mesh = ax.pcolormesh(gains.numpy(), taus.numpy(), shown.numpy(), cmap="RdYlBu_r", vmin=0, vmax=1, shading="nearest")
    junctions = numbers.get("junctions") or declared(numbers.get("wiring", "post_norm"))
    if junctions(depth, 1) == POST_NORM:
        ax.plot(gains, critical_tau(1 + gains), color="k", lw=1.2, label="critical tau, 1 - 1/sqrt(1 + gain)")
        ax.legend(fontsize=7, loc="lower right")
    for gain, tau, t_sim in points:
        ax.scatter([gain], [tau], c=[t_sim], cmap="RdYlBu_r", vmin=0, vmax=1, edgecolors="k", linewidths=0.8, s=42)
    ax.set(
        title=f"t_sim after {depth} blocks, n {n}", xlabel="gain of attention, alpha² s_A", ylabel="tau at block_out"
    )
    ax.figure.colorbar(mesh, ax=ax, label="t_sim; circles: models")


def draw_depths(ax: Any, *, most: int = 100, points: Any = (), **numbers: Any) -> None:
    """points: (n, alpha, block at which t_sim passed 0.99), written beside their points."""
    ns, alphas = 2 ** torch.arange(2, 11), torch.logspace(-1, 0.5, 25, dtype=torch.float64)
    depths = collapse_depths(ns, alphas, most=most, **numbers)
    mesh = ax.pcolormesh(
        ns.numpy(), alphas.numpy(), depths.clamp(max=most).numpy(), cmap="viridis", shading="nearest", vmin=0, vmax=most
    )
    for n, alpha, block in points:
        ax.scatter([n], [alpha], color="w", edgecolors="k", s=24)
        ax.annotate(f"{block:.0f}", (n, alpha), xytext=(4, 4), textcoords="offset points", color="w", fontsize=7)
    ax.set(xscale="log", yscale="log", title="blocks until t_sim passes 0.99", xlabel="tokens n", ylabel="alpha")
    ax.figure.colorbar(mesh, ax=ax, label=f"blocks ({most}: later, or never)")


def _last(**numbers: Any) -> float:
    return float(similarity_by_depth(**numbers)[-1])
