"""depthscope bound: what does the rank-collapse theorem say of a real model's weights, and is it far from the truth?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from depthscope.cli import options
from depthscope.errors import UsageError
from depthscope.files import check_writable


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
    out: Annotated[
        list[str] | None,
        typer.Option(help="Write a picture or the numbers here: .png, .svg, .pdf or .json. May be repeated."),
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write the numbers to this file; - writes them to stdout, alone.")
    ] = None,
) -> None:
    """Hold the bound of "pure attention loses rank" (Dong et al. 2021) against what a model's attention does.

    Per block: beta, gamma and D from the real weights, the bound, the residual found, the rate (3: cubic), and by how
    many orders of magnitude the bound is above it. Example: depthscope bound bert --width 768 --heads 12
    """
    for path in out or []:
        if Path(path).suffix not in (".png", ".svg", ".pdf", ".json"):
            raise UsageError(f"--out: the file must end in .png, .svg, .pdf or .json; got {path!r}.")
    files = [*(out or []), *([as_json] if as_json and as_json != "-" else [])]
    for path in files:
        check_writable(path)
    from rich.console import Console

    from depthscope.circuits.bounds import bounds
    from depthscope.models.resolve import resolve
    from depthscope.models.sizes import Sizes
    from depthscope.reports.bounds import bounds_view, picture
    from depthscope.reports.plots import need_matplotlib

    if any(Path(path).suffix != ".json" for path in out or []):
        need_matplotlib()
    built, given = resolve(model, Sizes(depth, width, heads, tokens, batch, seed), inputs=inputs, text=text)
    with Console(stderr=True).status("reading weights and attention"):
        found = bounds(built, given, blocks=blocks)
    if as_json == "-":
        typer.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        Console().print(bounds_view(found))
    for path in files:
        found.save(path) if Path(path).suffix == ".json" or path == as_json else picture(found, path)
        typer.echo(f"wrote {path}", err=True)
