"""depthscope forecast: will this design collapse, after how many blocks, and what would save it?"""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output
from depthscope.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ForecastSource(Chosen):
    """A model, a saved scan, or sizes alone."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="A model as for scan, or a saved scan. Without it, the forecast is made from the sizes below."
        ),
    ] = None


def command(
    model: ForecastSource,
    *,
    alpha: Annotated[
        float | None, typer.Option(help="For sizes: weight of the attention branch; 1 if left out.")
    ] = None,
    wiring: Annotated[
        str | None, typer.Option(help="For sizes: pre_norm, deep_norm, ...; post_norm if left out.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="For sizes: how weights are drawn: bert, ...; xavier if left out.")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="For sizes: gelu or swiglu; relu if left out.")] = None,
    causal: Annotated[
        bool | None, typer.Option(help="For sizes, or a scan without attention: is there a causal mask?")
    ] = None,
    tau: Annotated[float, typer.Option(help="Strength of de-escalation at block_out; 0 is none.")] = 0.0,
    advise: Annotated[bool, typer.Option(help="Also find the mildest change that keeps tokens apart.")] = False,
    floor: Annotated[
        float, typer.Option(help="With --advise: the diversity t_div that must be left after the last block.")
    ] = 0.05,
    lr: Annotated[
        float | None,
        typer.Option(help="Will it train at this rate of Adam or AdamW? With --advise: find a change that does."),
    ] = None,
    measure: Annotated[bool, typer.Option(help="Also scan the model, and compare the forecast with it.")] = False,
    output: Output,
) -> None:
    """Forecast how alike tokens become with depth, from weights, from sizes or from a scan, without running tokens.

    Examples: depthscope forecast bert --depth 100 --advise;  depthscope forecast scan.json --depth 48;
    depthscope forecast --depth 1000 --width 8192 --heads 64 --n 128 --tau 0.3;
    depthscope forecast --depth 48 --lr 1e-3
    """
    if advise and tau:
        raise UsageError("--advise: finds tau itself; got --tau as well. Leave one out.")
    from depthscope.cli.outlook import Outlook
    from depthscope.forecasts.forecast import forecast

    said = {"wiring": wiring, "weights": weights, "activation": activation, "causal": causal, "alpha": alpha}
    design: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    sizes = {"depth": model.depth, "n": model.tokens, "d": model.width, "h": model.heads}
    where = model.where(forecast)
    numbers = None
    if model.model is None or model.model.endswith(".json"):
        refuse("a model", inputs=model.inputs, text=model.text, blocks=model.blocks)
    if model.model is None:
        refuse("a model", stream=model.stream)
        design = {"weights": "xavier", "output": True} | design
        source, given, choices = None, None, sizes | design
        numbers = numbers_of(design | {"d": model.width, "h": model.heads}, tau)
    elif model.model.endswith(".json"):
        refuse("sizes", **{name: value for name, value in design.items() if name != "causal"})
        source, given, choices = saved(model.model, model.stream), None, {"depth": model.depth} | design
    else:
        refuse("sizes", **design)
        source, given = model.resolved()
        choices = dict(where)
    limits = {"floor": floor, "lr": lr} if advise else None
    found, advice = predicted(source, given, choices, tau, limits, output.aside())
    scanned = measured(source, given, where, tau) if measure else None
    output.show(Outlook(found, advice, scanned, numbers, None if lr is None else found.trains(lr)))


def saved(path: str, stream: str | None) -> Any:
    """A scan from a file, of the stream that is named.

    Of two, before and after a remedy, it is the one without it, since a remedy is forecast by tau.
    """
    from depthscope.scans.record import Scan
    from depthscope.traces.streams import stream_called

    found = Scan.load(path)
    name = stream_called(stream, found.streams) or found.stream
    if found.before is None:
        return found.streams[name]
    typer.echo(
        f"{path}: holds two scans, before and after {', '.join(found.remedies)}; this is of the first.", err=True
    )
    return found.before.streams[name]


def refuse(what: str, **given: Any) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UsageError(f"--{', --'.join(names)}: goes with {what} alone. Leave it out.")


def predicted(
    source: Any, given: Any, choices: dict[str, Any], tau: float, limits: dict[str, Any] | None, console: Any
) -> tuple[Any, Any]:
    from depthscope.forecasts.advise import advise
    from depthscope.forecasts.forecast import forecast

    with console.status("forecasting" if limits is None else "weighing changes"):
        found = forecast(source, given, tau=tau, **choices)
        return found, None if limits is None else advise(source, given, **limits, **choices)


def measured(source: Any, given: Any, where: dict[str, Any], tau: float) -> Any:
    """A scan of the same model."""
    from torch import nn

    from depthscope.remedies.de_escalate import DeEscalate
    from depthscope.remedies.fix import fix_
    from depthscope.scans.scan import scan

    if not isinstance(source, nn.Module):
        raise UsageError("--measure: needs a model that can be run; sizes and scans have none. Name a preset, or more.")
    if not tau:
        return scan(source, given, metrics=["t_sim", "t_div"], attention=False, **where)
    with fix_(source, DeEscalate(tau), **where):
        return scan(source, given, metrics=["t_sim", "t_div"], attention=False, **where)


def numbers_of(choices: dict[str, Any], tau: float) -> dict[str, Any] | None:
    """The design in two numbers, for the maps; None where it has none (causal masks, some wirings)."""
    from depthscope.forecasts.numbers import has_maps, numbers_of_design
    from depthscope.models.design import design_of

    design = design_of("forecast", **choices)
    return numbers_of_design(design) | {"tau": tau} if has_maps(design) and not design.causal else None
