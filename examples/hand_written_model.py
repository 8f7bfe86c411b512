"""Scan a model that you wrote yourself, read the verdict, and put in the fix that it names.

python examples/hand_written_model.py
"""

import torch
from torch import Tensor, nn

import depthscope as ds


class Block(nn.Module):
    """Post-norm: LayerNorm after each sum."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        for weights in (*self.qkv.weight.chunk(3), self.out.weight, self.ffn[0].weight, self.ffn[2].weight):
            nn.init.xavier_uniform_(weights)

    def forward(self, x: Tensor) -> Tensor:  # (batch, n, d) -> (batch, n, d)
        batch, n, d = x.shape
        q, k, v = self.qkv(x).view(batch, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT / (d // self.heads) ** 0.5).softmax(-1) @ v  # (batch, heads, n, d / heads)
        x = self.norm_1(x + self.out(mixed.transpose(1, 2).reshape(batch, n, d)))
        return self.norm_2(x + self.ffn(x))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(d=64, heads=4) for _ in range(32))).eval()
    tokens = torch.randn(4, 32, 64)

    before = ds.scan(model, tokens)
    print("before:", before.verdict)

    with ds.fix_(model, ds.remedies.DeEscalate(tau=0.4), at="block_out"):  # undone at the end of the with
        after = ds.scan(model, tokens)
    print("after: ", after.verdict)
    print("written:", ds.report({"before": before, "after": after}, to="hand_written_model.html"))


if __name__ == "__main__":
    main()
