"""A forecast for the terminal: the expected curve, when tokens are lost, and what would save them."""

import math
from typing import Any

from torch import Tensor

from depthscope.forecasts.record import Forecast
from depthscope.reports.chart import sampled
from depthscope.reports.phase import draw_depths, draw_phases
from depthscope.reports.sheet import Bars, Grid, Line, Part, Sheet
from depthscope.scans.record import Scan

SIZE = (10, 3.6)
WIDTH = 100


def sheets(forecast: Forecast) -> list[Sheet]:
    names = ["block", "t_sim", "t_div", "t_cos", *(["t_sim, 9 of 10 between"] if forecast.band is not None else [])]
    style = "red" if float(forecast.t_div[-1]) < 0.01 else "green"
    curve = forecast.t_sim.tolist()
    body: list[Part] = [
        Line(f"{forecast.depth} blocks, {forecast.n} tokens; {basis(forecast)}", "dim"),
        Line("expected token similarity t_sim, block by block", "bold"),
        Bars(curve, style),
        Line(in_words(forecast), "bold"),
        *(Line(f"warning: {words}", "bold red") for words in forecast.warnings),
        *([Line(gradients_in_words(forecast))] if forecast.gradient_growth is not None else []),
        *([Line(rate_in_words(forecast))] if forecast.rate_limit is not None else []),
        Grid(names, [_cells(forecast, i) for i in sampled(forecast.depth + 1, 13)], fold=None),
        *(Line(f"assumed: {words}", "dim") for words in forecast.assumed),
    ]
    return [Sheet(f"forecast: {forecast.source}", body, style)]


def _cells(forecast: Forecast, i: int) -> list[str]:
    values = [float(curve[i]) for curve in (forecast.t_sim, forecast.t_div, forecast.t_cos)]
    cells = [str(i), *(f"{v:.3f}" if v >= 1e-3 else f"{v:.1e}" for v in values)]
    if forecast.band is not None:
        measured = i <= forecast.measured
        cells.append("measured" if measured else "{:.3f} and {:.3f}".format(*forecast.band[:, i].tolist()))
    return cells


def basis(forecast: Forecast) -> str:
    """What the forecast rests on."""
    if not forecast.measured:
        return "no block was computed"
    return f"{forecast.measured} of them were measured, the others were not computed"


def in_words(forecast: Forecast) -> str:
    """When the tokens are lost, and the least tau that would keep them."""
    lost, gain = forecast.collapse_depth(0.99), forecast.gain
    left = f"{float(forecast.t_div[-1]):.2g} of the signal still differs between tokens at block {forecast.depth}"
    if forecast.band is not None:
        left += "; t_sim {:.2f} ({:.2f} to {:.2f} in nine cases of ten)".format(
            float(forecast.t_sim[-1]), *forecast.band[:, -1].tolist()
        )
    if math.isinf(lost):
        pace = f"; in the end a block multiplies the odds of similarity by {gain:.3f}"
        return f"No collapse within {forecast.depth} blocks: {left}{pace}."
    return (
        f"Tokens are lost (t_sim above 0.99) after {lost:.1f} blocks{_between(forecast)}: a block multiplies the odds "
        f"of similarity by {gain:.3f}. De-escalation with tau above {forecast.critical_tau:.2f} at block_out would "
        "stop it."
    )


def _between(forecast: Forecast) -> str:
    """By which block they are lost at the edges of the band."""
    if forecast.band is None:
        return ""
    early, late = (_crossing(forecast.band[edge]) for edge in (1, 0))
    return f" ({early} to {late} in nine cases of ten)"


def _crossing(curve: Tensor) -> str:
    above = (curve >= 0.99).nonzero()
    return str(int(above[0])) if len(above) else f"more than {len(curve) - 1}"


def gradients_in_words(forecast: Forecast) -> str:
    """What gradients do on their way back."""
    growth = forecast.gradient_growth
    if growth is None:
        return "How gradients change is not known for this forecast."
    middle = growth[len(growth) // 4 : len(growth) - len(growth) // 4]
    total = math.exp(min(float(growth.log().sum()), 700.0))
    return (
        f"Token gradients change by a factor {math.exp(float(middle.log().mean())):.3f} a block on their way back, "
        f"{total:.2g} over all."
    )


def rate_in_words(forecast: Forecast) -> str:
    """The largest learning rate, where it is known."""
    return f"Largest learning rate, by a forecast: about {forecast.largest_rate:.1g} (Adam or AdamW, no warm-up)."


def error_in_words(forecast: Forecast, measured: Scan) -> str:
    """How far the forecast is from a scan."""
    error = (forecast.t_sim - measured["t_sim"]).abs()
    return (
        f"Measured: t_sim {float(measured['t_sim'][-1]):.3f} at block {forecast.depth}. The forecast is off by "
        f"{float(error.mean()):.3f} on average, {float(error.max()):.3f} at most (block {int(error.argmax())})."
    )


def draw(forecast: Forecast, figure: Any) -> None:
    draw_forecasts(figure.subplots(1, 2), forecast)


def draw_forecasts(axes: Any, *forecasts: Forecast, measured: Scan | None = None) -> None:
    """t_sim and t_div over depth, one line for each forecast, with their bands. measured: a scan, drawn as points."""
    left, right = axes
    for forecast in forecasts:
        line = left.plot(forecast.t_sim, label=forecast.source)[0]
        if forecast.band is not None:
            blocks = range(forecast.depth + 1)
            left.fill_between(blocks, *forecast.band, color=line.get_color(), alpha=0.2, label="9 of 10 models")
        right.semilogy(forecast.t_div.clamp(min=1e-16))
    if measured is not None:
        left.plot(measured["t_sim"], "k.", ms=4, label="measured")
        right.semilogy(measured["t_div"].clamp(min=1e-16), "k.", ms=4)
    left.set(title="token similarity", xlabel="block", ylabel="t_sim", ylim=(0, 1.02))
    right.set(title="token diversity", xlabel="block", ylabel="t_div")
    left.legend(fontsize="small", frameon=False)


def draw_maps(axes: Any, forecast: Forecast, numbers: dict[str, Any]) -> None:
    """Where this design lies among others, over (gain, tau) and over (n, alpha); numbers: the design in two numbers."""
    own = {"s_A": numbers["s_A"] * numbers["alpha"] ** 2, "alpha": 1.0}
    rest = {name: value for name, value in numbers.items() if name not in ("tau", *own)}
    here = (own["s_A"], numbers.get("tau", 0.0), float(forecast.t_sim[min(forecast.depth, 200)]))
    draw_phases(axes[0], depth=min(forecast.depth, 200), n=forecast.n, points=[here], **rest)
    draw_depths(axes[1], s_A=numbers["s_A"], tau=numbers.get("tau", 0.0), **rest)
