"""Models of hand-written blocks: how the blocks are kept and called, their weights, and the list of all ways."""

from dataclasses import replace

import torch
from part_spellings import ATTENTIONS, DEPTH, NORMS, PROJECTIONS, SUMS, D, N
from spellings import PARALLEL, Block, Way
from torch import Tensor, nn


class Model(nn.Module):
    """Blocks in a list, in nn.Sequential, as attributes of their own, or one that is called again and again."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        if way.stack == "shared":
            self.block = Block(way)
        elif way.stack == "attributes":
            for i in range(DEPTH):
                setattr(self, f"layer{i}", Block(way))
        else:
            self.layers = getattr(nn, way.stack)().extend([Block(way) for _ in range(DEPTH)])

    def in_order(self) -> list[Block]:
        if self.way.stack == "shared":
            return [self.block] * DEPTH
        if self.way.stack == "attributes":
            return [getattr(self, f"layer{i}") for i in range(DEPTH)]
        return list(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()  # some blocks write into their input
        if self.way.stack == "Sequential":
            return self.layers(x)
        for block in self.in_order():
            x = block(hidden_states=x) if self.way.call == "block(hidden_states=x)" else block(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def built(way: Way, *, seed: int = 0) -> Model:
    """In float64, with weights so wide that heads differ, biases and norms that are not as they start."""
    torch.manual_seed(seed)
    model = Model(way).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            last = name.rpartition(".")[2]
            if p.ndim > 1:
                rows = p.shape[1] if type(model.get_submodule(name.rpartition(".")[0])) is nn.Linear else p.shape[0]
                p.copy_(torch.randn_like(p) / rows**0.5)
            else:
                is_scale = last.startswith("g_") or (last == "weight" and "norm" in name)
                p.copy_(float(is_scale) + 0.2 * torch.randn_like(p))
    return model


def tokens(way: Way) -> Tensor:
    """(B, n, d), with something in common."""
    G = torch.Generator().manual_seed(1)
    X = torch.randn(way.sequences, N, D, generator=G, dtype=torch.float64)
    return X + 0.3 * torch.randn(way.sequences, 1, D, generator=G, dtype=torch.float64)


def given(way: Way) -> Tensor:
    """The tokens as the model takes them."""
    X = tokens(way)
    return X.transpose(0, 1).contiguous() if way.time_first else X


# all of them: every spelling of every part before and after a norm, then blocks that are odd, then mixtures

WAYS: list[Way] = []
for _plain in (Way("pre"), Way("post")):
    WAYS += [replace(_plain, attention=a) for a in (*ATTENTIONS, "nn.MultiheadAttention")]
    WAYS += [replace(_plain, projection=p) for p in (*PROJECTIONS, "Conv1D")]
    WAYS += [replace(_plain, sum=s) for s in SUMS]
    WAYS += [replace(_plain, norm=n) for n in NORMS]
    WAYS += [replace(_plain, branch=b) for b in ("adapter", "low rank", "gated")]
    WAYS += [replace(_plain, branch=b, projection="x @ W + b") for b in ("adapter", "low rank")]
    WAYS += [replace(_plain, fused=True, projection=p) for p in ("nn.Linear", "x @ W + b")]
    WAYS += [replace(_plain, causal=True, attention=a) for a in ("sdpa", "torch.matmul")]
    WAYS += [replace(_plain, time_first=True, attention=a) for a in ("torch.bmm", "nn.MultiheadAttention")]
    WAYS += [replace(_plain, time_first=True, sequences=N), replace(_plain, sequences=N)]
WAYS += [Way(stack=s) for s in ("Sequential", "attributes", "shared")]
WAYS += [Way("post", stack="shared"), Way("post", stack="Sequential", time_first=True), Way(dropout=0.1)]
WAYS += [Way(call=c) for c in ("block(hidden_states=x)", "block(x)[0]")]
WAYS += [Way("post", call="block(x)[0]"), Way(attention="torch.bmm", causal=True, time_first=True, sequences=N)]
WAYS += [Way(w, projection=p) for w in PARALLEL for p in ("nn.Linear", "x @ W + b")]
WAYS += [Way("x + (a + f)", projection=p) for p in PROJECTIONS]
WAYS += [Way("sandwich", norm=n) for n in ("nn.LayerNorm", "F.rms_norm", "class RMSNorm")]
WAYS += [
    Way(*choices)
    for choices in zip(
        ["pre", "post", "sandwich"] * 4,
        [*ATTENTIONS] * 3,
        [*PROJECTIONS, "Conv1D"] * 2,
        [*SUMS],
        [*NORMS] * 2,
        strict=False,
    )
]
WAYS = list(dict.fromkeys(WAYS))
