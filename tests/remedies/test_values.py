"""Where a model keeps W_V and W_O: what cannot be told apart, or be replaced without a doubt, is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
from depthscope.circuits.weights import read_weights
from depthscope.errors import HookError, UsageError
from loops import over

D, HEADS = 16, 4
X = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(1))


def classic(**choices) -> nn.Module:
    return ds.models.classic(3, D, HEADS, **{"output": True, "bias": True} | choices)


class OneMatrix(nn.Module):
    """Attention whose W_Q, W_K, W_V and W_O are rows of one matrix (4 d, d)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.W = nn.LayerNorm(D), nn.Parameter(torch.randn(4 * D, D) / D**0.5)

    def forward(self, X: Tensor) -> Tensor:
        q, k, v = F.linear(self.norm(X), self.W[: 3 * D]).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return X + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) @ self.W[3 * D :]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(OneMatrix() for _ in range(2))

    def forward(self, X: Tensor) -> Tensor:
        for block in self.blocks:
            X = block(X)
        return X


def test_a_matrix_that_would_be_replaced_twice_is_refused() -> None:
    """The last to be put would act alone: eigenvalues other than those asked for, and no word."""
    with ds.fix_(Stack(), ds.remedies.SpectralH(), blocks="blocks.*") as fix:
        with pytest.raises(HookError, match=r"blocks.0.W holds W_V of blocks.0 and W_O of blocks.0"):
            fix.model(X)
    tied = classic()
    tied.blocks[2].attention = tied.blocks[0].attention
    with ds.fix_(tied, ds.remedies.SpectralH("smooth/own/sharpen")):
        with pytest.raises(HookError, match=r"a matrix of its own .* holds W_V of blocks.0 and W_V of blocks.2"):
            tied(X)
    with ds.fix_(tied, ds.remedies.SpectralH("smooth/own/own")):  # one of the two, and the other follows
        tied(X)
        first, _, last = (torch.linalg.eigvals(one.product().sum(0)).real.min() for one in read_weights(tied, X))
        assert first == last and float(first) > -1e-6


@torch.no_grad()
def test_a_W_O_that_starts_as_the_identity_is_not_taken_for_none() -> None:
    """It would learn behind the remedy's back, and H with it."""
    model = classic()
    nn.init.eye_(model.blocks[1].attention.W_O.weight)
    with ds.fix_(model, ds.remedies.SpectralH()), pytest.raises(HookError, match=r"W_O of blocks.1 must be told"):
        model(X)
    model = classic(output=False)
    nn.init.eye_(model.blocks[1].attention.W.weight)  # rows or columns, who can tell
    with ds.fix_(model, ds.remedies.SpectralH()), pytest.raises(HookError, match=r"W_V of blocks.1 .* 2 places"):
        model(X)


@over("remedy", [ds.remedies.SigmaReparam(), ds.remedies.SpectralH()])
@over("prepared", [True, False])
def test_weights_that_are_cut_over_processes_are_refused(remedy: nn.Module, prepared: bool) -> None:
    model = classic()
    with ds.fix_(model, remedy) as fix:
        if prepared:
            model(X)
        model.blocks[0].attention.W.weight.device_mesh = "two processes"  # as a DTensor has
        with pytest.raises(UsageError, match=r"weights must be whole for S.* at .* \(FSDP\)\. Use DDP"):
            fix.model(X)
