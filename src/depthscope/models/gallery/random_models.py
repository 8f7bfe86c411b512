"""Random models of many designs: what they do to tokens is known from the papers' theory."""

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.models.block import SelfAttention
from depthscope.models.design import Design
from depthscope.models.gallery.entry import COLLAPSED, HEALTHY, Built, Shelf
from depthscope.models.gallery.writers import MassiveToken
from depthscope.models.transformer import classic

HALF = (
    "A post-norm block of these weights divides t_div by 1.3 to 2 (Yu & Zhang 2023, Remark 2.8): after {depth}, {end}."
)
DEEP: dict[str, dict[str, Any]] = {
    "relu": {},
    "gelu": {"activation": "gelu"},
    "swiglu": {"activation": "swiglu"},
    "without feed-forward": {"activation": "none"},
    "with W_O": {"output": True, "bias": True},
    "Xavier": {"weights": "xavier"},
    "causal": {"causal": True},
    "uniform attention": {"attention": "uniform"},
    "strong attention": {"alpha": 1.5},
}
CALM: dict[str, tuple[tuple[int, ...], str]] = {
    "pre_norm": ((8, 16, 32), "Pre-norm grows alike by a power of depth and not exponentially: such models train."),
    "peri_ln": ((8, 16), "Norms before and after the branches, a free skip: a power law as in pre-norm."),
    "sub_ln": ((8, 16), "Sub-LN: pre-norm with one more norm in each branch; such models train."),
    "sandwich": ((8, 12), "Sandwich norms keep the branches small and the skip free; such models train."),
    "deep_norm": ((24, 48), "DeepNorm weighs the skip by (2 depth)^(1/4): a thousand blocks train."),
    "rezero": ((24, 48), "ReZero starts as the identity: the tokens are those that came in."),
    "layer_scale": ((24, 48), "LayerScale starts with branches of weight 1e-4 or so: close to the identity."),
    "skip_init": ((24, 48), "SkipInit starts as the identity: the tokens are those that came in."),
    "layer_norm_scaling": ((16, 32), "Pre-norm with branches that are divided by the root of their depth."),
}


def add_random(shelf: Shelf) -> None:
    for add in (_deep, _shallow, _calm, _pure_attention, _massive_over_random):
        add(shelf)


def _sizes(r: random.Random) -> dict[str, int]:
    return {"d": r.choice([32, 48, 64]), "h": r.choice([2, 4]), "q": r.choice([64, 128])}


def _reference(choices: dict[str, Any], n: int, B: int) -> Built:
    model = classic(**choices)
    return model, torch.randn(B, n, choices["d"])


def _deep(shelf: Shelf) -> None:
    for what, choices in DEEP.items():
        name = f"post-norm, deep: {what}"
        r = shelf.draw(name)
        depth, n = r.choice([36, 48]), r.choice([16, 32, 48])
        why = HALF.format(depth=depth, end="less than 1 % is left")
        make = partial(_reference, {"depth": depth, **_sizes(r), **choices}, n, r.choice([2, 4]))
        shelf.add(name, "random, deep post-norm", COLLAPSED, why, make)


def _shallow(shelf: Shelf) -> None:
    for what, choices in (("relu", {}), ("gelu", {"activation": "gelu"}), ("causal", {"causal": True})):
        name = f"post-norm, shallow: {what}"
        r = shelf.draw(name)
        depth, n = r.choice([1, 2]), r.choice([32, 48])
        why = HALF.format(depth=depth, end="much more than 1 % is left")
        make = partial(_reference, {"depth": depth, **_sizes(r), **choices}, n, 4)
        shelf.add(name, "random, shallow", HEALTHY, why, make)


def _calm(shelf: Shelf) -> None:
    for wiring, (depths, why) in CALM.items():
        for causal in (False, True) if wiring == "pre_norm" else (False,):
            name = f"{wiring}{', causal' * causal}"
            r = shelf.draw(name)
            choices = {"depth": r.choice(depths), **_sizes(r), "wiring": wiring, "causal": causal, "output": True}
            make = partial(_reference, choices, r.choice([16, 32, 48]), r.choice([2, 4]))
            shelf.add(name, "random, made to train", HEALTHY, why, make)


class PureAttention(nn.Module):
    """X <- SA(X), or LN(SA(X)), again and again: no skip, no feed-forward network."""

    def __init__(self, depth: int, d: int, h: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        heads = [SelfAttention(Design(depth, d, h)) for _ in range(depth)]
        for matrix in (matrix for own in heads for matrix in own.children()):
            nn.init.normal_(matrix.weight, std=d**-0.5)  # type: ignore[arg-type]
        self.blocks = nn.ModuleList(nn.Sequential(own, norm(d)) for own in heads)

    def forward(self, X: Tensor) -> Tensor:
        for block in self.blocks:
            X = block(X)
        return X


def pure_attention(depth: int, n: int, d: int, h: int = 4, norm: Callable[[int], nn.Module] = nn.Identity) -> Built:
    return PureAttention(depth, d, h, norm), torch.randn(3, n, d)


def _pure_attention(shelf: Shelf) -> None:
    for what, depths, norm in (("", (6, 8), nn.Identity), (" with norms", (16, 24), nn.LayerNorm)):
        name = f"pure attention{what}"
        r = shelf.draw(name)
        why = "Without skips attention loses rank doubly exponentially with depth (Dong et al. 2021, Theorem 2.2)."
        make = partial(pure_attention, r.choice(depths), r.choice([16, 32]), r.choice([32, 64]), norm=norm)
        shelf.add(name, "pure attention", COLLAPSED, why, make)


def _massive_over_random(shelf: Shelf) -> None:
    """A large vector is added to one token of a random model, after its last block or on the way."""
    for what, wiring, depths, allowed in (
        ("collapsed post-norm, after the last block", "post_norm", (36, 48), COLLAPSED),
        ("collapsed post-norm, on the way", "post_norm", (36, 48), COLLAPSED),
        ("pre-norm, after the last block", "pre_norm", (8, 16), HEALTHY),
        ("pre-norm, on the way", "pre_norm", (8, 16), HEALTHY),
        ("DeepNorm, after the last block", "deep_norm", (16, 24), HEALTHY),
    ):
        name = f"massive token in {what}"
        r = shelf.draw(name)
        depth, n = r.choice(depths), r.choice([24, 32])
        block = depth if "last" in what else math.ceil(depth / 2)
        place, size = r.randrange(n), r.choice([30.0, 300.0])
        why = f"A random {wiring} of {depth} blocks, whose token {place} gets {size:g} times its size in block {block}."
        choices = {"depth": depth, **_sizes(r), "wiring": wiring, "output": wiring != "post_norm"}
        make = partial(_with_massive, choices, n, block, place, size)
        shelf.add(name, "massive token in a random model", allowed, why, make)


def _with_massive(choices: dict[str, Any], n: int, block: int, place: int, size: float) -> Built:
    model, X = _reference(choices, n, 3)
    blocks: Any = model.blocks
    blocks[block - 1] = MassiveToken(blocks[block - 1], size * torch.randn(choices["d"]), (place,))
    return model, X
