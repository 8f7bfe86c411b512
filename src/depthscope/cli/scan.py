"""depthscope scan: how alike are the tokens after every block, what makes them so, and does a remedy help?"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscope.cli import options
from depthscope.errors import UsageError
from depthscope.files import check_writable, whole_file


def command(
    model: options.Model,
    depth: options.Depth = 12,
    width: options.Width = 256,
    heads: options.Heads = 4,
    tokens: options.Tokens = 64,
    batch: options.Batch = 4,
    seed: options.Seed = 0,
    inputs: options.Inputs = None,
    text: options.Text = None,
    blocks: options.Blocks = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names (depthscope ls metrics); t_sim[0:16] is t_sim of the first 16 tokens."
        ),
    ] = None,
    positions: Annotated[
        int | None,
        typer.Option(min=2, help="Measure t_sim of so many equal ranges of positions too.", show_default=False),
    ] = None,
    attention: Annotated[bool, typer.Option(help="Measure the attention heads too.")] = True,
    fix: Annotated[str | None, typer.Option(help="A remedy to compare with, for example de_escalate.")] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help="Strength of de_escalate and gain_control: 1 (the default) removes the mean token, 0 does nothing."
        ),
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Where it acts: block_in, attn_in, sa_out, sa_sum, ffn_in, ffn_sum or block_out.")
    ] = None,
    out: Annotated[
        list[str] | None, typer.Option(help="Write a report here: .html, .png, .svg, .pdf or .json. May be repeated.")
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write the numbers to this file; - writes them to stdout, alone.")
    ] = None,
) -> None:
    """See in which block the tokens grow alike (collapse, over-smoothing), and what drives it.

    Example: depthscope scan bert --depth 100
    """
    from depthscope.models.resolve import resolve
    from depthscope.models.sizes import Sizes

    if fix is None and (tau is not None or at is not None):
        raise UsageError("--tau and --at say how a remedy acts; none was named. Add --fix de_escalate.")
    writers = [writer_for(path) for path in out or []]
    for path in (*(out or []), *([as_json] if as_json and as_json != "-" else [])):
        check_writable(path)
    built, given = resolve(model, Sizes(depth, width, heads, tokens, batch, seed), inputs=inputs, text=text)
    chosen = {
        "metrics": metric_names(metrics, positions),
        "blocks": blocks,
        "attention": attention,
    }
    scans = [measured(built, given, "scanning", **chosen)]
    if fix is not None:
        scans.append(fixed_scan(built, given, scans[0], fix, tau, at, chosen))
    if as_json == "-":
        typer.echo(json.dumps(as_record(scans), indent=1, allow_nan=False))
    else:
        show(scans)
    if as_json and as_json != "-":
        write_json(scans, as_json)
    for write in writers:
        write(scans)


def metric_names(metrics: str | None, positions: int | None) -> list[str] | None:
    """The names to measure, None for the usual ones; `positions` adds t_sim of each of so many ranges."""
    from depthscope.scans.scan import default_metrics

    names = [name.strip() for name in metrics.split(",")] if metrics else None
    if positions is None:
        return names
    return [*(names or default_metrics()), *(f"t_sim[{k}/{positions}]" for k in range(1, positions + 1))]


def measured(model: Any, given: Any, what: str, **chosen: Any) -> Any:
    """ds.scan with a counter of blocks on stderr, which a run under two seconds never shows."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from depthscope.scans.scan import scan

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2) as progress:
        task = progress.add_task(what)
        return scan(model, given, on_block=lambda n: progress.update(task, description=f"{what}: block {n}"), **chosen)


def fixed_scan(model: Any, given: Any, before: Any, fix: str, tau: float | None, at: str | None, chosen: dict) -> Any:
    """The same scan with the remedy in place; in a causal model its causal-safe form."""
    import inspect

    from depthscope.registry import TABLES, lookup
    from depthscope.remedies.fix import fix_

    names = {name.lower(): name for name in TABLES["remedy"]}  # de_escalate, gfsa, qk_norm
    build = lookup("remedy", names.get(fix.lower().replace("_", ""), fix))
    if tau is not None and "tau" not in inspect.signature(build).parameters:
        raise UsageError(
            f"--tau: is the strength of de_escalate and gain_control; {build.__name__} has none. Leave it out."
        )
    needs = [p.name for p in inspect.signature(build).parameters.values() if p.default is p.empty]
    sizes = {"d": before.width}
    if any(name not in sizes for name in needs):
        raise UsageError(
            f"--fix {fix}: needs {', '.join(needs)}. Build it in Python: ds.fix_(model, {build.__name__}(...))."
        )
    remedy = build(**{name: sizes[name] for name in needs}, **({} if tau is None else {"tau": tau}))
    with fix_(model, remedy, at=at, blocks=chosen["blocks"]):
        return measured(model, given, "scanning again with the remedy", **chosen)


def show(scans: list[Any]) -> None:
    from rich.console import Console

    from depthscope.reports.text import comparison_view, scan_view

    console = Console()
    for scan in scans:
        console.print(scan_view(scan))
    if len(scans) == 2:
        console.print(comparison_view(*scans))


def as_record(scans: list[Any]) -> Any:
    """One scan is its own record; with a remedy there are two, before and after."""
    if len(scans) == 1:
        return scans[0].to_dict()
    return {"format": "depthscope.scans", "version": 1, "before": scans[0].to_dict(), "after": scans[1].to_dict()}


def write_json(scans: list[Any], path: str) -> None:
    with whole_file(path) as part:
        part.write_text(json.dumps(as_record(scans), indent=1, allow_nan=False))
    typer.echo(f"wrote {path}", err=True)


def writer_for(path: str) -> Any:
    """What writes a file of this kind; known before the model runs, so that a wrong name costs nothing."""
    from depthscope.reports.html import report
    from depthscope.reports.plots import need_matplotlib, picture

    kind = Path(path).suffix
    if kind == ".json":
        return lambda scans: write_json(scans, path)
    if kind not in (".html", ".png", ".svg", ".pdf"):
        raise UsageError(f"--out: the file must end in .html, .png, .svg, .pdf or .json; got {path!r}.")

    if kind != ".html":
        need_matplotlib()

    def write(scans: list[Any]) -> None:
        (report if kind == ".html" else picture)(*scans, to=path)
        typer.echo(f"wrote {path}", err=True)

    return write
