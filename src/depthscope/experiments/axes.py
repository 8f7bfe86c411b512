"""The finish that all figures share."""

from typing import Any


def finish(*axes: Any) -> None:
    """A light grid, and a legend where there is something to tell apart."""
    for ax in axes:
        ax.grid(alpha=0.25)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False, fontsize=8)
