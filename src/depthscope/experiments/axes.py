"""The finish that all figures share."""

from typing import Any


def finish(figure: Any) -> None:
    """A light grid, and a legend where there is something to tell apart; a panel with its own legend is left alone."""
    for ax in figure.axes:
        if ax.get_legend() is None and ax.get_label() != "<colorbar>":
            ax.grid(alpha=0.25)
            if ax.get_legend_handles_labels()[0]:
                ax.legend(frameon=False, fontsize=8)
