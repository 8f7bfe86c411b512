"""A design as the handful of numbers that mean-field theory wants to know: similarity by depth, growth of gradients."""

from typing import Any

from torch import Tensor

from depthscope.junctions import declared
from depthscope.models.design import Design
from depthscope.models.weights import variances
from depthscope.registry import lookup
from depthscope.theory.backward import gradient_growth, reaches
from depthscope.theory.two_numbers import network_gain


def has_maps(design: Design) -> bool:
    """Whether the maps cover a design; laws follow the others through the code of their blocks."""
    described = lookup("wiring", design.wiring).junctions(design.depth, 1) is not None
    return described and design.attention in ("softmax", "uniform") and not design.bias


def knows_sites(design: Design) -> bool:
    """Whether de-escalation can be forecast inside its blocks, and not at their ends alone."""
    return has_maps(design) and not declared(design.wiring)(design.depth, 1).network.again


def numbers_of_design(design: Design) -> dict[str, Any]:
    """What theory/stacks.py wants to know of a design that has_maps; the gains of its wiring are in its junctions."""
    gains = {
        role: shape[1] * variances(design.weights, role, shape, design.h)[0] for role, shape in design.matrices.items()
    }
    W_O = gains.get("W_O", 1.0)
    network: dict[str, Any] = {"k": 0.0, "activation": "identity", "hidden_variance": 1.0}
    if "W_2" in gains:
        gated = design.activation == "swiglu"
        function, read, linear = ("silu", "W_gate", gains["W_1"]) if gated else (design.activation, "W_1", 1.0)
        k = network_gain(function, hidden_variance=gains[read], s_2=linear * gains["W_2"])
        network = {"k": k, "activation": design.activation, "hidden_variance": gains[read], "s_2": gains["W_2"]}
    return {
        "s_A": gains["W"] * W_O,
        "s_O": W_O,
        "score_variance": gains["W_q"] * gains["W_k"] if design.attention == "softmax" else 0.0,
        "alpha": design.alpha,
        "junctions": declared(design.wiring, design.matrices),
        **network,
    }


def growth_of_design(design: Design, n: int, *, t_sim: float, tau: float = 0.0, scores: float = 1.0) -> Tensor | None:
    """|dL/dX_{l-1}| / |dL/dX_l| of every block for n tokens that start alike by t_sim, (depth,); tau de-escalates.

    scores multiplies what the softmax reads, as sqrt(scores) on both W_q and W_k does. The loss reads one token, or
    every token for itself. None where the theory does not reach: causal attention, other formulas than softmax and
    uniform, biases, junctions beyond those of post-norm and pre-norm, a single token, equal tokens without their mean.
    """
    if not has_maps(design) or design.causal or n < 2 or tau == t_sim == 1:
        return None
    numbers = numbers_of_design(design)
    if not reaches(numbers["junctions"], design.depth):
        return None
    return gradient_growth(
        design.depth,
        n=n,
        d=design.d,
        h=design.h,
        width=design.ffn_width,
        s=design.alpha**2 * numbers["s_A"],
        v=numbers["score_variance"] * scores**2,
        k=numbers["k"],
        tau=tau,
        junctions=numbers["junctions"],
        activation=numbers["activation"],
        spread=numbers["hidden_variance"] ** 0.5,
        rho=(n * t_sim - 1) / (n - 1),
    )
