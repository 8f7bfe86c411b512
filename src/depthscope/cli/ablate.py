"""depthscope ablate: which part of a block keeps the tokens apart? Take them out, in all combinations, and measure."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscope.cli import options
from depthscope.errors import UsageError
from depthscope.files import check_writable

KINDS = (".png", ".svg", ".pdf", ".json")


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
    parts: Annotated[
        str, typer.Option(help="Comma-separated: skips (or attention_skip, ffn_skip), ffn, norms.")
    ] = "skips,ffn,norms",
    out: Annotated[
        list[str] | None, typer.Option(help="Write a picture or the numbers here: .png, .svg, .pdf or .json.")
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write the numbers to this file; - writes them to stdout, alone.")
    ] = None,
) -> None:
    """Take skips, feed-forward networks and norms out of every block, and see when the tokens collapse (Dong et al.).

    Example: depthscope ablate bert --depth 12 --out ablations.png
    """
    from depthscope.ablations.ablate import checked
    from depthscope.models.resolve import resolve
    from depthscope.models.sizes import Sizes

    names = checked(name.strip() for name in parts.split(","))
    files = [*(out or []), *([as_json] if as_json and as_json != "-" else [])]
    for path in files:
        check_file(path, is_json=path == as_json)
    built, given = resolve(model, Sizes(depth, width, heads, tokens, batch, seed), inputs=inputs, text=text)
    found = measured(built, given, parts=names, blocks=blocks)
    if as_json == "-":
        typer.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        from rich.console import Console

        from depthscope.reports.ablations import ablations_view

        Console().print(ablations_view(found))
    for path in files:
        write(found, path, is_json=path == as_json)


def measured(model: Any, given: Any, **chosen: Any) -> Any:
    """ds.ablate with a bar on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    from depthscope.ablations.ablate import ablate

    with Progress(console=Console(stderr=True), transient=True, refresh_per_second=2) as progress:
        task = progress.add_task("taking parts out", total=2 ** len(chosen["parts"]))
        return ablate(model, given, on_row=lambda done, _: progress.update(task, completed=done), **chosen)


def check_file(path: str, *, is_json: bool) -> None:
    """A wrong name costs nothing: it is refused before the model runs."""
    from depthscope.reports.plots import need_matplotlib

    if not is_json and Path(path).suffix not in KINDS:
        raise UsageError(f"--out: the file must end in {', '.join(KINDS)}; got {path!r}.")
    if not is_json and Path(path).suffix != ".json":
        need_matplotlib()
    check_writable(path)


def write(found: Any, path: str, *, is_json: bool) -> None:
    from depthscope.reports.ablations import picture

    if is_json or Path(path).suffix == ".json":
        found.save(path)
    else:
        picture(found, path)
    typer.echo(f"wrote {path}", err=True)
