"""Weights of tokens on tokens that are no plain softmax over all of them."""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tools.coverage.case import HEADS, TOKENS, WIDTH
from tools.coverage.cases.written_attention import Plain, scored
from tools.coverage.cases.written_mixing import with_mixer
from tools.coverage.written import causal_bias, plainly, written
from torch import Tensor, nn

weighed: Any = partial(written, group="weights")


def relu_weights(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return scored(q, k, bias).relu() / k.shape[-2] @ v


def sigmoid_weights(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return torch.sigmoid(scored(q, k, bias) - math.log(k.shape[-2])) @ v


def one_more(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax off by one: exp(s) / (1 + sum exp(s))."""
    weights = scored(q, k, bias).exp()
    return weights / (1 + weights.sum(-1, keepdim=True)) @ v


def zero_key(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """The same by a key and a value of zeros in front."""
    k, v = F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0))
    return F.scaled_dot_product_attention(q, k, v)


def sharpest(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Only the eight best keys of every query."""
    scores = scored(q, k, bias)
    least = scores.topk(8, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v


def sparsemax(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    scores = scored(q, k, bias)
    s = scores.sort(dim=-1, descending=True).values
    sums, count = s.cumsum(-1) - 1, torch.arange(1, s.shape[-1] + 1)
    size = (count * s > sums).sum(-1, keepdim=True)
    return (scores - sums.gather(-1, size - 1) / size).clamp(min=0) @ v


def by_distance(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return (-torch.cdist(q, k).square() / 8).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return (5 * torch.tanh(scored(q, k, bias) / 5)).softmax(-1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n = q.shape[-2]
    slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1)
    far = (torch.arange(n)[None] - torch.arange(n)[:, None]).abs()
    return plainly(q, k, v, -slopes[:, None, None] * far)


def rotated(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Rotary positions by complex numbers, as in llama.c."""
    n, d = q.shape[-2:]
    angle = torch.outer(torch.arange(n).float(), 100.0 ** -(torch.arange(0, d, 2) / d))
    turn = torch.polar(torch.ones_like(angle), angle)
    q, k = (
        torch.view_as_real(torch.view_as_complex(t.contiguous().unflatten(-1, (-1, 2))) * turn).flatten(-2)
        for t in (q, k)
    )
    return plainly(q, k, v, bias)


def dropped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """In half precision with the softmax in float32, and a dropout that does nothing."""
    P = F.softmax(scored(q, k, bias), dim=-1, dtype=torch.float32).type_as(q)
    return F.dropout(P, 0.1, training=False) @ v


def head_by_head(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Every head in a loop of its own."""
    return torch.stack([plainly(a, b, c, bias) for a, b, c in zip(*(t.unbind(1) for t in (q, k, v)), strict=True)], 1)


def merged_batch(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """(B h, n, d_h) and bmm, as fairseq writes it."""
    b, h = q.shape[:2]
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    return torch.bmm(F.softmax(torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)), -1), v).unflatten(0, (b, h))


def query_by_query(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Queries in pieces of six."""
    return torch.cat([plainly(part, k, v, None) for part in q.split(6, dim=-2)], dim=-2)


def local_causal(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n = q.shape[-2]
    near = (torch.arange(n)[:, None] - torch.arange(n)[None]) < 6
    return plainly(q, k, v, causal_bias(n).masked_fill(~near, -torch.inf))


def boolean_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    n = q.shape[-2]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(n, n, dtype=torch.bool).tril())


class Linformer(nn.Module):
    """Keys and values of eight places in the stead of n."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.E = nn.Parameter(torch.randn(8, TOKENS) * TOKENS**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = self.E @ k, self.E @ v
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        return self.out(plainly(q, k, v, None).transpose(1, 2).flatten(2))


class Synthesizer(nn.Module):
    """Weights that are learned, and depend on no token."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.v = nn.Parameter(torch.randn(HEADS, TOKENS, TOKENS)), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        v = self.v(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.out((self.scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Performer(nn.Module):
    """Positive random features for the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("omega", torch.randn(WIDTH // HEADS, 32))

    def features(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        return (x @ self.omega - x.square().sum(-1, keepdim=True) / 2).exp() + 1e-6

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = self.features(q), self.features(k)
        y = (q @ (k.mT @ v)) / (q @ k.sum(-2)[..., None])
        return self.out(y.transpose(1, 2).flatten(2))


class Differential(nn.Module):
    """The difference of two attentions, with a norm of each head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.weight = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = (t.unflatten(-1, (2 * HEADS, -1)).transpose(1, 2) for t in (self.q(x), self.k(x)))
        v = self.v(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        P = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).unflatten(1, (HEADS, 2))
        y = F.rms_norm((P[:, :, 0] - self.weight * P[:, :, 1]) @ v, (WIDTH // HEADS,))
        return self.out(y.transpose(1, 2).flatten(2))


class Relative(nn.Module):
    """Shaw's: a learned key for every distance, by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.distances = nn.Embedding(2 * TOKENS, WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in self.qkv(x).chunk(3, -1))
        n = x.shape[1]
        R = self.distances(torch.arange(n)[None] - torch.arange(n)[:, None] + n)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) + torch.einsum("bihd,ijd->bhij", q, R)
        return self.out(torch.einsum("bhij,bjhd->bihd", (scores / 4).softmax(-1), v).flatten(2))


class Prefix(nn.Module):
    """Four learned keys and values in front of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Parameter(torch.randn(4, WIDTH)), nn.Parameter(torch.randn(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = torch.cat([self.k.expand(len(x), -1, -1), k], 1), torch.cat([self.v.expand(len(x), -1, -1), v], 1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Grouped(nn.Module):
    """Two heads of keys for four of queries, by repeat_interleave or enable_gqa."""

    def __init__(self, native: bool) -> None:
        super().__init__()
        self.q, self.kv, self.out, self.native = (
            nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), native,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.kv(x).chunk(2, -1))
        if not self.native:
            k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.native)
        return self.out(y.transpose(1, 2).flatten(2))


SPELLED = {
    "relu": relu_weights, "sigmoid": sigmoid_weights, "softmax off by one": one_more, "a key of zeros": zero_key,
    "best keys": sharpest, "sparsemax": sparsemax, "distances": by_distance, "capped": capped, "alibi": alibi,
    "rotary by complex numbers": rotated, "softmax in float32": dropped, "head by head": head_by_head,
    "heads in the batch": merged_batch, "queries in pieces": query_by_query,
}  # fmt: skip
for _name, _mix in SPELLED.items():
    same = _name in ("softmax in float32", "head by head", "heads in the batch", "queries in pieces")
    weighed(f"weights {_name}", partial(Plain, mix=_mix), heads=same)
weighed("weights local causal", partial(Plain, mix=local_causal), heads=False, causal=True)
weighed("weights boolean mask", partial(Plain, mix=boolean_mask), heads=False, causal=True)
MIXERS = {
    "linformer": Linformer, "synthesizer": Synthesizer, "performer": Performer, "differential": Differential,
    "relative keys": Relative, "prefix keys": Prefix, "grouped keys": partial(Grouped, False),
    "grouped keys native": partial(Grouped, True),
}  # fmt: skip
for _name, _kind in MIXERS.items():
    weighed(f"weights {_name}", partial(with_mixer, _kind), heads=False)
