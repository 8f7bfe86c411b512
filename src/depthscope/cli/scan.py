"""depthscope scan: how alike are the tokens after every block, what makes them so, and does a remedy help?"""

from dataclasses import replace
from typing import Annotated, Any

import typer

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output
from depthscope.cli.processes import together
from depthscope.errors import UsageError


def command(
    model: Chosen,
    *,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them (depthscope ls metrics); t_sim[0:16] is t_sim of the first 16 tokens."
        ),
    ] = None,
    positions: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="<int>",
            help="Cut the positions into this many equal ranges, and measure t_sim of each.",
            show_default=False,
        ),
    ] = None,
    attention: Annotated[bool, typer.Option(help="Measure the attention heads.")] = True,
    sample: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="<int>",
            help="Measure mu_2 in this many random channels only, with its error.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[str | None, typer.Option(help="Scan again with this remedy, for example de_escalate.")] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help="Strength of de_escalate and gain_control: 1 (the default) removes the mean token, 0 does nothing."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Where the remedy acts: block_in, attn_in, sa_out, sa_sum, ffn_in, ffn_sum or block_out."),
    ] = None,
    output: Output,
) -> None:
    """Show in which block the tokens grow alike (collapse, over-smoothing), and why.

    Example: depthscope scan bert --depth 100
    """
    if fix is None and (tau is not None or at is not None):
        raise UsageError("--tau and --at say how a remedy acts; none was named. Add --fix de_escalate.")
    from depthscope.remedies.by_name import remedy_called
    from depthscope.remedies.fix import fix_
    from depthscope.scans.scan import scan

    built, given = model.resolved()
    where = model.where(scan)
    chosen = {"metrics": metric_names(metrics, positions), "attention": attention, "sample": sample, **where}
    with together(built) as processes:
        chosen["across"] = processes.across

        def measure(what: str) -> Any:
            return measured(built, processes.part(given), what, output.aside(), **chosen)

        found = measure("scanning")
        if fix is not None:
            remedy = remedy_called(fix, found.width, **({} if tau is None else {"tau": tau}))
            with fix_(built, remedy, at=at, **where):
                after = measure("scanning again with the remedy")
            found = replace(after, before=found)
    if processes.reports:
        output.show(found)


def metric_names(metrics: str | None, positions: int | None) -> list[str] | None:
    """The names to measure, None for the usual ones; `positions` adds t_sim of each of so many ranges."""
    from depthscope.scans.chosen_metrics import default_metrics

    names = [name.strip() for name in metrics.split(",")] if metrics else None
    if positions is None:
        return names
    return [*(names or default_metrics()), *(f"t_sim[{k}/{positions}]" for k in range(1, positions + 1))]


def measured(model: Any, given: Any, what: str, console: Any, **chosen: Any) -> Any:
    """ds.scan with a counter of blocks on the console, which a run under two seconds never shows."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from depthscope.scans.scan import scan

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task(what)
        return scan(model, given, on_block=lambda n: progress.update(task, description=f"{what}: block {n}"), **chosen)
