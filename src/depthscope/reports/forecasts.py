"""A forecast for the terminal: the expected curve, when tokens are lost, and what would save them."""

import io
import math
from typing import Any

from depthscope.forecasts.advice import Advice
from depthscope.forecasts.record import Forecast
from depthscope.reports.chart import bars, sampled
from depthscope.reports.phase import draw_depths, draw_phases
from depthscope.scans.record import Scan


def forecast_view(forecast: Forecast) -> Any:
    """The forecast as a rich renderable."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in (
        "block",
        "t_sim",
        "t_div",
        "t_cos",
        *(["t_sim, 9 of 10 between"] if forecast.band is not None else []),
    ):
        grid.add_column(name, justify="right")
    for i in sampled(forecast.depth + 1, 13):
        values = (forecast.t_sim[i], forecast.t_div[i], forecast.t_cos[i])
        cells = [f"{float(v):.3f}" if float(v) >= 1e-3 else f"{float(v):.1e}" for v in values]
        if forecast.band is not None:
            measured = i <= forecast.measured
            cells.append("measured" if measured else "{:.3f} and {:.3f}".format(*forecast.band[:, i].tolist()))
        grid.add_row(str(i), *cells)
    style = "red" if float(forecast.t_div[-1]) < 0.01 else "green"
    body: list[Any] = [
        Text(f"{forecast.depth} blocks, {forecast.n} tokens; {_basis(forecast)}", style="dim"),
        Text("expected token similarity t_sim, block by block", style="bold"),
        Text("\n".join(bars(forecast.t_sim.tolist())), style=style, no_wrap=True),
        Text(in_words(forecast), style="bold"),
        *([Text(gradients_in_words(forecast))] if forecast.gradient_growth is not None else []),
        grid,
        *(Text(f"assumed: {words}", style="dim") for words in forecast.assumed),
    ]
    return Panel(Group(*body), title=f"forecast: {forecast.source}", title_align="left", border_style=style)


def _basis(forecast: Forecast) -> str:
    if not forecast.measured:
        return "no block was computed"
    return f"{forecast.measured} of them were measured, the others were not computed"


def in_words(forecast: Forecast) -> str:
    """When the tokens are lost, and the least tau that would keep them."""
    lost, gain = forecast.collapse_depth(0.99), forecast.gain
    left = f"{float(forecast.t_div[-1]):.2g} of the signal still differs between tokens at block {forecast.depth}"
    if math.isinf(lost):
        pace = f"; in the end a block multiplies the odds of similarity by {gain:.3f}"
        return f"No collapse within {forecast.depth} blocks: {left}{pace}."
    return (
        f"Tokens are lost (t_sim above 0.99) after {lost:.1f} blocks: a block multiplies the odds of similarity by "
        f"{gain:.3f}. De-escalation with tau above {forecast.critical_tau:.2f} at block_out would stop it."
    )


def gradients_in_words(forecast: Forecast) -> str:
    """What gradients do on their way back."""
    growth = forecast.gradient_growth
    if growth is None:
        return "How gradients change is not known for this one."
    middle = growth[len(growth) // 4 : len(growth) - len(growth) // 4]
    total = math.exp(min(float(growth.log().sum()), 700.0))
    return (
        f"Token gradients change by a factor {math.exp(float(middle.log().mean())):.3f} a block on their way back, "
        f"{total:.2g} over all."
    )


def forecast_text(forecast: Forecast, width: int = 100) -> str:
    """The same as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(forecast_view(forecast))
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def advice_view(advice: Advice) -> Any:
    """What was weighed, and the choice in two sentences."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("change")
    for name in ("t_div at the end", "gradients", ""):
        grid.add_column(name, justify="right")
    for option in advice.options:
        growth = "?" if option.growth is None else f"{option.growth:.2g}"
        mark = "chosen" if option is advice.choice else "enough" if advice.keeps(option) else ""
        grid.add_row(option.change, f"{option.t_div:.2g}", growth, mark)
    return Panel(Group(Text(advice.text, style="bold"), grid), title="advice", title_align="left")


def error_in_words(forecast: Forecast, measured: Scan) -> str:
    """How far the forecast is from a scan."""
    error = (forecast.t_sim - measured["t_sim"]).abs()
    return (
        f"Measured: t_sim {float(measured['t_sim'][-1]):.3f} at block {forecast.depth}. The forecast is off by "
        f"{float(error.mean()):.3f} on average, {float(error.max()):.3f} at most (block {int(error.argmax())})."
    )


def picture(*forecasts: Forecast, to: str, measured: Scan | None = None, numbers: dict[str, Any] | None = None) -> None:
    """t_sim and t_div over depth, one line for each forecast, with their bands.

    measured: a scan, drawn as points. numbers: of a design in two numbers; then maps of collapse join, over
    (gain, tau) and over (n, alpha).
    """
    from depthscope.reports.plots import need_matplotlib

    need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.2) if numbers else (10, 3.6), layout="constrained")
    axes = figure.subplots(2 if numbers else 1, 2, squeeze=False)
    left, right = axes[0]
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
    if numbers:
        _maps(axes[1], forecasts[0], numbers)
    figure.savefig(to, dpi=150)


def _maps(axes: Any, forecast: Forecast, numbers: dict[str, Any]) -> None:
    """Where this design lies among others."""
    own = {"s_A": numbers["s_A"] * numbers["alpha"] ** 2, "alpha": 1.0}
    rest = {name: value for name, value in numbers.items() if name not in ("tau", *own)}
    here = (own["s_A"], numbers.get("tau", 0.0), float(forecast.t_sim[min(forecast.depth, 200)]))
    draw_phases(axes[0], depth=min(forecast.depth, 200), n=forecast.n, points=[here], **rest)
    draw_depths(axes[1], s_A=numbers["s_A"], tau=numbers.get("tau", 0.0), **rest)
