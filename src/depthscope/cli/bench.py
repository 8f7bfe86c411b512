"""depthscope bench: what a scan costs over a plain forward pass, on this machine."""

from typing import Annotated

import typer

from depthscope.cli.output import Output
from depthscope.errors import UsageError

SIZE = "With commas between several. Sizes that are not given stay at {}; all combinations are measured."


def command(
    *,
    grid: Annotated[
        str | None, typer.Option(help="quick (the default: one size changes at a time) or full (all combinations).")
    ] = None,
    kind: Annotated[
        str, typer.Option(help="Kinds of models, with commas: encoder, decoder (ds.models), bert, gpt2 (transformers).")
    ] = "encoder,decoder",
    width: Annotated[str | None, typer.Option(help="Widths d. " + SIZE.format("256"), show_default=False)] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", "--n", help="Tokens n. " + SIZE.format("128"), show_default=False)
    ] = None,
    batch: Annotated[str | None, typer.Option(help="Sequences. " + SIZE.format("4"), show_default=False)] = None,
    depth: Annotated[str | None, typer.Option(help="Blocks. " + SIZE.format("12"), show_default=False)] = None,
    heads: Annotated[
        str | None, typer.Option(help="Numbers of heads; one head for 64 channels if left out.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="The device: cpu, cuda, cuda:1, mps, ...")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Number of torch's threads; unchanged if left out.")] = None,
    repeats: Annotated[int, typer.Option(help="How often each size is measured; the fastest counts.")] = 5,
    clock: Annotated[
        str, typer.Option(help="wall, or cpu: processor time, for a busy machine (use --threads 1).")
    ] = "wall",
    budget: Annotated[
        float | None,
        typer.Option(help="Time limit in seconds by the clock: of large sizes a few blocks run then."),
    ] = None,
    memory: Annotated[bool, typer.Option(help="Also measure peak memory, in separate processes.")] = True,
    before: Annotated[
        str | None, typer.Option(help="Compare with an earlier run: its --json file.", show_default=False)
    ] = None,
    output: Output,
) -> None:
    """Measure how much longer a scan takes than a plain forward pass, how that grows, and where the time goes.

    Example: depthscope bench --kind bert --width 768 --tokens 128,512
    """
    from rich.console import Console

    from depthscope.benches.grid import CENTRE, crossed
    from depthscope.benches.grid import grid as grid_called
    from depthscope.benches.record import Bench
    from depthscope.benches.run import bench

    sizes = {"width": width, "tokens": tokens, "batch": batch, "depth": depth, "heads": heads}
    said = {name: numbers(name, words) for name, words in sizes.items() if words is not None}
    if grid is not None and said:
        raise UsageError(f"--grid names all sizes; got --{next(iter(said))} too. Leave one of them out.")
    kinds = [word.strip() for word in kind.split(",") if word.strip()]
    if said:
        widths, lengths, batches, depths = (
            said.get(name, [CENTRE[name]]) for name in ("width", "tokens", "batch", "depth")
        )
        cells = crossed(kinds, widths, lengths, batches, depths, said.get("heads", ()))
    else:
        cells = grid_called(grid or "quick", kinds)
    earlier = None if before is None else Bench.load(before)
    with output.aside().status("measuring") as status:
        found = bench(
            cells,
            device=device,
            threads=threads,
            repeats=repeats,
            clock=clock,
            budget=budget,
            memory=memory,
            on_cell=status.update,
        )
    output.show(found)
    if earlier is not None and output.as_json != "-":
        from depthscope.reports.benches import compared

        Console().print(compared(earlier, found).view())


def numbers(name: str, words: str) -> list[int]:
    """Whole numbers between commas."""
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise UsageError(
            f"--{name}: must be whole numbers with commas between them; got {words!r}. For example --{name} 64,128."
        ) from None
