"""depthscope forecast: will this design collapse, after how many blocks, and what would save it?"""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output
from depthscope.errors import UsageError
from depthscope.records import Record, plain


@dataclass(frozen=True, kw_only=True)
class ForecastSource(Chosen):
    """A model, a saved scan, or sizes alone."""

    model: Annotated[
        str | None, typer.Argument(help="A model as for scan, forecast by its weights; without one, the sizes below.")
    ] = None


@dataclass(frozen=True)
class Outlook(Record):
    """A forecast, and what was asked for beside it. numbers: of a design in two numbers, for maps of collapse."""

    forecast: Any
    advice: Any
    measured: Any
    numbers: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """The forecast's own plain data, and more beside it: Forecast.load reads it."""
        beside = {"advice": self.advice} if self.advice else {}
        beside |= {"measured_t_sim": self.measured["t_sim"]} if self.measured else {}
        return self.forecast.to_dict() | plain(beside)

    def view(self) -> Any:
        from rich.console import Group

        from depthscope.reports.forecasts import error_in_words

        said = [error_in_words(self.forecast, self.measured)] if self.measured else []
        return Group(*(one.view() for one in (self.forecast, self.advice) if one), *said)

    def told_as(self) -> list[Record]:
        return [one for one in (self.forecast, self.advice, self.measured) if one]

    def draw(self, figure: Any = None) -> Any:
        """The forecast and the chosen change, with points that were measured, and maps where there are numbers."""
        from depthscope.reports.forecasts import draw_forecasts, draw_maps
        from depthscope.reports.show import new_figure

        figure = new_figure((10, 7.2) if self.numbers else (10, 3.6)) if figure is None else figure
        axes = figure.subplots(2 if self.numbers else 1, 2, squeeze=False)
        chosen = [self.advice.choice.forecast] if self.advice and self.advice.needed else []
        draw_forecasts(axes[0], self.forecast, *chosen, measured=self.measured)
        if self.numbers:
            draw_maps(axes[1], self.forecast, self.numbers)
        return figure


def command(
    model: ForecastSource,
    *,
    alpha: Annotated[float | None, typer.Option(help="Weight of the attention branch (sizes; 1 if not said).")] = None,
    wiring: Annotated[str | None, typer.Option(help="post_norm (if not said), pre_norm, ... (sizes).")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight law (sizes): xavier (if not said), bert, ...")] = None,
    activation: Annotated[str | None, typer.Option(help="relu (if not said), gelu or swiglu (sizes).")] = None,
    causal: Annotated[bool | None, typer.Option(help="A causal mask (sizes, or a scan without attention).")] = None,
    tau: Annotated[float, typer.Option(help="De-escalation at block_out.")] = 0.0,
    advise: Annotated[bool, typer.Option(help="Add the mildest change that keeps tokens apart.")] = False,
    floor: Annotated[float, typer.Option(help="With --advise: t_div that must be left at the last block.")] = 0.05,
    measure: Annotated[bool, typer.Option(help="Also scan the model, and compare.")] = False,
    output: Output,
) -> None:
    """Forecast how alike tokens become with depth, from weights, from sizes or from a scan, without computing a block.

    Examples: depthscope forecast bert --depth 100 --advise;  depthscope forecast scan.json --depth 48;
    depthscope forecast --depth 1000 --width 8192 --heads 64 --n 128 --tau 0.3
    """
    if advise and tau:
        raise UsageError("--advise: finds tau itself; got --tau as well. Leave one out.")
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
    found, advice = predicted(source, given, choices, tau, floor if advise else None)
    scanned = measured(source, given, where, tau) if measure else None
    output.show(Outlook(found, advice, scanned, numbers))


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


def predicted(source: Any, given: Any, choices: dict[str, Any], tau: float, floor: float | None) -> tuple[Any, Any]:
    from rich.console import Console

    from depthscope.forecasts.advise import advise
    from depthscope.forecasts.forecast import forecast

    with Console(stderr=True).status("forecasting" if floor is None else "weighing changes"):
        found = forecast(source, given, tau=tau, **choices)
        return found, None if floor is None else advise(source, given, floor=floor, **choices)


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
