"""depthscope paths: what do the paths through few and through many attentions contribute to a model's output?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from depthscope.cli import options
from depthscope.errors import UsageError
from depthscope.files import check_writable, whole_file


def command(
    model: Annotated[
        str | None,
        typer.Argument(help="As for scan; left out, the paths are counted alone.", show_default=False),
    ] = None,
    depth: options.Depth = 12,
    width: options.Width = 256,
    heads: options.Heads = 4,
    tokens: options.Tokens = 64,
    batch: options.Batch = 4,
    seed: options.Seed = 0,
    inputs: options.Inputs = None,
    text: options.Text = None,
    blocks: options.Blocks = None,
    form: Annotated[
        str,
        typer.Option(
            help="secant: the whole model, held at its values. tangent: the same, activations at their tangents. "
            "attention: attention and skips alone, as in the paper."
        ),
    ] = "secant",
    draw: Annotated[int, typer.Option(help="Draw so many single paths of each length; with --form attention.")] = 0,
    out: Annotated[
        list[str] | None,
        typer.Option(help="Write a picture or the numbers here: .png, .svg, .pdf or .json. May be repeated."),
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write the numbers to this file; - writes them to stdout, alone.")
    ] = None,
) -> None:
    """Split a model's output into what came through 0, 1, 2, ... attentions: is its depth used, or skipped?

    All (1 + heads)^depth paths are summed exactly (Dong et al. 2021). Examples: depthscope paths bert;
    depthscope paths --depth 96 --heads 96 counts the paths of GPT-3.
    """
    files = [*(out or []), *([as_json] if as_json and as_json != "-" else [])]
    for path in out or []:
        if Path(path).suffix not in (".png", ".svg", ".pdf", ".json"):
            raise UsageError(f"--out: the file must end in .png, .svg, .pdf or .json; got {path!r}.")
    for path in files:
        check_writable(path)
    if model is None:
        count(depth, heads, out, as_json)
        return
    from rich.console import Console

    from depthscope.circuits.paths import paths
    from depthscope.models.resolve import resolve
    from depthscope.models.sizes import Sizes
    from depthscope.reports.paths import paths_view, picture
    from depthscope.reports.plots import need_matplotlib

    if any(Path(path).suffix != ".json" for path in out or []):
        need_matplotlib()
    built, given = resolve(model, Sizes(depth, width, heads, tokens, batch, seed), inputs=inputs, text=text)
    with Console(stderr=True).status("following the paths"):
        found = paths(built, given, form=form, blocks=blocks, draw=draw)
    if as_json == "-":
        typer.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        Console().print(paths_view(found))
    for path in files:
        found.save(path) if Path(path).suffix == ".json" or path == as_json else picture(found, path)
        typer.echo(f"wrote {path}", err=True)


def count(depth: int, heads: int, out: list[str] | None, as_json: str | None) -> None:
    """The numbers of paths, without a model."""
    from depthscope.reports.paths import counts_view
    from depthscope.theory.path_counts import path_counts

    if out:
        raise UsageError("--out: needs a model whose paths are weighed. Name one, for example: depthscope paths bert.")
    counts = path_counts(depth, heads)
    record = {
        "depth": depth,
        "heads": heads,
        "log10_counts": counts.log10_counts.tolist(),
        "shares": counts.shares.tolist(),
        "log10_total": counts.log10_total,
        "mean_length": counts.mean_length,
    }
    if as_json == "-":
        typer.echo(json.dumps(record, indent=1))
        return
    from rich.console import Console

    Console().print(counts_view(counts))
    if as_json:
        with whole_file(as_json) as part:
            part.write_text(json.dumps(record, indent=1))
        typer.echo(f"wrote {as_json}", err=True)
