"""Pure formulas on numbers or tensors: what the papers predict, to be held against what the metrics measure."""

from depthscope.theory.asymptotics import Asymptotics, asymptotics
from depthscope.theory.backward import gradient_growth, growth_of_diverse_tokens
from depthscope.theory.conditions import Preconditions, preconditions
from depthscope.theory.depth import block_gain, collapse_depth, critical_tau, limit_factor, odds, similarity_after
from depthscope.theory.depth_laws import (
    deep_norm_growth,
    depth_scaled_growth,
    kernel_slope,
    layer_norm_scaling_decay,
    pre_norm_decay,
    pre_norm_exponent,
)
from depthscope.theory.growth import expected_energy, expected_xi, mu_bar, mu_bounds
from depthscope.theory.kernels import kernel
from depthscope.theory.layer_spectrum import LayerSpectrum, layer_spectrum
from depthscope.theory.participation import participation
from depthscope.theory.path_counts import PathCounts, path_counts
from depthscope.theory.path_samples import Sampled, draw_paths, sampled_paths
from depthscope.theory.paths import along_path, attend, by_length, every_path, path_matrices
from depthscope.theory.rank_collapse import (
    attention_bound,
    contraction_radius,
    head_norms,
    printed_skip_bound,
    rank_collapse_bound,
    skip_bound,
)
from depthscope.theory.rate import (
    doubly_stochastic_bound,
    expected_rate,
    rate_estimate,
    rate_lower_bound,
    ratio_estimate,
    ratio_lower_bound,
)
from depthscope.theory.ratio import concentration_gamma, expected_eta, expected_ratio
from depthscope.theory.smoothing_regions import Disc, always_smooths, never_smooths, sharpening_disc
from depthscope.theory.softmax_perturbation import column_growth, exchange_gamma, score_residual, score_spread
from depthscope.theory.stacks import covariances_by_depth, overlaps_by_depth, similarity_by_depth
from depthscope.theory.two_numbers import network_gain

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
    "similarity_by_depth",
    "overlaps_by_depth",
    "covariances_by_depth",
    "network_gain",
    "kernel",
    "kernel_slope",
    "participation",
    "pre_norm_exponent",
    "pre_norm_decay",
    "layer_norm_scaling_decay",
    "deep_norm_growth",
    "depth_scaled_growth",
    "gradient_growth",
    "growth_of_diverse_tokens",
    "rank_collapse_bound",
    "contraction_radius",
    "head_norms",
    "attention_bound",
    "skip_bound",
    "printed_skip_bound",
    "score_residual",
    "score_spread",
    "column_growth",
    "exchange_gamma",
    "path_counts",
    "PathCounts",
    "attend",
    "by_length",
    "along_path",
    "path_matrices",
    "every_path",
    "draw_paths",
    "sampled_paths",
    "Sampled",
    "LayerSpectrum",
    "layer_spectrum",
    "always_smooths",
    "never_smooths",
    "Disc",
    "sharpening_disc",
    "Asymptotics",
    "asymptotics",
]
