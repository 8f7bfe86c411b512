"""depthscope forecast: will this design collapse, after how many blocks, and what would save it?"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscope.cli import options
from depthscope.errors import UsageError
from depthscope.files import check_writable, whole_file


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
    alpha: Annotated[float | None, typer.Option(help="Weight of the attention branch (sizes; 1 if not said).")] = None,
    wiring: Annotated[str | None, typer.Option(help="post_norm (if not said), pre_norm, ... (sizes).")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight law (sizes): xavier (if not said), bert, ...")] = None,
    activation: Annotated[str | None, typer.Option(help="relu (if not said), gelu or swiglu (sizes).")] = None,
    causal: Annotated[bool | None, typer.Option(help="A causal mask (sizes, or a scan without attention).")] = None,
    tau: Annotated[float, typer.Option(help="De-escalation at block_out.")] = 0.0,
    advise: Annotated[bool, typer.Option(help="Add the mildest change that keeps tokens apart.")] = False,
    floor: Annotated[float, typer.Option(help="With --advise: t_div that must be left at the last block.")] = 0.05,
    measure: Annotated[bool, typer.Option(help="Also scan the model, and compare.")] = False,
    out: Annotated[str | None, typer.Option(help="Write a picture here: .png, .svg or .pdf.")] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write the numbers to this file; - writes them to stdout, alone.")
    ] = None,
) -> None:
    """Forecast how alike tokens become with depth, from weights, from sizes or from a scan, without computing a block.

    Examples: depthscope forecast bert --depth 100 --advise;  depthscope forecast scan.json --depth 48;
    depthscope forecast --depth 1000 --width 8192 --heads 64 --n 128 --tau 0.3
    """
    for path in (out, as_json if as_json != "-" else None):
        if path:
            check_writable(path)
    if out and Path(out).suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--out: the file must end in .png, .svg or .pdf; got {out!r}.")
    if advise and tau:
        raise UsageError("--advise: finds tau itself; got --tau as well. Leave one out.")
    said = {"wiring": wiring, "weights": weights, "activation": activation, "causal": causal, "alpha": alpha}
    design: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    sizes = {"depth": depth, "n": tokens, "d": width, "h": heads}
    if model is None:
        refuse("a model", inputs=inputs, text=text, blocks=blocks)
        design = {"weights": "xavier", "output": True} | design
        source, given, choices = None, None, sizes | design
    elif model.endswith(".json"):
        refuse("a model", inputs=inputs, text=text, blocks=blocks)
        refuse("sizes", **{name: value for name, value in design.items() if name != "causal"})
        from depthscope.scans.record import Scan

        source, given, choices = Scan.load(model), None, {"depth": depth} | design
    else:
        refuse("sizes", **design)
        source, given = built(model, sizes, batch, seed, inputs, text)
        choices = {"blocks": blocks} if blocks else {}
    results = predicted(source, given, choices, tau, floor if advise else None)
    if measure:
        results["measured"] = measured(source, given, blocks, tau)
    show(results, as_json)
    if out:
        numbers = numbers_of(design | {"d": width, "h": heads}, tau) if model is None else None
        draw(results, out, numbers)


def refuse(what: str, **given: Any) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UsageError(f"--{', --'.join(names)}: goes with {what} alone. Leave it out.")


def built(
    model: str, sizes: dict[str, Any], batch: int, seed: int, inputs: str | None, text: str | None
) -> tuple[Any, Any]:
    """A model as for scan, and its inputs."""
    from depthscope.models.resolve import resolve
    from depthscope.models.sizes import Sizes

    found = Sizes(sizes["depth"], sizes["d"], sizes["h"], sizes["n"], batch, seed)
    return resolve(model, found, inputs=inputs, text=text)


def predicted(source: Any, given: Any, choices: dict[str, Any], tau: float, floor: float | None) -> dict[str, Any]:
    from rich.console import Console

    from depthscope.forecasts.advise import advise
    from depthscope.forecasts.forecast import forecast

    with Console(stderr=True).status("forecasting" if floor is None else "weighing changes"):
        results: dict[str, Any] = {"forecast": forecast(source, given, tau=tau, **choices)}
        if floor is not None:
            results["advice"] = advise(source, given, floor=floor, **choices)
    return results


def measured(source: Any, given: Any, blocks: str | None, tau: float) -> Any:
    """A scan of the same model."""
    from torch import nn

    from depthscope.remedies.de_escalate import DeEscalate
    from depthscope.remedies.fix import fix_
    from depthscope.scans.scan import scan

    if not isinstance(source, nn.Module):
        raise UsageError("--measure: needs a model that can be run; sizes and scans have none. Name a preset, or more.")
    if not tau:
        return scan(source, given, metrics=["t_sim", "t_div"], blocks=blocks, attention=False)
    with fix_(source, DeEscalate(tau), blocks=blocks):
        return scan(source, given, metrics=["t_sim", "t_div"], blocks=blocks, attention=False)


def show(results: dict[str, Any], as_json: str | None) -> None:
    if as_json != "-":
        from rich.console import Console

        from depthscope.reports.forecasts import advice_view, error_in_words, forecast_view

        console = Console()
        console.print(forecast_view(results["forecast"]))
        if "advice" in results:
            console.print(advice_view(results["advice"]))
        if "measured" in results:
            console.print(error_in_words(results["forecast"], results["measured"]))
    if as_json:
        record = results["forecast"].to_dict()
        record |= {"advice": results["advice"].to_dict()} if "advice" in results else {}
        record |= {"measured_t_sim": results["measured"]["t_sim"].tolist()} if "measured" in results else {}
        write(json.dumps(record, indent=1), as_json)


def write(text: str, to: str) -> None:
    if to == "-":
        typer.echo(text)
        return
    with whole_file(to) as part:
        part.write_text(text)
    typer.echo(f"wrote {to}", err=True)


def numbers_of(choices: dict[str, Any], tau: float) -> dict[str, Any] | None:
    """The design in two numbers, for the maps; None where it has none (causal masks, some wirings)."""
    from depthscope.forecasts.numbers import has_maps, numbers_of_design
    from depthscope.models.design import design_of

    design = design_of("forecast", **choices)
    return numbers_of_design(design) | {"tau": tau} if has_maps(design) and not design.causal else None


def draw(results: dict[str, Any], out: str, numbers: dict[str, Any] | None) -> None:
    from depthscope.reports.forecasts import picture

    curves = [results["forecast"]]
    if "advice" in results and results["advice"].needed:
        curves.append(results["advice"].choice.forecast)
    picture(*curves, to=out, measured=results.get("measured"), numbers=numbers)
    typer.echo(f"wrote {out}", err=True)
