"""Hyper-connections: k = 4 residual streams with learned widths and depths (Zhu et al. 2024, 2409.19606).

The state between blocks is one tensor (..., k, n, d) of streams; at the start all are equal and the model is pre_norm.
The paper also changes the first size of the output matrices by sqrt(k), without saying which way; here they are left.
A scan takes the streams for sequences: it sees the mean of their similarities, and k times the samples.
"""

import torch
from torch import Tensor, nn

from depthscope.models.design import Design
from depthscope.models.wirings.wiring import Branch, Wiring
from depthscope.registry import shelve

STREAMS = 4
SCALE = 0.01  # first factor of the dynamic part


class _Connection(nn.Module):
    """For one branch: A_m mixes the streams into its input, A_r the streams themselves, B spreads its output.

    (A_m, A_r) = static + s_a tanh(LN(S) W_a),  B = static + s_b tanh(LN(S) w_b): the dynamic part differs by token.
    """

    def __init__(self, d: int, branch: int, k: int = STREAMS) -> None:
        super().__init__()
        first = torch.eye(k)[:, branch % k : branch % k + 1]
        self.A = nn.Parameter(torch.cat([first, torch.eye(k)], 1))  # (k, 1 + k): A_m beside A_r
        self.B = nn.Parameter(torch.ones(k))
        self.W_a, self.w_b = nn.Parameter(torch.zeros(d, 1 + k)), nn.Parameter(torch.zeros(d))
        self.s_a, self.s_b = nn.Parameter(torch.tensor(SCALE)), nn.Parameter(torch.tensor(SCALE))
        self.norm = nn.LayerNorm(d)

    def forward(self, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """S (..., k, n, d) -> the branch's input (..., n, d), the mixed streams (..., k, n, d), B (..., k, n, 1)."""
        S_hat = self.norm(S)
        A = self.A.unsqueeze(1) + self.s_a * (S_hat @ self.W_a).tanh()  # (..., k, n, 1 + k)
        B = self.B.unsqueeze(1) + self.s_b * (S_hat @ self.w_b).tanh()  # (..., k, n)
        mixed = torch.einsum("...knj,...knd->...jnd", A, S)  # (..., 1 + k, n, d)
        return mixed[..., 0, :, :], mixed[..., 1:, :, :], B.unsqueeze(-1)


class _Begin(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        return torch.stack([X] * STREAMS, -3)


class _End(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)

    def forward(self, S: Tensor) -> Tensor:
        return self.norm(S.sum(-3))


@shelve("wiring", name="hyper_connections")
class HyperConnections(Wiring):
    """X_hat = LN(A_m^T S), S_1 = A_r^T S + B alpha SA(X_hat), Y_hat = LN(A_m^T S_1),  S_2 = A_r^T S_1 + B FFN(Y_hat)"""

    source = "Zhu et al. 2024 (2409.19606)"
    plain = "pre_norm"
    no_law = "hyper_connections start as pre_norm; forecast that. Their law is not known later."
    reads = "X_hat"

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.width_1 = _Connection(design.d, 2 * index - 2)
        self.width_2 = _Connection(design.d, 2 * index - 1)
        self.norm_1, self.norm_2 = nn.LayerNorm(design.d), nn.LayerNorm(design.d)

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        h, S, B = self.width_1(X)
        X_hat = self.norm_1(h)
        S_1 = S + B * (self.alpha * SA(X_hat)).unsqueeze(-3)
        h, S, B = self.width_2(S_1)
        Y_hat = self.norm_2(h)
        S_2 = S + B * FFN(Y_hat).unsqueeze(-3)
        return {"X_hat": X_hat, "S_1": S_1, "Y_hat": Y_hat, "S_2": S_2}

    @staticmethod
    def beginning(design: Design) -> nn.Module:
        return _Begin()

    @staticmethod
    def ending(design: Design) -> nn.Module:
        return _End(design.d)
