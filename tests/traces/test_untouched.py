"""A pass that leaves no trace: modes that a model takes for good in a short pass are taken back."""

import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.traces.untouched import untouched

D = 16


class Full(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * D**-0.5).softmax(-1) @ v


class Windows(nn.Module):
    """Attention inside of windows of eight tokens."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        windows = [t.unflatten(1, (-1, 8)) for t in (q, k, v)]
        return ((windows[0] @ windows[1].mT * D**-0.5).softmax(-1) @ windows[2]).flatten(1, 2)


class Switching(nn.Module):
    """A block that turns from windows to full attention for good when it meets a short sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.mix = "windows", Windows()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] < 32 and self.kind == "windows":
            self.kind, self.mix = "full", Full()
        return x + self.out(self.mix(*self.qkv(x).chunk(3, -1)))


def test_a_mode_and_its_parts_are_put_back() -> None:
    block = Switching()
    parts = dict(block._modules)
    with untouched(block):
        block(torch.randn(1, 8, D))
        assert block.kind == "full"
    assert block.kind == "windows" and dict(block._modules) == parts


@torch.no_grad()
def test_a_remedy_tries_shorter_sequences_and_leaves_the_mode() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Switching() for _ in range(3))).eval(), torch.randn(2, 64, D) + 0.3
    true = x
    for block in model:
        true = block(true)
        true = true - true.mean(1, keepdim=True)
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_out"):
        found = model(x)
    assert [block.kind for block in model] == ["windows"] * 3
    assert torch.allclose(found, true, atol=1e-5)
