"""Models of several families, and their blocks written out by hand with any part left out: the independent truth."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds

PARTS = ("attention_skip", "ffn_skip", "ffn", "norms")
COMBINATIONS = [c for k in range(1, 5) for c in combinations(PARTS, k)]
DEPTH, D, HEADS, N, B = 3, 32, 4, 7, 3
IDS = torch.randint(1, 99, (B, N), generator=torch.Generator().manual_seed(2))
TOKENS = torch.randn(B, N, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
IMAGES = torch.randn(B, 3, 12, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
SIZES = {"hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "intermediate_size": 64}
TEXT = {**SIZES, "vocab_size": 99}
Map = Callable[[Tensor], Tensor]


@dataclass
class HandBlock:
    """The branches and norms of one block."""

    attend: Map
    ffn: Map
    norm_1: Map
    norm_2: Map


@dataclass
class Hand:
    """A model and its inputs; what enters the first block, the blocks, what follows the last."""

    model: nn.Module
    inputs: Tensor
    start: Callable[[], Tensor]
    blocks: list[HandBlock]
    end: Map
    pre_norm: bool

    def run(self, removed: Collection[str] = ()) -> tuple[Tensor, list[Tensor]]:
        """The output, and the state at both ends of every block."""
        states = [self.start()]
        for block in self.blocks:
            states.append(self._block(block, states[-1], removed))
        return self.end(states[-1]), states

    def _block(self, block: HandBlock, X: Tensor, removed: Collection[str]) -> Tensor:
        norm_1, norm_2 = (lambda X: X, lambda X: X) if "norms" in removed else (block.norm_1, block.norm_2)
        A = block.attend(norm_1(X) if self.pre_norm else X)
        Y = A if "attention_skip" in removed else X + A
        Y = Y if self.pre_norm else norm_1(Y)
        if "ffn" in removed:
            Z = Y
        else:
            F = block.ffn(norm_2(Y) if self.pre_norm else Y)
            Z = F if "ffn_skip" in removed else Y + F
        return Z if self.pre_norm else norm_2(Z)


def changed(model: nn.Module) -> Any:
    """In float64, with all weights moved as training would, biases and norms too."""
    model = model.double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn_like(p) / (p.shape[-1] ** 0.5 if p.ndim > 1 else 1.0)
    return model


def output(model: nn.Module, inputs: Tensor) -> Tensor:
    out = model(inputs)
    return out if isinstance(out, Tensor) else out.last_hidden_state


def softmax_attention(X: Tensor, query: Map, key: Map, value: Map, out: Map) -> Tensor:
    """Self-attention as it is written in papers, all positions seen."""
    q, k, v = (f(X).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (query, key, value))
    P = (q @ k.mT / (D / HEADS) ** 0.5).softmax(-1)
    return out((P @ v).transpose(1, 2).flatten(-2))


def bert() -> Hand:
    model = changed(T.BertModel(T.BertConfig(**TEXT)))

    def block(layer: Any) -> HandBlock:
        at, project = layer.attention.self, layer.attention.output.dense
        return HandBlock(
            lambda X: softmax_attention(X, at.query, at.key, at.value, project),
            lambda Y: layer.output.dense(layer.intermediate(Y)),
            layer.attention.output.LayerNorm,
            layer.output.LayerNorm,
        )

    blocks = [block(layer) for layer in model.encoder.layer]
    return Hand(model, IDS, lambda: model.embeddings(IDS), blocks, lambda X: X, pre_norm=False)


def albert() -> Hand:
    model = changed(T.AlbertModel(T.AlbertConfig(**TEXT, embedding_size=16)))
    layer = model.encoder.albert_layer_groups[0].albert_layers[0]
    at = layer.attention
    block = HandBlock(
        lambda X: softmax_attention(X, at.query, at.key, at.value, at.dense),
        lambda Y: layer.ffn_output(layer.activation(layer.ffn(Y))),
        at.LayerNorm,
        layer.full_layer_layer_norm,
    )

    def start() -> Tensor:
        return model.encoder.embedding_hidden_mapping_in(model.embeddings(IDS))

    return Hand(model, IDS, start, [block] * DEPTH, lambda X: X, pre_norm=False)


def xlnet() -> Hand:
    sizes = {"d_model": D, "n_layer": DEPTH, "n_head": HEADS, "d_inner": 64, "vocab_size": 99}
    model = changed(T.XLNetModel(T.XLNetConfig(**sizes)))

    def attend(rel: Any, X: Tensor) -> Tensor:
        positions = model.relative_positional_encoding(N, N, bsz=B).to(X)
        rel.post_attention = lambda h, mixed, residual=True: torch.einsum("ibnd,hnd->ibh", mixed, rel.o)
        try:
            return rel(X, None, attn_mask_h=None, attn_mask_g=None, r=positions, seg_mat=None)[0]
        finally:
            del rel.post_attention

    def block(layer: Any) -> HandBlock:
        ff = layer.ff
        return HandBlock(
            lambda X: attend(layer.rel_attn, X),
            lambda Y: ff.layer_2(ff.activation_function(ff.layer_1(Y))),
            layer.rel_attn.layer_norm,
            ff.layer_norm,
        )

    def start() -> Tensor:
        return model.word_embedding(IDS).transpose(0, 1)

    blocks = [block(layer) for layer in model.layer]
    return Hand(model, IDS, start, blocks, lambda X: X.transpose(0, 1), pre_norm=False)


def gpt2() -> Hand:
    sizes = {"n_embd": D, "n_layer": DEPTH, "n_head": HEADS, "vocab_size": 99}
    model = changed(T.GPT2Model(T.GPT2Config(**sizes)))
    blocks = [HandBlock(lambda X, b=b: b.attn(X)[0], b.mlp, b.ln_1, b.ln_2) for b in model.h]
    return Hand(model, IDS, lambda: model.wte(IDS) + model.wpe(torch.arange(N)), blocks, model.ln_f, pre_norm=True)


def llama() -> Hand:
    model = changed(T.LlamaModel(T.LlamaConfig(**TEXT, num_key_value_heads=2)))
    places = model.rotary_emb(TOKENS, torch.arange(N)[None])

    def attend(at: Any, X: Tensor) -> Tensor:
        return at(X, position_embeddings=places, attention_mask=None)[0]

    blocks = [
        HandBlock(lambda X, b=b: attend(b.self_attn, X), b.mlp, b.input_layernorm, b.post_attention_layernorm)
        for b in model.layers
    ]
    return Hand(model, IDS, lambda: model.embed_tokens(IDS), blocks, model.norm, pre_norm=True)


def vit() -> Hand:
    model = changed(T.ViTModel(T.ViTConfig(**SIZES, image_size=12, patch_size=4)))
    blocks = [
        HandBlock(lambda X, b=b: b.attention(X)[0], b.mlp, b.layernorm_before, b.layernorm_after) for b in model.layers
    ]
    return Hand(model, IMAGES, lambda: model.embeddings(IMAGES), blocks, model.layernorm, pre_norm=True)


def torch_encoder(*, norm_first: bool) -> Hand:
    layer = nn.TransformerEncoderLayer(D, HEADS, 64, batch_first=True, norm_first=norm_first)
    model = changed(nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False))

    def block(b: Any) -> HandBlock:
        return HandBlock(
            lambda X: b.self_attn(X, X, X, need_weights=False)[0],
            lambda Y: b.linear2(b.linear1(Y).relu()),
            b.norm1,
            b.norm2,
        )

    return Hand(model, TOKENS, lambda: TOKENS, [block(b) for b in model.layers], lambda X: X, norm_first)


def ours(wiring: str) -> Hand:
    """With attention at half weight: a cut skip leaves alpha SA(X), not SA(X)."""
    model = changed(ds.models.classic(DEPTH, D, HEADS, wiring=wiring, alpha=0.5))
    blocks = [
        HandBlock(lambda X, b=b: 0.5 * b.attention(X), b.ffn, b.wiring.norm_1, b.wiring.norm_2) for b in model.blocks
    ]
    return Hand(model, TOKENS, lambda: TOKENS, blocks, model.ending, wiring == "pre_norm")


FAMILIES: dict[str, Callable[[], Hand]] = {
    "bert": bert,
    "albert": albert,
    "xlnet": xlnet,
    "gpt2": gpt2,
    "llama": llama,
    "vit": vit,
    "torch post": lambda: torch_encoder(norm_first=False),
    "torch pre": lambda: torch_encoder(norm_first=True),
    "classic": lambda: ours("post_norm"),
    "pre_norm": lambda: ours("pre_norm"),
}


def built(name: str) -> Hand:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    return FAMILIES[name]()
