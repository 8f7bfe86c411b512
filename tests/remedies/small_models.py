"""Models that people ship, small and random, each with inputs: what the tests of fixes in production share."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as T
from torch import Tensor, nn

IDS = torch.randint(1, 99, (2, 7), generator=torch.Generator().manual_seed(4))
X = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(5))
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 99}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.1}


def gpt2(depth: int = 3, width: int = 16) -> nn.Module:
    sizes = {"n_embd": width, "n_layer": depth, "n_head": 2, "vocab_size": 99, "n_positions": 64}
    return T.GPT2LMHeadModel(T.GPT2Config(**sizes, **ENDS)).eval()


def llama() -> nn.Module:
    return T.LlamaForCausalLM(T.LlamaConfig(**SIZES, **ENDS, num_key_value_heads=2)).eval()


def bert() -> nn.Module:
    return T.BertModel(T.BertConfig(**SIZES, initializer_range=0.1)).eval()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


class Block(nn.Module):
    """Pre-norm, attention written by hand."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ffn = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        P = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        x = x + self.out(P @ v)
        return x + self.ffn(x)


class Written(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(16) for _ in range(depth)), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def written() -> nn.Module:
    return Written().eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "gpt2": (gpt2, IDS),
    "llama": (llama, IDS),
    "bert": (bert, IDS),
    "encoder": (encoder, X),
    "written": (written, X),
}


@torch.no_grad()
def out(model: Any, inputs: Tensor, **more: Any) -> Tensor:
    """The first tensor that a model gives."""
    found = model(inputs, **more)
    return found if isinstance(found, Tensor) else next(iter(found.values()))


def shifted(model: nn.Module) -> None:
    """Move what the remedies of a model have learned away from where it began, each by another step."""
    with torch.no_grad():
        for i, (name, parameter) in enumerate(model.named_parameters()):
            if "depthscope_" in name:
                parameter += 0.1 + 0.01 * i
