"""Pure formulas on numbers or tensors: what the papers predict, to be held against what the metrics measure."""

from depthscope.theory.conditions import Preconditions, preconditions
from depthscope.theory.depth import block_gain, collapse_depth, critical_tau, limit_factor, odds, similarity_after
from depthscope.theory.growth import expected_energy, expected_xi, mu_bar, mu_bounds
from depthscope.theory.rate import (
    doubly_stochastic_bound,
    expected_rate,
    rate_estimate,
    rate_lower_bound,
    ratio_estimate,
    ratio_lower_bound,
)
from depthscope.theory.ratio import concentration_gamma, expected_eta, expected_ratio

__all__ = [
    "expected_xi",
    "mu_bar",
    "mu_bounds",
    "expected_energy",
    "expected_rate",
    "rate_lower_bound",
    "doubly_stochastic_bound",
    "rate_estimate",
    "ratio_lower_bound",
    "ratio_estimate",
    "Preconditions",
    "preconditions",
    "expected_ratio",
    "expected_eta",
    "concentration_gamma",
    "odds",
    "similarity_after",
    "block_gain",
    "limit_factor",
    "collapse_depth",
    "critical_tau",
]
