"""A design as the handful of numbers that the mean-field maps of theory/stacks.py want to know."""

from dataclasses import replace
from typing import Any

from depthscope.forecasts.gradients import gains_of_design
from depthscope.models.design import Design
from depthscope.theory.stacks import WIRINGS


def has_maps(design: Design) -> bool:
    """Whether the maps cover a design; laws follow the others through the code of their blocks (designs.py)."""
    return design.attention in ("softmax", "uniform") and not design.bias and design.wiring in WIRINGS


def numbers_of_design(design: Design) -> dict[str, Any]:
    """s_A, k, score_variance, hidden_variance, activation, wiring and alpha of a design that has_maps."""
    gains = gains_of_design(replace(design, wiring="post_norm", depth=1, alpha=1.0))  # a wiring adds its own later
    return {
        "s_A": float(gains.s),
        "k": float(gains.k),
        "score_variance": float(gains.v),
        "hidden_variance": gains.spread**2,
        "activation": design.activation,
        "wiring": design.wiring,
        "alpha": design.alpha,
    }
