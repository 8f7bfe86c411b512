"""depthscope doctor: what was recognised in a model (blocks, attention, norm placement), and what was not, and why."""

from typing import Any

import typer

from depthscope.cli import options
from depthscope.errors import AttentionNotSeenError


def command(
    model: options.Model,
    depth: options.Depth = 2,
    width: options.Width = 64,
    heads: options.Heads = 4,
    tokens: options.Tokens = 16,
    batch: options.Batch = 2,
    seed: options.Seed = 0,
    inputs: options.Inputs = None,
    text: options.Text = None,
    blocks: options.Blocks = None,
) -> None:
    """Say what depthscope sees in a model: its blocks, its attention, where its norms sit; and what it does not see.

    Example: depthscope doctor my_package.models:build --inputs my_package.models:batch
    """
    from depthscope.models.resolve import resolve
    from depthscope.models.sizes import Sizes
    from depthscope.scans.scan import scan

    built, given = resolve(model, Sizes(depth, width, heads, tokens, batch, seed), inputs=inputs, text=text)
    try:
        found, problem = scan(built, given, blocks=blocks), None
    except AttentionNotSeenError as error:
        found, problem = scan(built, given, blocks=blocks, attention=False), str(error)
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
