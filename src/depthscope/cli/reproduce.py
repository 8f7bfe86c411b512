"""depthscope reproduce: a paper's figures and claims, run here, with what holds and what does not."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from depthscope.cli import completion
from depthscope.cli.options import EXECUTOR
from depthscope.cli.output import Told
from depthscope.cli.settings import parsed


def command(
    name: Annotated[
        str,
        typer.Argument(
            help="One experiment (yu2023/fig2), a paper (yu2023) or all. See: depthscope ls experiments.",
            autocompletion=completion.experiments,
        ),
    ],
    *,
    smoke: Annotated[bool, typer.Option("--smoke", help="Run at small sizes: seconds instead of minutes.")] = False,
    out: Annotated[str, typer.Option(help="Figures and results.json go here, in a folder for each paper.")] = "out",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, for example --set trials=10. May be repeated.")
    ] = None,
    executor: Annotated[str, typer.Option(help=EXECUTOR)] = "local",
    output: Told,
) -> None:
    """Run a paper's experiments, and compare the results with its claims.

    Exit code 1 if a claim fails that was expected to hold. Example: depthscope reproduce yu2023 --smoke
    """
    from depthscope.experiments.run import check_out, plan
    from depthscope.training.executors import using

    planned = plan(name, smoke=smoke, **parsed(settings))
    check_out(out, [item for item, _ in planned], smoke=smoke)
    with using(executor):
        done = run_all(planned, out, smoke, output.aside())
    output.told({one.name: one for one in done}, Claims(done, out))
    if len(done) < len(planned):
        raise typer.Exit(130)
    if not all(r.holds for r in done):
        raise typer.Exit(1)


def run_all(planned: list[tuple[str, Any]], out: str, smoke: bool, console: Any) -> list[Any]:
    """Run one after another, saving each as it ends; after an interrupt, those that were whole."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from depthscope.experiments.run import run_one

    done: list[Any] = []
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[turn]}"),
        TimeElapsedColumn(),
    )
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


@dataclass(frozen=True)
class Claims:
    """The table of claims, what failed, and where the figures are."""

    done: list[Any]
    out: str

    def sheets(self) -> list[Any]:
        """Experiments with a claim that fails come first: of many, only the first are shown."""
        from depthscope.experiments.run import home
        from depthscope.reports.reproductions import summary, table
        from depthscope.reports.sheet import Line, Sheet

        if not self.done:
            return []
        ordered = sorted(self.done, key=lambda one: one.holds)
        folders = ", ".join(sorted({f"{home(self.out, one.name, smoke=one.smoke)}/" for one in self.done}))
        said = Line(f"{summary(self.done)} Figures and results.json: {folders}", "bold")
        return [Sheet("claims", [table(ordered), Line(""), said], None)]
