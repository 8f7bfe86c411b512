"""The forecast of a design in two numbers a block: a thousand blocks in milliseconds, de-escalation at any site."""

from dataclasses import replace
from typing import Any

import torch

from depthscope.errors import UsageError
from depthscope.forecasts.gradients import gains_of_design
from depthscope.forecasts.record import Forecast
from depthscope.models.design import Design
from depthscope.theory.stacks import WIRINGS, overlaps_by_depth

ALIKE = "all tokens are alike to each other: no mask, no positions, no biases"


def has_two_numbers(design: Design) -> bool:
    """Whether the scalar form covers a design."""
    plain = design.attention in ("softmax", "uniform") and not design.causal and not design.bias
    return plain and design.wiring in WIRINGS


def numbers_of_design(design: Design) -> dict[str, Any]:
    """What theory.similarity_by_depth wants to know of a design, n and depth left out."""
    if not has_two_numbers(design):
        raise UsageError(
            "two numbers: a design must have softmax attention, no causal mask, no biases, and a wiring of "
            f"{', '.join(WIRINGS)}; got attention={design.attention}, causal={design.causal}, bias={design.bias}, "
            f"wiring={design.wiring}. Use ds.forecast(...)."
        )
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


def forecast_of_two_numbers(
    design: Design, *, n: int = 64, t_sim: float | None = None, tau: float = 0.0, site: str = "block_out"
) -> Forecast:
    """The curve of a design by the scalar form; for wirings of theory.stacks."""
    states = overlaps_by_depth(depth=design.depth, n=n, t_sim=t_sim, tau=tau, site=site, **numbers_of_design(design))
    curves = torch.tensor([[x.t_sim(n), x.t_div(n), x.rho] for x in states], dtype=torch.float64)
    t_sim_by_block, t_div, rho = curves.unbind(-1)
    name = f"{design.wiring}, tau {tau:g} at {site}" if tau else design.wiring
    return Forecast(name, n, t_sim_by_block, t_div, rho, [ALIKE])
