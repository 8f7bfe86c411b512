"""Small models with several streams, several stages, and spellings of blocks that tests look at from outside."""

from typing import Any

import torch
from torch import Tensor, nn


def t5() -> tuple[nn.Module, Any]:
    """An encoder of 3 blocks, 9 tokens, and a causal decoder of 2 blocks, 7 tokens."""
    import transformers as T

    torch.manual_seed(0)
    config = T.T5Config(
        d_model=32, d_ff=64, num_layers=3, num_decoder_layers=2, num_heads=4, d_kv=8, vocab_size=99, dropout_rate=0.0
    )
    ids = {"input_ids": torch.randint(3, 99, (2, 9)), "decoder_input_ids": torch.randint(3, 99, (2, 7))}
    return T.T5Model(config).eval(), ids


def swin() -> tuple[nn.Module, Any]:
    """Two stages of two blocks: 64 tokens of width 16, then 16 of width 32."""
    import transformers as T

    torch.manual_seed(0)
    config = T.SwinConfig(image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return T.SwinModel(config).eval(), {"pixel_values": torch.randn(2, 3, 16, 16)}


class Attention(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return self.out(((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Pairs(nn.Module):
    """for attn, ff in layers: no module is a block."""

    def __init__(self) -> None:
        super().__init__()
        network = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(3)]
        self.layers = nn.ModuleList([nn.ModuleList([Attention(), ff]) for ff in network])

    def forward(self, x: Tensor) -> Tensor:
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        return x


class TanhBetween(nn.Module):
    """Nothing is added to anything, and tokens are changed between the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Attention() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = torch.tanh(3 * part(x))
        return x


class Pointwise(nn.Module):
    """A block that mixes no tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.f(x).tanh()


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no such weights")


def _tokens() -> Tensor:
    return torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))


def pairs() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return Pairs().eval(), _tokens()


def encoder() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), _tokens()


def linear() -> tuple[nn.Module, Any]:
    return nn.Linear(16, 16), _tokens()


def pointwise() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return nn.Sequential(*(Pointwise() for _ in range(3))).eval(), _tokens()


def tanh_between() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return TanhBetween().eval(), _tokens()


def raises() -> tuple[nn.Module, Any]:
    return Raises(), _tokens()
