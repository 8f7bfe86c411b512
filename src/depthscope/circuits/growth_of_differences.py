"""How fast what differs between tokens grows where every head keeps its own attention: X -> (X + sum_h A_h X H_h) C G.

No product of eigenvalues any more, but equal tokens stay equal, so that the rest is a space of its own; the largest
growth in it is found by repeating the layer, a power iteration on n x d numbers.
"""

import torch
from torch import Tensor

from depthscope.circuits.attention_layer import Layer

STEPS = 200


def growth_apart(layer: Layer, P: Tensor, *, steps: int = STEPS) -> tuple[float, float]:
    """(log growth for each repetition, how far the estimate still moved) of Pi_2 X; P (H, n, n), rows sum to 1."""
    P = P.double() / P.double().sum(-1, keepdim=True)
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(P.shape[-1], len(layer.M), generator=draw, dtype=torch.float64).to(P.device)
    logs = []
    for _ in range(steps):
        X = layer.behind_sum(X + layer.factor * ((P @ (X @ layer.W_V)) @ layer.W_O).sum(0))
        X = X - X.mean(-2, keepdim=True)
        size = X.norm().clamp(min=1e-300)
        logs.append(size.log())
        X = X / size
    third, last = torch.stack(logs[steps // 2 : 3 * steps // 4]), torch.stack(logs[3 * steps // 4 :])
    return float(last.mean()), float((last.mean() - third.mean()).abs())
