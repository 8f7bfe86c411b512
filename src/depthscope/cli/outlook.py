"""What depthscope forecast shows: a forecast, and what was asked for beside it."""

from dataclasses import dataclass
from typing import Any

from depthscope.records import Record, plain


@dataclass(frozen=True)
class Outlook(Record):
    """A forecast, and what was asked for beside it. numbers: of a design in two numbers, for maps of collapse.

    chance: of training at the rate that was asked for.
    """

    forecast: Any
    advice: Any
    measured: Any
    numbers: dict[str, Any] | None
    chance: Any = None

    def to_dict(self) -> dict[str, Any]:
        """The forecast's own plain data, and more beside it: Forecast.load reads it."""
        beside = {"advice": self.advice} if self.advice else {}
        beside |= {"trains": self.chance} if self.chance else {}
        beside |= {"measured_t_sim": self.measured["t_sim"]} if self.measured else {}
        return self.forecast.to_dict() | plain(beside)

    def sheets(self) -> list[Any]:
        """What is told of it, for a screen."""
        from depthscope.reports.forecasts import error_in_words
        from depthscope.reports.sheet import Line, Sheet
        from depthscope.reports.show import module_for

        told = [sheet for one in (self.forecast, self.advice) if one for sheet in module_for(one).sheets(one)]
        if self.chance:
            told.append(Sheet("training", [Line(str(self.chance), "bold")], None))
        if self.measured:
            told.append(Sheet("measured", [Line(error_in_words(self.forecast, self.measured), "bold")], None))
        return told

    def view(self) -> Any:
        from rich.console import Group

        return Group(*(sheet.view() for sheet in self.sheets()))

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
