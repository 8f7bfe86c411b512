"""Models that are written out by hand, and hand their own stream to the truth."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tools.coverage.case import (
    BATCH,
    HEADS,
    TOKENS,
    WIDTH,
    Case,
    Sample,
    Stream,
    Tap,
    Tapped,
    enter,
    numbers,
    other_last,
)
from tools.coverage.hooks import LAYOUTS
from torch import Tensor, nn

Mix = Callable[
    [Tensor, Tensor, Tensor, Tensor | None], Tensor
]  # q, k, v (B, h, n, d_h), bias (.., n, n) -> (B, h, n, d_h)


def identity(index: int, x: Any) -> Any:
    return x


class Written(nn.Module):
    """Calls x = self.tap(0, x) before block 1 and x = self.tap(l, x) after block l: plain Python, no function of torch.

    A model with several streams calls a tap of its own for each, named after it: encoder_tap, decoder_tap.
    """

    tap = encoder_tap = decoder_tap = left_tap = right_tap = staticmethod(identity)


def tapped_in(model: nn.Module, layout: str = "b n d", name: str = "tap") -> Tapped:
    """The stream that a model hands out by itself."""
    there, back = LAYOUTS[layout]

    @contextmanager
    def tapped(tap: Tap) -> Iterator[None]:
        setattr(model, name, lambda index, x: back(tap(index, there(x)), x))
        try:
            yield
        finally:
            delattr(model, name)

    return tapped


def true_pattern(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(d_h) + bias), (B, h, n, n)."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return (scores if bias is None else scores + bias).softmax(-1)


def plainly(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attention as everybody writes it."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    return scores.softmax(dim=-1) @ v


def causal_bias(n: int) -> Tensor:
    """-inf above the diagonal, (n, n)."""
    return torch.full((n, n), -torch.inf).triu(1)


class Attention(nn.Module):
    """Self-attention with a spelling of its own. seen: a list while the truth looks, which gets every P."""

    seen: list[Tensor] | None = None

    def __init__(self, d: int = WIDTH, h: int = HEADS, mix: Mix = plainly, causal: bool = False) -> None:
        super().__init__()
        self.h, self.mix, self.causal = h, mix, causal
        self.to_qkv, self.to_out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        nn.init.normal_(self.to_qkv.weight, std=d**-0.5)  # scores of size 1: heads differ

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(-3, -2) for t in self.to_qkv(x).chunk(3, dim=-1))
        if self.causal:
            bias = causal_bias(x.shape[-2])
        if self.seen is not None:
            self.seen.append(true_pattern(q, k, bias))
        return self.to_out(self.mix(q, k, v, bias).transpose(-3, -2).flatten(-2))


def network(d: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))


class Block(nn.Module):
    """Pre-norm."""

    def __init__(self, d: int = WIDTH, h: int = HEADS, mixer: nn.Module | None = None, **attention: Any) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(d), nn.LayerNorm(d), network(d)
        self.attn = mixer if mixer is not None else Attention(d, h, **attention)

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.attn(self.norm1(x), *more)
        return x + self.mlp(self.norm2(x))


def patterns_in(sample: Callable[[], Sample]) -> Callable[[], list[Tensor | None]]:
    """Every P of the model's own attention, in the order of its calls."""

    def patterns() -> list[Tensor | None]:
        made, seen = sample(), []
        for module in made.model.modules():
            if isinstance(module, Attention):
                module.seen = seen
        made.run()
        return list(seen)

    return patterns


def tokens(batch: int = BATCH, n: int = TOKENS, d: int = WIDTH, seed: int = 1) -> Tensor:
    return numbers(batch, n, d, seed=seed)


def written(
    name: str,
    make: Callable[[], nn.Module],
    *,
    group: str,
    inputs: Callable[[], Any] = tokens,
    layout: str = "b n d",
    causal: bool = False,
    heads: bool = True,
    mask: Callable[[Any], Tensor] | None = None,
    changed: Callable[[Any], Any] = other_last,
    repadded: Callable[[Any], Any] | None = None,
    token_axis: int | None = 1,
    attention: bool = True,
    holder: str = "",
) -> None:
    """Enter a model with one stream. heads=False: no P (B, h, n, n) of one Attention in each block.

    holder: the path of the module that hands out the stream, where it is not the model itself.
    """

    def build(look: bool = True) -> Sample:
        torch.manual_seed(0)
        model, given = make().eval(), inputs()
        patterns = patterns_in(lambda: build(look=False)) if heads and look else None
        stream = Stream(
            tapped_in(model.get_submodule(holder), layout),
            causal,
            None if mask is None else mask(given),
            patterns,
            changed(given) if causal else None,
        )
        other = None if repadded is None else repadded(given)
        return Sample(model, given, {"main": stream}, token_axis=token_axis, repadded=other)

    enter(Case(name, group, build, attention=attention))
