"""A block of a Transformer, written by hand in every way in which people write it.

A Way names one spelling of every part (part_spellings.py) and of how they are wired. spelled_models.py builds models of
such blocks; literally.py says what they must compute.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from part_spellings import (
    ATTENTIONS,
    HEADS,
    HIDDEN,
    LOW,
    NORM_FUNCTIONS,
    NORM_MODULES,
    PROJECTIONS,
    SUMS,
    B,
    Conv1D,
    D,
)
from torch import Tensor, nn


@dataclass(frozen=True)
class Way:
    """How a model is written."""

    wiring: str = "pre"
    attention: str = "sdpa"
    projection: str = "nn.Linear"
    sum: str = "x + y"
    norm: str = "nn.LayerNorm"
    branch: str = "plain"
    stack: str = "ModuleList"
    call: str = "block(x)"
    fused: bool = False  # queries, keys and values come from one matrix
    causal: bool = False
    time_first: bool = False
    sequences: int = B
    dropout: float = 0.0

    def __str__(self) -> str:
        """What is not as usual."""
        said = [f"{f.name}={v}" for f in fields(self) if (v := getattr(self, f.name)) != f.default]
        return ", ".join(said) or "plain"

    @property
    def parallel(self) -> bool:
        return self.wiring in PARALLEL

    @property
    def joint(self) -> bool:
        """Attention and network are one tensor before they join the stream."""
        return self.wiring in JOINT

    @property
    def placement(self) -> str:
        return {"post": "post", "sandwich": "sandwich"}.get(self.wiring, "pre")

    @property
    def blocks(self) -> str | None:
        """What the user must say: of one shared block nothing tells that it is a block."""
        return "block" if self.stack == "shared" else None


class Matrices(nn.Module):
    """A module that keeps matrices, as modules or as bare parameters, and multiplies by them in the way's spelling."""

    def __init__(self, way: Way, shapes: dict[str, tuple[int, int]]) -> None:
        super().__init__()
        self.way = way
        for name, (rows, columns) in shapes.items():
            if way.projection == "nn.Linear":
                setattr(self, name, nn.Linear(rows, columns))
            elif way.projection == "Conv1D":
                setattr(self, name, Conv1D(rows, columns))
            else:
                setattr(self, f"W_{name}", nn.Parameter(torch.empty(rows, columns)))
                setattr(self, f"b_{name}", nn.Parameter(torch.empty(columns)))

    def times(self, name: str, x: Tensor) -> Tensor:
        if hasattr(self, name):
            return getattr(self, name)(x)
        return PROJECTIONS[self.way.projection](x, getattr(self, f"W_{name}"), getattr(self, f"b_{name}"))


def heads_of(home: Matrices, x: Tensor) -> Tensor:
    """The outputs of all heads beside each other, before the output projection."""
    way = home.way
    q, k, v = home.times("qkv", x).chunk(3, -1) if way.fused else (home.times(name, x) for name in "qkv")
    axes = (1, 2, 0, 3) if way.time_first else (0, 2, 1, 3)
    q, k, v = (t.unflatten(-1, (HEADS, -1)).permute(axes) for t in (q, k, v))  # (B, h, n, d_h)
    hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1) if way.causal else None
    Y = ATTENTIONS[way.attention](q, k, v, hidden)
    return Y.permute((2, 0, 1, 3) if way.time_first else (0, 2, 1, 3)).flatten(-2)


def attended(home: Matrices, x: Tensor) -> Tensor:
    """Attention's branch."""
    way = home.way
    if way.attention == "nn.MultiheadAttention":
        y = home.mha(x, x, x, need_weights=False)[0]
    elif way.branch == "low rank":
        y = home.times("o_out", home.times("o_in", heads_of(home, x)))
    else:
        y = home.times("o", heads_of(home, x))
    if way.branch == "adapter":
        return y + home.times("widen", home.times("narrow", y).relu())
    return home.times("gate", x).sigmoid() * y if way.branch == "gated" else y


def fed(home: Matrices, x: Tensor) -> Tensor:
    """The network's branch."""
    return home.times("down", home.times("up", x).relu())


class Mixer(Matrices):
    """Attention as a module, whose name says nothing."""

    forward = attended


class Network(Matrices):
    forward = fed


class Block(Matrices):
    """With matrices of its own where they are bare parameters, with two modules where they are modules."""

    def __init__(self, way: Way) -> None:
        mixing, feeding = shapes_of(way)
        inline = way.projection in PROJECTIONS or way.wiring == "x + cat(a, f) W"
        super().__init__(way, {**mixing, **feeding} if inline else {})
        if not inline:
            self.mixer, self.network = Mixer(way, mixing), Network(way, feeding)
        if way.attention == "nn.MultiheadAttention":
            home = self if inline else self.mixer
            home.mha = nn.MultiheadAttention(D, HEADS, batch_first=not way.time_first)  # type: ignore[union-attr]
        for i in range(1, 5 if way.wiring == "sandwich" else 3):
            if way.norm in NORM_MODULES:
                setattr(self, f"norm_{i}", NORM_MODULES[way.norm]())
            else:
                setattr(self, f"g_{i}", nn.Parameter(torch.ones(D)))
                setattr(self, f"c_{i}", nn.Parameter(torch.zeros(D)))
        self.drop = nn.Dropout(way.dropout) if way.dropout else None

    def norm(self, i: int, x: Tensor) -> Tensor:
        if self.way.norm in NORM_MODULES:
            return getattr(self, f"norm_{i}")(x)
        return NORM_FUNCTIONS[self.way.norm](x, getattr(self, f"g_{i}"), getattr(self, f"c_{i}"))

    def attend(self, x: Tensor) -> Tensor:
        y = self.mixer(x) if "mixer" in self._modules else attended(self, x)
        return y if self.drop is None else self.drop(y)

    def feed(self, x: Tensor) -> Tensor:
        y = self.network(x) if "network" in self._modules else fed(self, x)
        return y if self.drop is None else self.drop(y)

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return SUMS[self.way.sum][0](x, y)

    def forward(self, hidden_states: Tensor) -> Any:
        out = WIRINGS[self.way.wiring](self, hidden_states)
        return (out, None) if self.way.call == "block(x)[0]" else out


def shapes_of(way: Way) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """Of the matrices of attention and of the network."""
    mixing = {"qkv": (D, 3 * D)} if way.fused else dict.fromkeys("qkv", (D, D))
    mixing |= {"o_in": (D, LOW), "o_out": (LOW, D)} if way.branch == "low rank" else {"o": (D, D)}
    if way.attention == "nn.MultiheadAttention":
        mixing = {}
    if way.branch == "adapter":
        mixing |= {"narrow": (D, LOW), "widen": (LOW, D)}
    if way.branch == "gated":
        mixing |= {"gate": (D, D)}
    if way.wiring == "x + cat(a, f) W":
        del mixing["o"]
        return mixing, {"up": (D, HIDDEN), "out": (D + HIDDEN, D)}
    return mixing, {"up": (D, HIDDEN), "down": (HIDDEN, D)}


# the wirings


def _pre(block: Block, x: Tensor) -> Tensor:
    x = block.join(x, block.attend(block.norm(1, x)))
    return block.join(x, block.feed(block.norm(2, x)))


def _post(block: Block, x: Tensor) -> Tensor:
    x = block.norm(1, block.join(x, block.attend(x)))
    return block.norm(2, block.join(x, block.feed(x)))


def _sandwich(block: Block, x: Tensor) -> Tensor:
    x = block.join(x, block.norm(3, block.attend(block.norm(1, x))))
    return block.join(x, block.norm(4, block.feed(block.norm(2, x))))


def _one_by_one(block: Block, x: Tensor) -> Tensor:
    h = block.norm(1, x)
    return x + block.attend(h) + block.feed(h)


def _two_norms(block: Block, x: Tensor) -> Tensor:
    return x + block.attend(block.norm(1, x)) + block.feed(block.norm(2, x))


def _both_then_one_by_one(block: Block, x: Tensor) -> Tensor:
    h = block.norm(1, x)
    a, f = block.attend(h), block.feed(h)
    return x + a + f


def _network_first(block: Block, x: Tensor) -> Tensor:
    h = block.norm(1, x)
    f = block.feed(h)
    a = block.attend(h)
    return x + f + a


def _joint(block: Block, x: Tensor) -> Tensor:
    h = block.norm(1, x)
    return x + (block.attend(h) + block.feed(h))


def _joint_first(block: Block, x: Tensor) -> Tensor:
    h = block.norm(1, x)
    return (block.attend(h) + block.feed(h)) + x


def _joint_network_first(block: Block, x: Tensor) -> Tensor:
    h = block.norm(1, x)
    f = block.feed(h)
    return x + (f + block.attend(h))


def _one_matrix(block: Block, x: Tensor) -> Tensor:
    h = block.norm(1, x)
    return x + block.times("out", torch.cat([heads_of(block, h), block.times("up", h).relu()], -1))


JOINT = {
    "x + (a + f)": _joint,
    "(a + f) + x": _joint_first,
    "f first, x + (f + a)": _joint_network_first,
    "x + cat(a, f) W": _one_matrix,
}
PARALLEL = {
    "x + a + f": _one_by_one,
    "x + a + f, two norms": _two_norms,
    "a and f, then x + a + f": _both_then_one_by_one,
    "f first, x + f + a": _network_first,
    **JOINT,
}
SERIAL = {"pre": _pre, "post": _post, "sandwich": _sandwich}
WIRINGS = {**SERIAL, **PARALLEL}
