"""Spellings of softmax attention, each in the same pre-norm blocks; what they compute is the same."""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tools.coverage.case import DEPTH, HEADS, WIDTH
from tools.coverage.written import Block, Mix, Written, written
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention


class Plain(Written):
    """Pre-norm blocks in a list, with a mixer of tokens or a spelling of attention."""

    def __init__(self, **block: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(**block) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return x


def scored(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return scores if bias is None else scores + bias


def sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def special(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return torch.special.softmax(scored(q, k, bias), dim=-1) @ v


def by_module(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return nn.Softmax(dim=-1)(scored(q, k, bias)) @ v


def into_itself(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """out=: the matrix is written where the scores were."""
    scores = scored(q, k, bias)
    torch.softmax(scores, dim=-1, out=scores)
    return scores @ v


def exp_and_sum(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    scores = scored(q, k, bias)
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v


def divided_late(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """exp(scores) v, divided by the sum at the end."""
    weights = (scored(q, k, bias)).exp()
    return (weights @ v) / weights.sum(dim=-1, keepdim=True)


def by_logsumexp(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    scores = scored(q, k, bias)
    return (scores - scores.logsumexp(dim=-1, keepdim=True)).exp() @ v


def by_log_softmax(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return F.log_softmax(scored(q, k, bias), dim=-1).exp() @ v


def blockwise(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Flash attention by hand: keys in blocks, with a running maximum and a running sum."""
    top = torch.full_like(q[..., :1], -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, k.shape[-2], 8):
        part = slice(start, start + 8)
        scores = q @ k[..., part, :].mT / math.sqrt(q.shape[-1])
        if bias is not None:
            scores = scores + bias[..., part]
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, keep = (scores - higher).exp(), (top - higher).exp()
        total, out, top = total * keep + weights.sum(-1, keepdim=True), out * keep + weights @ v[..., part, :], higher
    return out / total


def flex(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return flex_attention(q, k, v)


def flex_causal(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i >= j, s, -torch.inf)

    return flex_attention(q, k, v, score_mod=score)


def b_n_h_m(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Scores (b, n, h, m)."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = torch.einsum("bnhd,bmhd->bnhm", q, k) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias[:, None, :]
    return torch.einsum("bnhm,bmhd->bhnd", scores.softmax(-1), v)


def b_i_j_h(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Scores (b, i, j, h), the softmax over axis 2."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = torch.einsum("bihd,bjhd->bijh", q, k) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias[..., None]
    return torch.einsum("bijh,bjhd->bhid", scores.softmax(2), v)


def keys_first(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """P transposed: (b, h, m, n), the softmax over axis -2."""
    scores = k @ q.mT / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.mT
    return scores.softmax(dim=-2).mT @ v


def flattened(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Heads in the batch: bmm and baddbmm."""
    b, h, n, d = q.shape
    q, k, v = (t.reshape(b * h, n, d) for t in (q, k, v))
    start = torch.zeros(n, n) if bias is None else bias
    scores = torch.baddbmm(start.expand(b * h, n, n), q, k.mT, alpha=d**-0.5)
    return torch.bmm(scores.softmax(-1), v).reshape(b, h, n, d)


def head_by_head(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return torch.stack(
        [scored(q[:, i : i + 1], k[:, i : i + 1], bias).softmax(-1)[:, 0] @ v[:, i] for i in range(HEADS)], 1
    )


def one_by_one(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """A loop over the sequences of a batch."""
    parts = zip(q, k, v, strict=True)
    return torch.stack([scored(a[None], b[None], bias)[0].softmax(-1) @ c for a, b, c in parts])


def masked_filled(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    scores = scored(q, k, None)
    n = scores.shape[-1]
    scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v


class Multihead(nn.Module):
    """nn.MultiheadAttention, with or without its weights."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.mha, self.weights = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), weights

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=self.weights)[0]


def spelled(name: str, mix: Mix, **more: Any) -> None:
    causal = more.get("causal", False)
    written(name, partial(Plain, mix=mix, causal=causal), group="attention", **more)


SPELLINGS: dict[str, Mix] = {
    "sdpa": sdpa, "torch.special.softmax": special, "nn.Softmax": by_module, "softmax with out=": into_itself,
    "exp and sum": exp_and_sum, "exp divided late": divided_late, "logsumexp": by_logsumexp,
    "log_softmax": by_log_softmax, "blockwise flash": blockwise, "scores b n h m": b_n_h_m, "scores b i j h": b_i_j_h,
    "keys first": keys_first, "heads in the batch": flattened, "head by head": head_by_head,
    "sequence by sequence": one_by_one,
}  # fmt: skip
for _name, _mix in SPELLINGS.items():
    spelled(_name, _mix)
spelled("flex_attention", flex)
spelled("flex_attention causal", flex_causal, causal=True)
for _name in ("sdpa", "exp and sum", "blockwise flash", "scores b n h m", "heads in the batch"):
    spelled(f"{_name} causal", SPELLINGS[_name], causal=True)
spelled("masked_fill causal", masked_filled, causal=True)
for _weights in (True, False):
    written(
        f"nn.MultiheadAttention {'with' if _weights else 'without'} weights",
        lambda w=_weights: _multihead(w),
        group="attention",
        heads=False,
    )


def _multihead(weights: bool) -> Plain:
    model = Plain()
    for block in model.blocks:
        block.attn = Multihead(weights)
    return model
