"""Laws through a model's own code: the axis of the tokens."""

import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.laws.through_model import laws_by_block


class TimeFirst(nn.Module):
    """A block that takes tokens as (n, B, d), of which no attribute tells."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.inside = block

    def forward(self, X: Tensor) -> Tensor:
        return self.inside(X.transpose(0, 1)).transpose(0, 1)


def test_the_axis_of_the_tokens_can_be_given() -> None:
    torch.manual_seed(0)
    model = ds.models.classic(3, 32, 4).eval()
    X = torch.randn(8, 8, 32) + torch.randn(8, 1, 32)  # as many sequences as tokens
    turned = nn.Sequential(*map(TimeFirst, model))
    expected = laws_by_block(model, [f"blocks.{i}" for i in range(3)], (X,), {})
    found = laws_by_block(turned, ["0", "1", "2"], (X.transpose(0, 1),), {}, axis=0)
    guessed = laws_by_block(turned, ["0", "1", "2"], (X.transpose(0, 1),), {})
    for law, same, other in zip(expected, found, guessed, strict=True):
        torch.testing.assert_close(law.overlaps(), same.overlaps())
        assert not torch.allclose(law.overlaps(), other.overlaps(), atol=1e-2)
