"""What the models of spelled_models.py must compute: the mathematics of a block, once, with the model's own weights.

Nothing here watches a model. Every site of a block and every part that can be left out is a line of its own.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from part_spellings import DEPTH, EPS, HEADS, PROJECTIONS, SUMS, N, softmax_of
from spelled_models import Model, tokens
from spellings import JOINT, Block, Way
from torch import Tensor, nn

SITES = ("block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out")
Act = Callable[[str, Tensor], Tensor]  # (site, tokens) -> tokens


@dataclass
class Run:
    """states: before block 1 and after every block, (B, n, d). reads: what attention reads. P: (B, h, n, n)."""

    states: list[Tensor]
    reads: list[Tensor] = field(default_factory=list)
    P: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def run(model: Model, act: Act = lambda site, X: X, removed: Collection[str] = ()) -> Run:
    """All blocks on tokens (B, n, d), batch first whatever the model takes."""
    out = Run([tokens(model.way)])
    for block in model.in_order():
        X = act("block_in", out.states[-1])
        out.states.append(act("block_out", _block(block, X, act, removed, out)))
    return out


def _block(block: Block, X: Tensor, act: Act, removed: Collection[str], out: Run) -> Tensor:
    way = block.way
    norms = [(lambda X: X) if "norms" in removed else _norm(block, i) for i in range(1, 5)]
    _, skip, branch = SUMS[way.sum]
    x_1 = 0.0 if "skips" in removed else skip
    if way.parallel:
        return _parallel(block, X, norms, act, removed, out)
    A = _attention(block, X if way.wiring == "post" else norms[0](X), act, out)
    A = act("sa_out", norms[2](A) if way.wiring == "sandwich" else A)
    Y = act("sa_sum", x_1 * X + branch * A)
    Y = act("ffn_in", norms[0](Y) if way.wiring == "post" else Y)
    Z = Y
    if "ffn" not in removed:
        G = _network(block, Y if way.wiring == "post" else norms[1](Y))
        G = norms[3](G) if way.wiring == "sandwich" else G
        Z = x_1 * Y + branch * G
    elif "factor" not in removed:
        Z = skip * Y  # the sum's operand goes on as it is, with its factor
    Z = act("ffn_sum", Z)
    return norms[1](Z) if way.wiring == "post" else Z


def _parallel(block: Block, X: Tensor, norms: list, act: Act, removed: Collection[str], out: Run) -> Tensor:
    wiring, x = block.way.wiring, 0.0 * X if "skips" in removed else X
    h = norms[0](X)
    A = act("sa_out", _attention(block, h, act, out))
    G = _network(block, norms[1](X) if wiring.endswith("two norms") else h)
    G = 0.0 * G if "ffn" in removed else G
    if wiring in JOINT:
        return act("ffn_sum", act("sa_sum", x + A + G))
    if wiring == "f first, x + f + a":
        return act("sa_sum", act("ffn_sum", x + G) + A)
    return act("ffn_sum", act("sa_sum", x + A) + G)


def weight(block: Block, name: str) -> tuple[Tensor, Tensor]:
    """W (in, out) and b of a matrix, wherever the block keeps it."""
    for home in (block, *block.children()):
        if isinstance(found := getattr(home, name, None), nn.Module):
            return (found.weight.mT if isinstance(found, nn.Linear) else found.weight), found.bias
        if hasattr(home, f"W_{name}"):
            return getattr(home, f"W_{name}"), getattr(home, f"b_{name}")
    raise AssertionError(f"the block has no matrix {name}")


def value_and_output(block: Block) -> tuple[Tensor, Tensor]:
    """W_V and W_O of all heads beside each other, (d, d) each."""
    if block.way.attention == "nn.MultiheadAttention":
        mha = block.mixer.mha
        return mha.in_proj_weight.chunk(3)[2].mT, mha.out_proj.weight.mT
    W_V = weight(block, "qkv")[0].chunk(3, -1)[2] if block.way.fused else weight(block, "v")[0]
    if block.way.branch == "low rank":
        return W_V, weight(block, "o_in")[0] @ weight(block, "o_out")[0]
    one_matrix = block.way.wiring == "x + cat(a, f) W"
    return W_V, weight(block, "out")[0][: len(W_V)] if one_matrix else weight(block, "o")[0]


def _times(block: Block, name: str, X: Tensor) -> Tensor:
    W, b = weight(block, name)
    return X @ W + b


def _norm(block: Block, i: int) -> Callable[[Tensor], Tensor]:
    def norm(X: Tensor) -> Tensor:
        module = getattr(block, f"norm_{i}", None)
        g = getattr(block, f"g_{i}") if module is None else module.weight
        c = getattr(block, f"c_{i}") if module is None else getattr(module, "bias", None)
        if "rms" in block.way.norm.lower():
            return X / (X.square().mean(-1, keepdim=True) + EPS).sqrt() * g
        return (X - X.mean(-1, keepdim=True)) / (X.var(-1, correction=0, keepdim=True) + EPS).sqrt() * g + c

    return norm


def _attention(block: Block, read: Tensor, act: Act, out: Run) -> Tensor:
    way = block.way
    X = act("attn_in", read)
    if way.attention == "nn.MultiheadAttention":
        mha = block.mixer.mha
        q, k, v = (X @ mha.in_proj_weight.mT + mha.in_proj_bias).chunk(3, -1)
    elif way.fused:
        q, k, v = _times(block, "qkv", X).chunk(3, -1)
    else:
        q, k, v = (_times(block, name, X) for name in "qkv")
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
    P = softmax_of(q, k, torch.ones(N, N, dtype=torch.bool).triu(1) if way.causal else None)
    out.reads.append(X)
    out.P.append(P)
    H = (P @ v).transpose(1, 2).flatten(-2)
    if way.attention == "nn.MultiheadAttention":
        Y = H @ mha.out_proj.weight.mT + mha.out_proj.bias
    elif way.branch == "low rank":
        Y = _times(block, "o_out", _times(block, "o_in", H))
    elif way.wiring == "x + cat(a, f) W":
        W, b = weight(block, "out")
        Y = H @ W[: H.shape[-1]] + b
    else:
        Y = _times(block, "o", H)
    if way.branch == "adapter":
        Y = Y + _times(block, "widen", _times(block, "narrow", Y).relu())
    return Y * _times(block, "gate", act("gate_in", read)).sigmoid() if way.branch == "gated" else Y


def _network(block: Block, X: Tensor) -> Tensor:
    hidden = _times(block, "up", X).relu()
    if block.way.wiring == "x + cat(a, f) W":
        return hidden @ weight(block, "out")[0][-hidden.shape[-1] :]
    return _times(block, "down", hidden)


# the formulas that are compared


def similarity(X: Tensor) -> tuple[float, float]:
    """t_sim = |mean token|^2 n / |X|^2 and t_div, the rest; means over the sequences.    Yu & Zhang 2023, eq. (2)."""
    common = X.shape[-2] * X.mean(-2).square().sum(-1)
    total = X.square().sum((-2, -1))
    centred = (X - X.mean(-2, keepdim=True)).square().sum((-2, -1))
    return float((common / total).mean()), float((centred / total).mean())


def largest_singular_value(P: Tensor) -> Tensor:
    """|Pi_2 P|_2 of every head, which is called delta."""
    return torch.linalg.matrix_norm(P - P.mean(-2, keepdim=True), 2)


def entropy(P: Tensor) -> Tensor:
    """Mean entropy of the rows of P."""
    return -(P * P.clamp_min(1e-300).log()).sum(-1).mean(-1)


def omega(X: Tensor, P: Tensor) -> Tensor:
    """|e^T P Pi_2 X| / |e^T X| of every head: how far attention moves the mean of the tokens that it reads."""
    centred = (X - X.mean(-2, keepdim=True)).unsqueeze(1)  # (B, 1, n, d)
    return (P @ centred).sum(-2).norm(dim=-1) / X.sum(-2).norm(dim=-1).unsqueeze(1)


def without_mean(tau: float, *, causal: bool) -> Callable[[Tensor], Tensor]:
    """X - tau mean(X); of a causal model, sum of the tokens so far over one more than there are."""

    def change(X: Tensor) -> Tensor:
        if not causal:
            return X - tau * X.mean(-2, keepdim=True)
        return X - tau * X.cumsum(-2) / torch.arange(2, X.shape[-2] + 2, dtype=X.dtype).unsqueeze(-1)

    return change


def changed_at(model: Model, sites: Collection[str], tau: float) -> Tensor:
    """The output of the model with tau of the mean token taken away at some sites of every block."""
    change = without_mean(tau, causal=model.way.causal)
    return run(model, lambda here, X: change(X) if here in sites else X).states[DEPTH]


def acts_at(way: Way) -> dict[str, str]:
    """For every site of a block: "must" a remedy act there, "may" it (or be refused), or must it "never"?"""
    if way.parallel:
        inner = dict.fromkeys(("attn_in", "sa_out", "sa_sum", "ffn_sum"), "may") | {"ffn_in": "never"}
        if way.wiring == "x + cat(a, f) W":
            inner["sa_out"] = "never"  # one bias, and no tensor that is attention's alone
        return dict.fromkeys(SITES, "must") | inner
    doubtful: set[str] = set()
    if way.wiring == "post" and way.projection in PROJECTIONS:
        doubtful |= {"attn_in"}  # no module reads the stream
    if way.norm == "written out":
        doubtful |= {"attn_in", "ffn_in", "ffn_sum"}
    if way.branch != "plain":
        doubtful |= {"sa_out", "sa_sum", "ffn_in", "ffn_sum"}  # matrices after attention, as a network has them
    return {site: "may" if site in doubtful else "must" for site in SITES}
