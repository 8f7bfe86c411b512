"""Laws through a model's own code: the axis of the tokens."""

import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.laws.boundaries import by_modules
from depthscope.laws.through_model import laws_by_block


class TimeFirst(nn.Module):
    """A block that takes tokens as (n, B, d), of which no attribute tells."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.inside = block

    def forward(self, X: Tensor) -> Tensor:
        return self.inside(X.transpose(0, 1)).transpose(0, 1)


def test_attention_tells_the_axis_of_the_tokens() -> None:
    torch.manual_seed(0)
    model = ds.models.classic(3, 32, 4).eval()
    turned = nn.Sequential(*map(TimeFirst, model))
    for batch in (8, 5):  # as many sequences as tokens, and fewer
        X = torch.randn(batch, 8, 32) + torch.randn(batch, 1, 32)
        expected = laws_by_block(model, by_modules(f"blocks.{i}" for i in range(3)), None, (X,), {}).laws
        found = laws_by_block(turned, by_modules("012"), None, (X.transpose(0, 1),), {}).laws
        for law, same in zip(expected, found, strict=True):
            torch.testing.assert_close(law.overlaps(), same.overlaps())
