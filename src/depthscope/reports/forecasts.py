"""A forecast for the terminal: the expected curve, when tokens are lost, and what would save them."""

import io
import math
from typing import Any

from depthscope.forecasts.record import Forecast
from depthscope.reports.chart import bars, sampled


def forecast_view(forecast: Forecast) -> Any:
    """The forecast as a rich renderable."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("block", "t_sim", "t_div", "t_cos"):
        grid.add_column(name, justify="right")
    for i in sampled(forecast.depth + 1, 13):
        values = (forecast.t_sim[i], forecast.t_div[i], forecast.t_cos[i])
        grid.add_row(str(i), *(f"{float(v):.3f}" if float(v) >= 1e-3 else f"{float(v):.1e}" for v in values))
    style = "red" if float(forecast.t_div[-1]) < 0.01 else "green"
    body: list[Any] = [
        Text(f"{forecast.depth} blocks, {forecast.n} tokens; no block was computed", style="dim"),
        Text("expected token similarity t_sim, block by block", style="bold"),
        Text("\n".join(bars(forecast.t_sim.tolist())), style=style, no_wrap=True),
        Text(in_words(forecast), style="bold"),
        grid,
        *(Text(f"assumed: {words}", style="dim") for words in forecast.assumed),
    ]
    return Panel(Group(*body), title=f"forecast: {forecast.source}", title_align="left", border_style=style)


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


def forecast_text(forecast: Forecast, width: int = 100) -> str:
    """The same as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(forecast_view(forecast))
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def picture(*forecasts: Forecast, to: str) -> None:
    """t_sim and t_div over depth, one line for each forecast."""
    from depthscope.reports.plots import need_matplotlib

    need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for forecast in forecasts:
        left.plot(forecast.t_sim, label=forecast.source)
        right.semilogy(forecast.t_div.clamp(min=1e-16))
    left.set(title="expected token similarity", xlabel="block", ylabel="t_sim", ylim=(0, 1.02))
    right.set(title="expected token diversity", xlabel="block", ylabel="t_div")
    left.legend(fontsize="small", frameon=False)
    figure.savefig(to, dpi=150)
