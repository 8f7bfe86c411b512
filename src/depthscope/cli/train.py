"""depthscope train: one model on one task, with or without a remedy; killed, it goes on where it was."""

import os
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from depthscope.cli.options import Seed, Training
from depthscope.cli.output import Output
from depthscope.cli.processes import leave_the_others
from depthscope.cli.settings import parsed
from depthscope.errors import UsageError


def command(
    chosen: Training,
    *,
    wiring: Annotated[
        str, typer.Option(help="How a block joins its branches: post_norm, pre_norm, ... (depthscope ls models).")
    ] = "post_norm",
    remedy: Annotated[str | None, typer.Option(help="A remedy for every block, for example de_escalate.")] = None,
    tau: Annotated[float | None, typer.Option(help="Strength of de_escalate and gain_control.")] = None,
    at: Annotated[str | None, typer.Option(help="Where the remedy acts, for example block_out or ffn_in.")] = None,
    seed: Seed = 0,
    folder: Annotated[
        str | None, typer.Option(help="Checkpoints and run.json go here; a run that is already here is continued.")
    ] = None,
    every_steps: Annotated[
        int | None, typer.Option(help="Steps between checkpoints. Without it, one checkpoint an epoch.")
    ] = None,
    parallel: Annotated[
        str, typer.Option(help="Under torchrun: ddp gives each process a copy of the model, fsdp a part of it.")
    ] = "ddp",
    processes: Annotated[
        int | None, typer.Option(help="How many processes must train together; another number is an error.")
    ] = None,
    log_with: Annotated[
        str | None, typer.Option(help="Log to a tracker of accelerate, for example tensorboard.")
    ] = None,
    output: Output,
) -> None:
    """Train one model, and say how well it did. Exit code 1 if it diverged, 130 if it was stopped.

    Example: depthscope train digits --remedy de_escalate --tau 1 --depth 24 --folder out/run.
    On two processes: torchrun --nproc-per-node 2 -m depthscope train digits --processes 2.
    """
    from depthscope.reports.sheet import Line
    from depthscope.training.choices import sort_choices
    from depthscope.training.loop import train
    from depthscope.training.progress import bar
    from depthscope.training.tasks import task as load

    said = chosen.said(wiring=wiring, remedy=remedy, at=at, seed=seed, tau=tau) | parsed(chosen.settings)
    task, found = chosen.task, sorted_by_owner(chosen.task, said)
    learned = load(task, **found.options | ({} if chosen.data is None else {"data": chosen.data}))
    build, recipe = built(found, sort_choices(task, learned.defaults))
    first = os.environ.get("RANK", "0") == "0"
    try:
        with ExitStack() as stack:
            shown = (
                stack.enter_context(bar(f"{task}: {remedy or wiring}, depth {build.depth}"))
                if first and not output.quiet
                else None
            )
            where: dict[str, Any] = {"parallel": parallel, "processes": processes, "log_with": log_with}
            run = train(build, learned, recipe, folder=folder, every_steps=every_steps, progress=shown, **where)
    finally:
        leave_the_others()
    if first:
        output.show(run, Line(str(run)))
    if first and folder is not None and output.as_json != "-":
        output.note(f"run.json and checkpoints: {folder}")
    if run.status != "done":
        raise typer.Exit(1 if run.status == "diverged" else 130)


def sorted_by_owner(task: str, said: dict[str, Any]) -> Any:
    """What was said, each to whom it belongs: model, recipe, task; what none of them knows is for the remedy."""
    from depthscope.errors import UnknownNameError
    from depthscope.registry import unknown
    from depthscope.training.choices import sort_choices

    found = sort_choices(task, said)
    if found.rest and "remedy" not in found.build:
        name = next(iter(found.rest))
        if name == "tau":
            raise UsageError("--tau: says how a remedy acts; none was named. Add --remedy de_escalate.")
        raise UnknownNameError("--set: " + unknown("setting", name, found.known))
    return found


def built(found: Any, usual: Any) -> tuple[Any, Any]:
    """Build and Recipe: what suits the task, and what was said."""
    from depthscope.training.build import Build
    from depthscope.training.recipe import Recipe

    settings = {"remedy_settings": found.rest} if found.rest else {}
    return Build(**usual.build | found.build | settings), Recipe(**usual.recipe | found.recipe)
