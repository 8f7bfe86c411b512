"""depthscope compare: train arms side by side under one budget, and say which differences are more than noise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscope.cli.options import EXECUTOR, Training
from depthscope.cli.output import Output
from depthscope.cli.settings import parsed
from depthscope.errors import UsageError


def command(
    learned: Training,
    *,
    arms: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="Wirings and remedies, with settings (de_escalate:tau=0.5), together (pre_norm+qk_norm), or with "
            "a rate of their own (post_norm@1e-4). Without it: post_norm, pre_norm and de_escalate.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of weights and data order, the same for all arms.")] = 3,
    search: Annotated[
        int | None,
        typer.Option(
            help="Learning rates to try for each arm, on the validation split. Without it: 0 for images, 3 for text."
        ),
    ] = None,
    caveat: Annotated[
        bool, typer.Option(help="Add post_norm at a third of the rate; for text, add the paper's form, which leaks.")
    ] = True,
    processes: Annotated[
        int | None, typer.Option(help="Number of jobs at a time. Without it, one for each core.")
    ] = None,
    executor: Annotated[str, typer.Option(help=EXECUTOR)] = "local",
    folder: Annotated[
        str | None, typer.Option(help="Runs are kept here and not repeated. Without it: out/compare/TASK.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="URL of a database that machines share for --search. Without it, a file in the folder."),
    ] = None,
    output: Output,
) -> None:
    """Train every arm with every seed under one budget, and compare them. Exit code 1 if no run of some arm finished.

    Example: depthscope compare digits --depth 24 --out curves.png.
    A model of your own: depthscope compare package.module:setup, where setup() returns model_fn, batch_fn and loss_fn.
    To share the work, run the same command on several machines with a shared --folder, or use --executor.
    """
    from depthscope.training.compare import compare

    task, choices = learned.task, learned.said(data=learned.data) | checked(parsed(learned.settings))
    shared: dict[str, Any] = {
        "processes": processes,
        "executor": executor,
        "folder": folder or str(Path("out", "compare", task.replace(":", "-"))),
        "storage": storage,
    }
    try:
        with progress(f"compare {task}", output.aside()) as watch:
            result = compare(task, arms, seeds=seeds, search=search, caveat=caveat, watch=watch, **shared, **choices)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command continues from here ({shared['folder']}).", err=True)
        raise typer.Exit(130) from None
    output.show(result)
    if not all(lane.done for lane in result.lanes):
        raise typer.Exit(1)


def checked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of --set, none of which may be an option of the command."""
    import inspect

    from depthscope.training.compare import compare

    for name in settings:
        if name != "choices" and name in inspect.signature(compare).parameters:
            raise UsageError(
                f"--set: must name a setting of recipe, model or task; got {name!r}, which is none of them. "
                "Look for its own option: depthscope compare --help."
            )
    return settings


@contextmanager
def progress(title: str, console: Any) -> Iterator[Callable[[Any], None]]:
    """Yields a watcher: a bar over all jobs, and below it a line for each that runs. On stderr, gone at the end."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def line(label: str, step: int, steps: int, loss: float, t_sim: float) -> Text:
        how = f"step {step} of {steps}, loss {loss:.3f}, t_sim {t_sim:.3f}" if steps else "starts"
        return Text(f"  {label}: {how}", style="dim")

    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def watch(moment: Any) -> None:
            part = sum(step / steps for _, step, steps, *_ in moment.running if steps)
            head = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=moment.total, completed=moment.ended + part, width=40)
            head.add_row(Text(title), bar, f"{moment.ended} of {moment.total} jobs")
            live.update(Group(head, *(line(*one) for one in moment.running)))

        yield watch
