"""depthscope forecast: will this design collapse, after how many blocks, and what would save it?"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscope._files import check_writable, whole_file
from depthscope.cli import options
from depthscope.errors import UsageError


def command(
    model: Annotated[
        str | None, typer.Argument(help="A model as for scan, forecast by its weights; without one, the sizes below.")
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
    alpha: Annotated[float, typer.Option(help="Weight of the attention branch (sizes).")] = 1.0,
    wiring: Annotated[str, typer.Option(help="post_norm, pre_norm, ... (sizes; depthscope ls models).")] = "post_norm",
    weights: Annotated[str, typer.Option(help="Weight law (sizes): xavier, torch_default, bert, ...")] = "xavier",
    activation: Annotated[str, typer.Option(help="relu, gelu or swiglu (sizes).")] = "relu",
    causal: Annotated[bool, typer.Option(help="A causal mask (sizes).")] = False,
    tau: Annotated[float, typer.Option(help="De-escalation at block_out.")] = 0.0,
    out: Annotated[str | None, typer.Option(help="Write a picture here: .png, .svg or .pdf.")] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write the numbers to this file; - writes them to stdout, alone.")
    ] = None,
) -> None:
    """Forecast how alike tokens become with depth, from weights or from sizes, without computing a block.

    Examples: depthscope forecast bert --depth 100;  depthscope forecast --depth 1000 --width 8192 --heads 64 --tau 0.3
    """
    from rich.console import Console

    from depthscope.reports.forecasts import forecast_view

    for path in (out, as_json if as_json != "-" else None):
        if path:
            check_writable(path)
    if out and Path(out).suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--out: the file must end in .png, .svg or .pdf; got {out!r}.")
    if model is None:
        design = {"wiring": wiring, "weights": weights, "activation": activation, "causal": causal, "alpha": alpha}
        found = of_sizes(depth, width, heads, tokens, tau, design)
    else:
        from depthscope.models.sizes import Sizes

        found = of_model(model, Sizes(depth, width, heads, tokens, batch, seed), inputs, text, blocks, tau)
    if as_json == "-":
        typer.echo(json.dumps(found.to_dict(), indent=1))
    else:
        Console().print(forecast_view(found))
    if as_json and as_json != "-":
        with whole_file(as_json) as part:
            part.write_text(json.dumps(found.to_dict(), indent=1))
        typer.echo(f"wrote {as_json}", err=True)
    if out:
        from depthscope.reports.forecasts import picture

        picture(found, to=out)
        typer.echo(f"wrote {out}", err=True)


def of_sizes(depth: int, width: int, heads: int, tokens: int, tau: float, design: dict[str, Any]) -> Any:
    from depthscope.forecasts.forecast import forecast

    return forecast(depth=depth, n=tokens, d=width, h=heads, tau=tau, output=True, **design)


def of_model(model: str, sizes: Any, inputs: str | None, text: str | None, blocks: str | None, tau: float) -> Any:
    from depthscope.forecasts.forecast import forecast
    from depthscope.models.resolve import resolve
    from depthscope.remedies._fix import fix_
    from depthscope.remedies.de_escalate import DeEscalate

    built, given = resolve(model, sizes, inputs=inputs, text=text)
    if not tau:
        return forecast(built, given, blocks=blocks)
    with fix_(built, DeEscalate(tau), blocks=blocks):
        return forecast(built, given, blocks=blocks)
