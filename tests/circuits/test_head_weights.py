"""The weights that probing reads, against the modules' own parameters; what cannot be read is refused."""

from typing import Any

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.circuits.circuit import read_circuit
from depthscope.circuits.norm_scale import norm_scale
from depthscope.circuits.weights import HeadWeights, read_weights
from depthscope.errors import HookError, UsageError
from depthscope.models.resolve import presets
from depthscope.models.sizes import Sizes
from loops import over

DEPTH, D, H, N, B = 3, 32, 4, 11, 2
FAMILIES = (
    "classic pre_norm torch_encoder bert albert xlnet gpt2 llama vit deberta t5 qwen3 distilbert modernbert roberta deit"
).split()


def family(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model, inputs = presets()[name](Sizes(DEPTH, D, H, N, B, 0))
    for p in model.parameters():  # biases and norms that do something
        nn.init.normal_(p, std=0.3) if p.ndim > 1 else nn.init.normal_(p, mean=0.5, std=0.3)
    return model.double(), inputs.double() if inputs.is_floating_point() else inputs


def heads_in(W: Tensor) -> Tensor:
    """Columns of a matrix (d, H v) head by head, (H, d, v)."""
    return W.detach().unflatten(1, (H, -1)).transpose(0, 1)


def heads_out(W: Tensor) -> Tensor:
    """Rows of a matrix (H v, d) head by head, (H, v, d)."""
    return W.detach().unflatten(0, (H, -1))


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> bool:
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


def test_reads_berts_matrices() -> None:
    model, inputs = family("bert")
    for weights, layer in zip(read_weights(model, inputs), model.encoder.layer, strict=True):
        own, out = layer.attention.self, layer.attention.output
        for name, module in (("Q", own.query), ("K", own.key), ("V", own.value)):
            assert close(getattr(weights, f"W_{name}"), heads_in(module.weight.T))
            assert close(getattr(weights, f"b_{name}"), module.bias.detach().unflatten(0, (H, -1)))
        assert close(weights.W_O, heads_out(out.dense.weight.T))
        assert close(weights.b_O, out.dense.bias)
        assert close(weights.gamma_out, out.LayerNorm.weight, 1e-6)
        assert weights.gamma_in is None and weights.scale == pytest.approx((D / H) ** -0.5)


def test_reads_a_fused_projection() -> None:
    model, inputs = family("gpt2")
    for weights, block in zip(read_weights(model, inputs), model.h, strict=True):
        _, _, W_V = block.attn.c_attn.weight.split(D, 1)
        assert close(weights.W_V, heads_in(W_V))
        assert close(weights.W_O, heads_out(block.attn.c_proj.weight))
        assert close(weights.gamma_in, block.ln_1.weight, 1e-6)


def test_reads_grouped_heads_each_with_its_copy() -> None:
    model, inputs = family("llama")
    for weights, layer in zip(read_weights(model, inputs), model.layers, strict=True):
        grouped = layer.self_attn.v_proj.weight.T.detach().unflatten(1, (H // 2, -1)).transpose(0, 1)
        assert close(weights.W_V, grouped.repeat_interleave(2, 0))
        assert weights.W_Q is None  # turned by position


def test_reads_products_where_only_patterns_are_seen() -> None:
    model, inputs = family("xlnet")
    for weights, layer in zip(read_weights(model, inputs), model.layer, strict=True):
        own = layer.rel_attn
        product = torch.einsum("dhv,ehv->hde", own.v, own.o).detach()  # XLNet keeps o as (d, heads, width)
        assert close(weights.product(), product)
        assert weights.W_Q is None and weights.W_V.shape[-1] == D // H


@over("name", FAMILIES, every=3)
def test_every_family_is_read(name: str) -> None:
    """The branch, rebuilt from P and the matrices, is what joins the stream: X + branch leaves the attention step."""
    model, inputs = family(name)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        output = model(inputs)
        circuit = read_circuit(model, inputs)
        after = model(inputs)
    first, second = (x if isinstance(x, Tensor) else x.last_hidden_state for x in (output, after))
    assert torch.equal(first, second)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert circuit.depth == DEPTH and circuit.heads == H
    joined = _branches(model, inputs)
    for P, read, weights, truth in zip(circuit.P, circuit.reads, circuit.weights, joined, strict=True):
        branch = torch.einsum("bhnm,bmd,hdv,hve->bne", P, read, weights.W_V, weights.W_O) + weights.offset()
        assert close(branch, truth, 1e-9)


def _branches(model: nn.Module, inputs: Any) -> list[Tensor]:
    """What attention adds in every block, by a hook on the last matrix of it; XLNet has none: its norm reads the sum."""
    ends = ("W_O", "attention.output.dense", "attention.dense", "c_proj", "o_proj", "Wo", "SelfAttention.o", "out_lin")
    found: list[Tensor] = []
    handles = []
    for path, module in model.named_modules():
        if path.endswith(ends) and "mlp" not in path:
            handles.append(module.register_forward_hook(lambda *a: found.append(a[2].detach())))
        elif isinstance(module, nn.MultiheadAttention):
            handles.append(module.register_forward_hook(lambda *a: found.append(a[2][0].detach())))
        elif path.endswith("rel_attn"):
            handles.append(module.register_forward_pre_hook(lambda m, a: found.append(-a[0].transpose(0, 1))))
            handles.append(
                module.layer_norm.register_forward_pre_hook(
                    lambda m, a: found.append(found.pop() + a[0].transpose(0, 1))
                )
            )
        elif type(module).__name__ == "SelfAttention":
            handles.append(module.register_forward_hook(lambda *a: found.append(a[2].detach())))
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def test_a_branch_that_is_not_affine_is_refused() -> None:
    class Squared(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square()

    model, inputs = family("bert")
    for layer in model.encoder.layer:
        new = Squared(D, D).double()
        layer.attention.self.value = new
    with pytest.raises(HookError, match="not affine"):
        read_weights(model, inputs)


def test_blocks_without_a_stream_are_refused() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, x, x, need_weights=False)[0]
            return x

    with pytest.raises(HookError, match="residual stream"):
        read_weights(Bare(), torch.randn(2, N, D))


def test_several_streams_are_refused() -> None:
    model = ds.models.classic(2, D, H, wiring="hyper_connections")
    with pytest.raises(HookError, match=r"streams|residual stream"):
        read_weights(model, torch.randn(2, N, D))


class Attention(nn.Module):
    """With norms of queries and keys, or with heads folded into the batch."""

    def __init__(self, normed: bool, folded: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.norm: nn.Module = nn.LayerNorm(D) if normed else nn.Identity()
        self.folded = folded

    def forward(self, X: Tensor) -> Tensor:
        q, k, v = self.norm(self.q(X)), self.norm(self.k(X)), self.v(X)
        q, k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in (q, k, v))
        if self.folded:
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        mixed = mixed.unflatten(0, (len(X), H)) if self.folded else mixed
        return self.o(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, **choices: bool) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(**choices), nn.Linear(D, D)
        self.norm_1, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, X: Tensor) -> Tensor:
        X = X + self.attention(self.norm_1(X))
        return X + self.ffn(self.norm_2(X))


@over("folded", [False, True])
@over("normed", [False, True])
def test_queries_behind_a_norm_have_no_matrix_and_folded_heads_are_told_apart(normed: bool, folded: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(normed=normed, folded=folded) for _ in range(2))).double()
    for weights, block in zip(read_weights(model, torch.randn(B, N, D).double()), model, strict=True):
        assert weights.heads == H and close(weights.W_V, heads_in(block.attention.v.weight.T))
        assert close(weights.W_O, heads_out(block.attention.o.weight.T))
        assert (weights.W_Q is None) == normed
        assert normed or close(weights.W_Q, heads_in(block.attention.q.weight.T))


def test_values_that_are_read_through_another_norm_are_refused() -> None:
    class TwoNorms(Block):
        def forward(self, X: Tensor) -> Tensor:
            own = self.attention
            V, Q = self.norm_2(X), self.norm_1(X)
            q, k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in (own.q(Q), own.k(Q), own.v(V)))
            X = X + own.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
            return X + self.ffn(X)

    torch.manual_seed(0)
    model = nn.Sequential(*(TwoNorms(normed=False, folded=False) for _ in range(2)))
    for block in model:
        nn.init.normal_(block.norm_2.weight)
    with pytest.raises(HookError, match="through another norm than queries"):
        read_circuit(model.double(), torch.randn(B, N, D).double())


def test_an_output_that_starts_at_zero_is_read() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(normed=False, folded=False) for _ in range(2))).double()
    for block in model:
        nn.init.zeros_(block.attention.o.weight)
        nn.init.zeros_(block.attention.o.bias)
    for weights in read_weights(model, torch.randn(B, N, D).double()):
        assert not weights.W_O.any() and not weights.offset().any() and weights.W_Q is not None


def test_a_cache_is_refused() -> None:
    model, inputs = family("gpt2")
    with torch.no_grad():
        cache = model(inputs, use_cache=True).past_key_values
    with pytest.raises(UsageError, match="a key-value cache grows each time"):
        read_weights(model, {"input_ids": inputs, "past_key_values": cache})
    assert cache.get_seq_length() == N


class OwnNorm(nn.Module):
    """Divides by the size of a token, in its own precision, or by a constant."""

    def __init__(self, constant: bool) -> None:
        super().__init__()
        self.weight, self.constant = nn.Parameter(torch.full((D,), 2.0)), constant

    def forward(self, x: Tensor) -> Tensor:
        size = 3.0 if self.constant else (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return self.weight * x / size


@over("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_scale_of_a_norm(dtype: torch.dtype) -> None:
    assert close(norm_scale(OwnNorm(constant=False).to(dtype)), torch.full((D,), 2.0).double(), 1e-3)
    with pytest.raises(HookError, match="a norm must divide by the size of its tokens; OwnNorm gives other numbers"):
        norm_scale(OwnNorm(constant=True).to(dtype))


def test_offset_is_what_zero_tokens_give() -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = ((H, D, 8), (H, 8, D), (H, 8), (D,))
    weights = HeadWeights(*(torch.randn(*s, generator=draw, dtype=torch.float64) for s in shapes))
    P = torch.rand(H, N, N, generator=draw, dtype=torch.float64).softmax(-1)
    by_hand = sum(P[h] @ weights.b_V[h].expand(N, -1) @ weights.W_O[h] for h in range(H)) + weights.b_O
    assert close(by_hand, weights.offset().expand(N, -1))


def test_hugging_face_t5_has_scores_without_a_factor() -> None:
    model, inputs = family("t5")
    assert isinstance(model, T.T5EncoderModel)
    assert read_weights(model, inputs)[0].scale == 1.0
