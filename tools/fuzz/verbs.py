"""Verbs that are asked oddly: inputs, masks, names, places and numbers that nobody means, on models that chance writes.

What a verb refuses leaves the model as it was; what it takes can be shown and saved.
"""

import inspect
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import torch
from tools.fuzz.case import kind
from tools.fuzz.models import D, Model, N, written
from tools.fuzz.records import ODD
from torch import Tensor

import depthscope as ds
from depthscope.registry import TABLES

NUMBERS: list[Any] = [0, 1, 2, -1, 0.5, 1e-9, 1e9, 1e300, -3.5, 10**30, 10**400, math.nan, math.inf, True, None, "1"]
POSITIONS = ("", "", "", "[0:3]", "[-2:]", "[1/2]", "[3/2]", "[0:0]", "[5:99]", "[", "[a]", "[]")
SITES = "block_in attn_in sa_out sa_sum ffn_in ffn_sum block_out attn weights values nowhere".split()
BLOCKS: list[Any] = [
    None,
    None,
    "blocks.*",
    "blocks.0",
    "*",
    "no.such.*",
    ["blocks.0"],
    [],
    "",
    3,
    "[",
    ["blocks.0"] * 2,
]


@contextmanager
def untouched(model: Model, tokens: Tensor) -> Iterator[None]:
    """The model gives the same outputs, and has no more hooks and fixes, whatever happens inside."""

    def hooks() -> int:
        return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())

    with torch.no_grad():
        before, count, training = model(tokens), hooks(), model.training
        try:
            yield
        finally:
            assert torch.equal(model(tokens), before), "other outputs than before"
            assert (hooks(), model.training, ds.fixes(model)) == (count, training, []), "hooks are left"


def odd_inputs(tokens: Tensor, rng: Random) -> Any:
    """The tokens, more or less."""
    whole = [
        tokens,
        tokens[:1],
        (tokens,),
        {"X": tokens},
        [tokens, tokens],
        iter([(tokens,), (tokens[:1],)]),
        tokens.repeat(3, 1, *[1] * (tokens.ndim - 2)),
    ]
    odd = [
        tokens[:0],
        tokens[:, :1],
        tokens[:, :0],
        tokens[0],
        tokens.double(),
        tokens.half(),
        tokens * math.nan if tokens.is_floating_point() else tokens - 20,
        tokens * 1e30 if tokens.is_floating_point() else tokens + 20,
        tokens.to("meta"),
        [],
        [tokens, None],
        iter(()),
        {},
        {"Y": tokens},
        (tokens, tokens),
        *ODD,
    ]
    return rng.choice(whole if rng.random() < 0.7 else odd)


def odd_mask(rng: Random) -> Any:
    mask = torch.rand(2, N) < 0.7
    odd = [mask[:1], mask[:, :1], ~mask, mask & False, mask.float() * 0.3, mask * math.nan, mask[None], "mask", 1, []]
    return rng.choice([None, None, None, None, mask, mask.long(), mask.float(), *odd])


@kind(300)
def scan_asked(rng: Random) -> str:
    """A scan of odd inputs, masks, metrics and blocks."""
    model, tokens = written(rng)
    names = [rng.choice([*TABLES["metric"], "word", ""]) + rng.choice(POSITIONS) for _ in range(rng.randrange(4))]
    options: dict[str, Any] = {
        "metrics": rng.choice((None, names, names, rng.choice(ODD))),
        "mask": odd_mask(rng),
        "blocks": rng.choice(BLOCKS),
        "stream": rng.choice((None, None, None, "encoder", "", 0)),
        "attention": rng.random() < 0.7,
        "sample": rng.choice((None, None, None, *NUMBERS)),
        "gradients": rng.choice((None, None, None, lambda out: out.square().mean(), lambda out: None, "loss")),
    }
    chosen = {name: value for name, value in options.items() if rng.random() < 0.4}
    with untouched(model, tokens):
        scan = ds.scan(model, odd_inputs(tokens, rng), **chosen)
    again = ds.Scan.from_dict(json.loads(json.dumps(scan.to_dict(), allow_nan=False)))
    assert str(again) == str(scan), "it reads back as another"
    return "measured"


@kind(300)
def fix_asked(rng: Random) -> str:
    """Every remedy with odd settings at odd places: it acts and is undone, or says why not."""
    model, tokens = written(rng)
    remedy = TABLES["remedy"][rng.choice(sorted(TABLES["remedy"]))]
    takes = inspect.signature(remedy).parameters
    settings = {name: D for name in takes if name == "d"}
    settings |= {name: rng.choice([*NUMBERS, "word"]) for name in takes if rng.random() < 0.15}
    options: dict[str, Any] = {
        "at": rng.choice(SITES),
        "blocks": rng.choice(BLOCKS),
        "causal": rng.choice(("yes", "no", "auto", "leak", "maybe", None)),
        "stream": rng.choice((None, "decoder", 0)),
        "mask": odd_mask(rng),
    }
    chosen = {name: value for name, value in options.items() if rng.random() < 0.25}
    with untouched(model, tokens):
        fix = ds.fix_(model, remedy(**settings), **chosen)
        try:
            assert model(tokens).shape[:2] == tokens.shape[:2]
            told = json.loads(json.dumps(fix.describe()))
        finally:
            fix.undo()
        with ds.fix_(model, told, mask=chosen.get("mask")):
            model(tokens)
    return "acted"


@kind(600)
def sizes_asked(rng: Random) -> str:
    """A forecast by sizes that are odd: similarities in [0, 1], or words."""
    names = "depth n t_sim gain tau scores site d h heads q alpha wiring attention weights causal output".split()
    sizes: dict[str, Any] = {
        "depth": rng.choice((1, 2, 24)),
        "n": rng.choice((2, 64)),
        "wiring": rng.choice(sorted(TABLES["wiring"])),
        "attention": rng.choice(sorted(TABLES["attention"])),
        "weights": rng.choice(sorted(TABLES["weight law"])),
    }
    sizes = {name: value for name, value in sizes.items() if rng.random() < 0.7} | {"depth": sizes["depth"]}
    for name in rng.sample(names, rng.choice((0, 1, 1, 2, 3))):
        sizes[name] = rng.choice([*NUMBERS, rng.random(), rng.randrange(1, 300), "word"])
    found = ds.forecast(**sizes)
    inside = (found.t_sim >= -1e-9) & (found.t_sim <= 1 + 1e-9)
    assert bool(inside.all()), f"{found.t_sim.tolist()} is not in [0, 1]"
    assert str(ds.Forecast.from_dict(found.to_dict())) == str(found), "it reads back as another"
    return "given"
