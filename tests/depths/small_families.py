"""Small models of many families with random weights, and inputs for them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DEPTH, WIDTH, WORDS = 4, 16, 61


@dataclass
class Tiny:
    model: nn.Module
    inputs: Any
    blocks: nn.ModuleList
    loss: Any = None


def ids(rows: int = 4, tokens: int = 10, seed: int = 3) -> Tensor:
    return torch.randint(WORDS, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def lively(model: nn.Module) -> nn.Module:
    """Weights large enough for every block to count."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(torch.randn(p.shape, generator=generator) * 1.5 / p.shape[-1] ** 0.5)
    return model.eval()


def llama(depth: int = DEPTH) -> Tiny:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    model = lively(LlamaForCausalLM(config))
    return Tiny(model, ids(), model.model.layers)


def qwen3(depth: int = DEPTH) -> Tiny:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        max_position_embeddings=64,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=2,
    )
    model = lively(Qwen3ForCausalLM(config))
    return Tiny(model, ids(), model.model.layers)


def gpt2(depth: int = DEPTH) -> Tiny:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=depth, n_head=4, n_positions=64)
    model = lively(GPT2LMHeadModel(config))
    return Tiny(model, ids(), model.transformer.h)


def bert(depth: int = DEPTH) -> Tiny:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=depth,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model = lively(BertForMaskedLM(config))
    words = ids()
    return Tiny(model, {"input_ids": words, "labels": words.flip(0)}, model.bert.encoder.layer)


def vit(depth: int = DEPTH) -> Tiny:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_labels=5,
    )
    model = lively(ViTForImageClassification(config))
    pixels = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    given = {"pixel_values": pixels, "labels": torch.tensor([0, 1, 2, 3])}
    return Tiny(model, given, model.vit.layers if hasattr(model.vit, "layers") else model.vit.encoder.layer)


def squares(output: Any, inputs: Any) -> Tensor:
    """A loss of a model without a head: how far from its inputs."""
    return (output - inputs).square().mean((-2, -1))


def encoder(depth: int = DEPTH) -> Tiny:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 24, batch_first=True, norm_first=True)
    model = lively(nn.TransformerEncoder(layer, depth, enable_nested_tensor=False))
    X = torch.randn(4, 6, WIDTH, generator=torch.Generator().manual_seed(0))
    return Tiny(model, X, model.layers, squares)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(self.norm(x)).relu())


class ByHand(nn.Module):
    """Blocks that are no modules: pairs in a list, summed by the loop."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(nn.ModuleList([Attention(), Network()]) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for attention, network in self.layers:
            x = x + attention(x)
            x = x + network(x)
        return self.head(self.norm(x))


def by_hand(depth: int = DEPTH) -> Tiny:
    model = lively(ByHand(depth))
    return Tiny(model, ids(), model.layers)


FAMILIES = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "qwen3": qwen3,
    "vit": vit,
    "encoder": encoder,
    "by_hand": by_hand,
}
