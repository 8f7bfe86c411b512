"""depthscope doctor: what was recognised in a model (blocks, attention, norm placement), and what was not, and why."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from depthscope.cli.options import Chosen
from depthscope.errors import AttentionNotSeenError


@dataclass(frozen=True, kw_only=True)
class Small(Chosen):
    """A model that is small enough to be looked at in a moment."""

    depth: Annotated[int, typer.Option(help="Blocks of a preset.")] = 2
    width: Annotated[int, typer.Option(help="Width d of a preset.")] = 64
    tokens: Annotated[int, typer.Option("--tokens", "--n", help="Tokens n in each sequence.")] = 16
    batch: Annotated[int, typer.Option(help="Sequences.")] = 2


def command(model: Small) -> None:
    """Say what depthscope sees in a model: its blocks, its attention, where its norms sit; and what it does not see.

    Example: depthscope doctor my_package.models:build --inputs my_package.models:batch
    """
    from depthscope.scans.scan import scan

    built, given = model.resolved()
    try:
        found, problem = scan(built, given, blocks=model.blocks), None
    except AttentionNotSeenError as error:
        found, problem = scan(built, given, blocks=model.blocks, attention=False), str(error)
    for name, value in findings(found, problem):
        typer.echo(f"{name:>14}  {value}")


def findings(scan: Any, problem: str | None) -> list[tuple[str, str]]:
    """Name and finding, line by line."""
    shared = len(set(scan.block_names)) < scan.depth
    axis = {0: "first (time-first)", 1: "second (batch-first)"}.get(scan.token_axis, str(scan.token_axis))
    heads, seen = max(scan.head_counts), sum(count > 0 for count in scan.head_counts)
    causal = {True: "causal", False: "not causal", None: "in part causal"}[scan.causal]
    lines = [
        ("model", scan.model),
        ("blocks", f"{scan.depth} x {scan.blocks}" + (" (one module, called again and again)" if shared else "")),
        ("token axis", f"{axis}, {scan.tokens} tokens of width {scan.width}"),
        ("attention", problem or f"seen in {seen} of {scan.depth} blocks, {heads} heads, {causal}"),
        ("norms", scan.placement + (f", residual x {scan.residual_scale:.3g}" if scan.residual_scale != 1 else "")),
        ("final norm", "yes, measured as its own site" if scan.final_norm else "none seen"),
        ("steps", ", ".join(scan.step_names) or "not told apart"),
    ]
    return lines + [("note", note) for note in scan.notes]
