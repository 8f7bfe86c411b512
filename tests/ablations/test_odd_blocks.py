"""Blocks that are written otherwise: cut rightly, or refused with the reason; never cut in half."""

import pytest
import torch
import torch.nn.functional as F
import transformers as T
from blocks_by_hand import HEADS, IDS, SIZES, TEXT, TOKENS, B, D, N, changed, output
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import HookError
from loops import over

X = TOKENS


class Attention(nn.Module):
    """softmax attention; with norms of queries and keys over the whole width, as OLMo 2 has them."""

    def __init__(self, normed: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.q_norm, self.k_norm = (nn.LayerNorm(D) if normed else nn.Identity() for _ in range(2))

    def forward(self, X: Tensor) -> Tensor:
        q, k, v = self.q_norm(self.q(X)), self.k_norm(self.k(X)), self.v(X)
        q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (q, k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Plain(nn.Module):
    """Pre-norm; subclasses write it in other ways."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(normed=True)
        self.ffn = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))
        self.other = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))
        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = (nn.LayerNorm(D) for _ in range(4))

    def forward(self, X: Tensor) -> Tensor:
        X = X + self.attention(self.norm_1(X))
        return X + self.ffn(self.norm_2(X))


class InPlace(Plain):
    def forward(self, X: Tensor) -> Tensor:
        A = self.attention(self.norm_1(X))
        A += X  # written into the branch
        F = self.ffn(self.norm_2(A))
        A.add_(F)  # written into the stream, its name kept
        return A


class Functions(Plain):
    def forward(self, X: Tensor) -> Tensor:
        X = torch.add(X, self.attention(F.layer_norm(X, (D,), self.norm_1.weight, self.norm_1.bias)))
        Y = F.layer_norm(X, (D,), self.norm_2.weight, self.norm_2.bias)
        return torch.add(self.ffn(Y), X)


class NamedOperands(Plain):
    def forward(self, X: Tensor) -> Tensor:
        X = torch.add(X, other=self.attention(self.norm_1(X)))
        return torch.add(input=X, other=self.ffn(self.norm_2(X)))


class Sandwich(Plain):
    def forward(self, X: Tensor) -> Tensor:
        X = X + self.norm_3(self.attention(self.norm_1(X)))
        return X + self.norm_4(self.ffn(self.norm_2(X)))


class Macaron(Plain):
    def forward(self, X: Tensor) -> Tensor:
        X = X + 0.5 * self.other(self.norm_3(X))
        return super().forward(X)


class TwoNetworks(Plain):
    def forward(self, X: Tensor) -> Tensor:
        X = super().forward(X)
        return X + self.other(self.norm_3(X))


class OnlyAttention(Plain):
    def forward(self, X: Tensor) -> Tensor:
        return X + self.attention(self.norm_1(X))


class FarSkip(Plain):
    def forward(self, X: Tensor) -> Tensor:
        Y = X + self.attention(self.norm_1(X))
        return X + Y + self.ffn(self.norm_2(Y))


class FarSkipInBranch(Plain):
    def forward(self, X: Tensor) -> Tensor:
        Y = X + self.attention(self.norm_1(X))
        return Y + (self.ffn(self.norm_2(Y)) + X)


class SideBySide(Plain):
    """In parallel, but summed one after the other."""

    def forward(self, X: Tensor) -> Tensor:
        Y = self.norm_1(X)
        X = X + self.attention(Y)
        return X + self.ffn(Y)


class NoNorms(Plain):
    def forward(self, X: Tensor) -> Tensor:
        X = X + self.attention(X)
        return X + self.ffn(X)


class Head(nn.Module):
    """The values are made after the softmax, as many tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D // HEADS, bias=False) for _ in range(3))

    def forward(self, X: Tensor) -> Tensor:
        P = (self.q(X) @ self.k(X).mT * (D // HEADS) ** -0.5).softmax(-1)
        return F.dropout(P, 0.1, self.training) @ self.v(X)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.ModuleList(Head() for _ in range(HEADS)), nn.Linear(D, D)

    def forward(self, X: Tensor) -> Tensor:
        return self.out(torch.cat([head(X) for head in self.heads], -1))


class StackedHeads(Heads):
    def forward(self, X: Tensor) -> Tensor:
        return self.out(torch.stack([head(X) for head in self.heads], -2).flatten(-2))


class HeadByHead(Plain):
    """One module for each head, and what they give side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Heads()


class HeadsInAStack(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.attention = StackedHeads()


class Stack(nn.Module):
    def __init__(self, kind: type[Plain]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(2))

    def forward(self, X: Tensor) -> Tensor:
        for block in self.blocks:
            X = block(X)
        return X


def stack(kind: type[Plain]) -> Stack:
    torch.manual_seed(0)
    return changed(Stack(kind))


def by_hand(model: Stack, removed: tuple[str, ...]) -> Tensor:
    Y = X
    for block in model.blocks:
        sandwich = isinstance(block, Sandwich)
        norms = [n if "norms" not in removed else nn.Identity() for n in (block.norm_1, block.norm_2)]
        after = [n if sandwich and "norms" not in removed else nn.Identity() for n in (block.norm_3, block.norm_4)]
        A = after[0](block.attention(norms[0](Y)))
        Y = A if "attention_skip" in removed else Y + A
        if "ffn" not in removed:
            G = after[1](block.ffn(norms[1](Y)))
            Y = G if "ffn_skip" in removed else Y + G
    return Y


@over("removed", [("attention_skip",), ("ffn_skip",), ("ffn",), ("norms",), ("attention_skip", "norms")])
@over("kind", [Plain, InPlace, Functions, Sandwich, NamedOperands, HeadByHead, HeadsInAStack])
def test_sums_in_place_norms_as_functions_and_norms_of_branches(kind: type[Plain], removed: tuple[str, ...]) -> None:
    model = stack(kind)
    with torch.no_grad(), ds.without_(model, *removed):
        torch.testing.assert_close(model(X), by_hand(model, removed))  # norms of queries and keys stay


@over("kind", [Plain, HeadByHead, HeadsInAStack])
@over("site", ["sa_sum", "ffn_in"])
def test_a_remedy_finds_attention_and_network(kind: type[Plain], site: str) -> None:
    """At a sum of attention, and where the network reads: its norm sees the tokens that the remedy made."""
    model, twin = stack(kind), stack(kind)

    def fixed(block: Plain, X: Tensor) -> Tensor:
        X = X + block.attention(block.norm_1(X))
        return (Y := X - X.mean(-2, keepdim=True)) + block.ffn(block.norm_2(Y))

    truth = fixed(twin.blocks[1], fixed(twin.blocks[0], X))
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(tau=1.0), at=site):
        torch.testing.assert_close(model(X), truth)


class WrittenNorm(Plain):
    def forward(self, X: Tensor) -> Tensor:
        X = X + self.attention(self.norm_1(X))
        return X + self.ffn(self.norm_2(X).mul_(2.0))


REFUSED = [
    (WrittenNorm, "norms", "the output of a norm is written into"),
    (Macaron, "ffn", "a branch joins the stream before attention"),
    (TwoNetworks, "ffn", "a sum with the stream has no branch of its own"),
    (OnlyAttention, "ffn", "no ffn"),
    (OnlyAttention, "skips", "no ffn_skip"),
    (FarSkip, "skips", "a sum with the stream has no branch of its own"),
    (FarSkipInBranch, "skips", "a sum with the stream has no branch of its own"),
    (SideBySide, "ffn_skip", "the feed-forward network does not read the sum that attention has joined"),
    (SideBySide, "attention_skip", "the feed-forward network does not read the sum that attention has joined"),
    (NoNorms, "norms", "no norms"),
]


@over("kind, part, why", REFUSED)
def test_what_cannot_be_cut_is_said(kind: type[Plain], part: str, why: str) -> None:
    model = stack(kind)
    with torch.no_grad():
        before = model(X)
        with ds.without_(model, part), pytest.raises(HookError, match=rf"in blocks\.0, blocks\.1 of Stack: {why}"):
            model(X)
        assert torch.equal(model(X), before)


@over(
    "wiring, part, why",
    [
        ("b2t", "skips", "a sum with the stream has no branch of its own"),
        ("resi_dual", "attention_skip", "a branch joins a second stream too"),
        ("resi_dual", "ffn", "a branch joins a second stream too"),
        ("admin", "attention_skip", "no attention_skip"),
        ("hyper_connections", "norms", "a norm works on something that is not the stream"),
        ("hyper_connections", "ffn", "no ffn"),
    ],
)
def test_wirings_with_more_than_one_stream(wiring: str, part: str, why: str) -> None:
    model = ds.models.classic(2, D, HEADS, wiring=wiring).double()
    with torch.no_grad(), ds.without_(model, part), pytest.raises(HookError, match=why):
        model(X)


def test_attention_and_network_side_by_side() -> None:
    model = changed(T.GPTNeoXModel(T.GPTNeoXConfig(**TEXT)))
    for part in ("skips", "attention_skip", "ffn"):
        with torch.no_grad(), ds.without_(model, part), pytest.raises(HookError, match="join the stream in one sum"):
            model(IDS)
    with torch.no_grad(), ds.without_(model, "norms"):
        found = output(model, IDS)
        for layer in model.layers:
            layer.input_layernorm = layer.post_attention_layernorm = nn.Identity()
    torch.testing.assert_close(found, output(model, IDS))


def test_two_attentions_and_two_networks_in_one_module_are_two_blocks() -> None:
    model = changed(T.AlbertModel(T.AlbertConfig(**TEXT, embedding_size=16, inner_group_num=2)))
    with torch.no_grad(), ds.without_(model, "ffn"):
        found = output(model, IDS)
    for layer in model.encoder.albert_layer_groups[0].albert_layers:
        layer.ff_chunk = lambda tokens: 0 * tokens
    with torch.no_grad():
        torch.testing.assert_close(found, output(model, IDS))


def test_a_decoder_with_cross_attention_loses_both_attention_skips() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.TransformerDecoderLayer(D, HEADS, 64, batch_first=True) for _ in range(2))

        def forward(self, Y: Tensor, memory: Tensor) -> Tensor:
            for layer in self.layers:
                Y = layer(Y, memory)
            return Y

    model, memory = changed(Decoder()), torch.randn(B, N + 2, D, dtype=torch.float64)
    with torch.no_grad(), ds.without_(model, "attention_skip", "norms"):
        found = model(X, memory)
        Y = X
        for layer in model.layers:
            Y = layer.self_attn(Y, Y, Y, need_weights=False)[0]
            Y = layer.multihead_attn(Y, memory, memory, need_weights=False)[0]
            Y = Y + layer.linear2(layer.linear1(Y).relu())
    torch.testing.assert_close(found, Y)


def test_a_first_block_without_a_norm_before_attention() -> None:
    model = changed(T.ModernBertModel(T.ModernBertConfig(**TEXT, pad_token_id=0)))
    with torch.no_grad(), ds.without_(model, "skips"):
        found = output(model, IDS)
    states: list[Tensor] = []
    with torch.no_grad():
        for layer in model.layers:  # the same by other means: a branch less what its skip will add
            layer.register_forward_pre_hook(lambda m, args: states.append(args[0]))
            layer.attn.register_forward_hook(lambda m, args, out: (out[0] - states[-1], *out[1:]))
            layer.mlp_norm.register_forward_pre_hook(lambda m, args: states.append(args[0]))
            layer.mlp.register_forward_hook(lambda m, args, out: out - states[-1])
        torch.testing.assert_close(found, output(model, IDS))


def test_a_network_in_chunks_is_refused() -> None:
    model = changed(T.BertModel(T.BertConfig(**SIZES, vocab_size=99, chunk_size_feed_forward=1)))
    with torch.no_grad(), ds.without_(model, "ffn"), pytest.raises(HookError, match="no ffn"):
        model(IDS)
