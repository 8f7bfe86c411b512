"""Whether a model looks trained: a forecast takes weights for random, and its band holds for such weights alone."""

import torch
from torch import Tensor, nn

from depthscope.checks import measurable
from depthscope.traces.operations import is_norm
from depthscope.traces.whole_weights import values_of, weights_in

EQUAL = 1e-4  # standard deviation of a norm's gains up to which they are those it started with
EDGE = 1.12  # largest singular value over that of a random matrix; up to 1.06 for random ones of width 16
NARROW = 16  # matrices with fewer rows or columns have singular values by chance
STEPS = 12  # of the power iteration: enough for a singular value that stands out


def sign_of_training(model: nn.Module, blocks: list[str]) -> str:
    """Why the weights of a model look trained, in words; empty where nothing says so.

    Norms start with gains that are all equal, and no training leaves them so. Where norms have no gains, a singular
    value of a block's matrix may stand out of those that random entries have.
    """
    gains = [
        (module, name)
        for module in model.modules()
        if is_norm(module)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim == 1 and len(parameter) > 1
    ]
    if any(float(measurable(values_of(*gain)).double().std()) > EQUAL for gain in gains):
        return "gains of norms differ"
    if gains:
        return ""
    places = {
        id(parameter): (owner, name)
        for path in blocks
        for owner, name, parameter in weights_in(model.get_submodule(path))
        if parameter.ndim == 2 and min(parameter.shape) >= NARROW
    }
    stands_out = any(edge(measurable(values_of(*place)).double()) > EDGE for place in places.values())
    return "singular values stand out of those of random matrices" if stands_out else ""


def edge(W: Tensor) -> float:
    """The largest singular value of W (out, in) over that of independent entries: |W| / (s (sqrt(out) + sqrt(in))).

    s^2 is the mean of W_ij^2; the power iteration finds too little where no value stands out.
    """
    x = torch.randn(W.shape[1], generator=torch.Generator().manual_seed(0), dtype=W.dtype).to(W.device)
    for _ in range(STEPS):
        x = nn.functional.normalize(W.T @ (W @ x), dim=0)
    random = W.square().mean().sqrt() * (W.shape[0] ** 0.5 + W.shape[1] ** 0.5)
    return float((W @ x).norm() / random.clamp(min=1e-300))
