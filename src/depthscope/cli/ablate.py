"""depthscope ablate: which part of a block keeps the tokens apart? Take them out, in all combinations, and measure."""

from typing import Annotated, Any

import typer

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output


def command(
    model: Chosen,
    *,
    parts: Annotated[
        str, typer.Option(help="Parts to remove, with commas: skips (or attention_skip, ffn_skip), ffn, norms.")
    ] = "skips,ffn,norms",
    output: Output,
) -> None:
    """Remove skips, feed-forward networks and norms from every block, and show when the tokens collapse (Dong et al.).

    Example: depthscope ablate bert --depth 12 --out ablations.png
    """
    from depthscope.ablations.ablate import ablate, checked

    names = checked(name.strip() for name in parts.split(","))
    built, given = model.resolved()
    output.show(measured(built, given, output.aside(), parts=names, **model.where(ablate)))


def measured(model: Any, given: Any, console: Any, **chosen: Any) -> Any:
    """ds.ablate with a bar on the console."""
    from rich.progress import Progress

    from depthscope.ablations.ablate import ablate

    with Progress(console=console, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task("taking parts out", total=2 ** len(chosen["parts"]))
        return ablate(model, given, on_row=lambda done, _: progress.update(task, completed=done), **chosen)
