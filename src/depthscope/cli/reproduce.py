"""depthscope reproduce: a paper's figures and claims, run here, with what holds and what does not."""

import json
from typing import Annotated, Any

import typer

from depthscope.errors import UsageError


def command(
    name: Annotated[
        str,
        typer.Argument(help="One experiment (yu2023/fig2), a paper (yu2023) or all. See: depthscope ls experiments."),
    ],
    smoke: Annotated[bool, typer.Option("--smoke", help="Small sizes: seconds instead of minutes.")] = False,
    out: Annotated[str, typer.Option(help="Figures and results.json go here, in a folder for each paper.")] = "out",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Replace a setting, for example --set depth=40. May be repeated.")
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write all results to this file; - writes them to stdout, alone.")
    ] = None,
) -> None:
    """Run the experiments of a paper and compare them with what it says.

    Exit code 1 when a claim that was expected to hold fails. Example: depthscope reproduce yu2023 --smoke
    """
    from depthscope.experiments.run import check_out, plan
    from depthscope.files import check_writable, whole_file

    planned = plan(name, smoke=smoke, **parsed(settings or []))
    check_out(out, [item for item, _ in planned], smoke=smoke)
    if as_json and as_json != "-":
        check_writable(as_json)
    done = run_all(planned, out, smoke)
    record = json.dumps({r.name: r.to_dict() for r in done}, indent=1, allow_nan=False)
    if as_json == "-":
        typer.echo(record)
    elif done:
        show(done, out)
    if as_json and as_json != "-":
        with whole_file(as_json) as part:
            part.write_text(record)
    if len(done) < len(planned):
        raise typer.Exit(130)
    if not all(r.holds for r in done):
        raise typer.Exit(1)


def run_all(planned: list[tuple[str, Any]], out: str, smoke: bool) -> list[Any]:
    """Run one after another, saving each as it ends; after an interrupt, those that were whole."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from depthscope.experiments.run import run_one

    done: list[Any] = []
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[turn]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=len(planned), turn="")
        try:
            for index, (item, config) in enumerate(planned):
                bar.update(task, description=f"{item} ({index + 1} of {len(planned)})", completed=index, turn="")

                def listen(turn: int, turns: int, index: int = index) -> None:
                    bar.update(task, completed=index + turn / turns, turn=f"{turn} of {turns}")

                result = run_one(item, config, smoke=smoke, listener=listen)
                result.save(out)
                done.append(result)
        except KeyboardInterrupt:
            console.print(f"interrupted in {planned[len(done)][0]}: no half-written file is left.")
    return done


def show(done: list[Any], out: str) -> None:
    """The table of claims, what failed, and where the figures are."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("claim", "wanted", "got", "", "trials"):
        side: Any = "right" if title in ("got", "trials") else "left"
        grid.add_column(title, justify=side, no_wrap=title != "claim")
    for r in done:
        grid.add_row(f"[bold]{r.name}[/bold] ({r.seconds:.0f} s)")
        for claim in r.claims:
            colour = "green" if claim.holds else "red" if claim.expected else "yellow"
            status = f"[{colour}]{claim.status}[/{colour}]"
            said = Padding(Text(claim.says), (0, 0, 0, 2))
            grid.add_row(said, claim.wanted, f"{claim.value:.4g}", status, str(claim.trials))
    expected = [claim for r in done for claim in r.claims if claim.expected]
    known = [claim for r in done for claim in r.claims if not claim.expected]
    console = Console()
    console.print(grid)
    summary = f"\n{sum(c.holds for c in expected)} of {len(expected)} claims hold"
    if known:
        summary += f"; of {len(known)} that are known to differ, {sum(not c.holds for c in known)} do"
    console.print(f"{summary}. {sum(r.seconds for r in done):.0f} s. Figures and results.json: {out}/")


def parsed(settings: list[str]) -> dict[str, Any]:
    """key=value pairs; values are JSON where they can be, words otherwise."""
    chosen: dict[str, Any] = {}
    for pair in settings:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set: must be name=value; got {pair!r}. For example --set depth=40.")
        try:
            chosen[key] = json.loads(text)
        except ValueError:
            chosen[key] = text
    return chosen
