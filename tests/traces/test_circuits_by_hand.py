"""Paths and spectra of hand-written blocks: the weights that are read off a running model are those it has."""

import torch
from literally import run, value_and_output
from part_spellings import HEADS, SUMS
from spelled_models import WAYS, Model, built, given, tokens
from spellings import Way
from torch import Tensor

import depthscope as ds
from depthscope.errors import AttentionNotSeenError, HookError, UsageError
from loops import at_pace, over

REFUSALS = (HookError, AttentionNotSeenError, UsageError)
# each sum, each way to multiply by a matrix and to attend, before a norm; and what is odd
CHOSEN = [way for way in WAYS if way.norm == "nn.LayerNorm" and way.stack == "ModuleList" and way.wiring != "post"]


def by_hand(model: Model) -> Tensor:
    """Attention and skips alone, each P that of the whole model: |part| / |output| by length.

    part_0 = s part_0, part_k = s part_k + b sum_h P_h part_{k-1} W_V W_O: s and b are the factors of skip and branch.
    """
    _, skip, branch = (1, 1.0, 1.0) if model.way.parallel else SUMS[model.way.sum]
    parts = [tokens(model.way)]
    for block, P in zip(model.in_order(), run(model).P, strict=True):
        W_V, W_O = (W.unflatten(axis, (HEADS, -1)) for W, axis in zip(value_and_output(block), (1, 0), strict=True))
        heads = [torch.einsum("bhnm,bmd,dhe,hef->bnf", P, X, W_V, W_O) for X in parts]
        parts = [skip * a + branch * b for a, b in zip([*parts, 0 * parts[0]], [0 * parts[0], *heads], strict=True)]
    output = torch.stack(parts).sum(0).flatten(1).norm(dim=-1)
    return torch.stack([(part.flatten(1).norm(dim=-1) / output).mean() for part in parts])


@torch.no_grad()
def test_paths_through_attention_alone_are_those_of_the_weights(pace: str) -> None:
    wrong, answered, ways = [], 0, at_pace(pace, CHOSEN, 7)
    for way in ways:
        model = built(way)
        truth = by_hand(model)
        try:
            found = ds.paths(model, given(way), form="attention", blocks=way.blocks).norm
        except REFUSALS:
            continue
        answered += 1
        if not torch.allclose(found, truth, rtol=1e-5):
            wrong.append(f"{way}: {found.tolist()}, not {truth.tolist()}")
    assert not wrong, "\n".join(wrong)
    assert answered > len(ways) / 2


SAME = [
    (
        Way(),
        Way(attention="torch.einsum"),
        Way(sum="x += y"),
        Way(sum="torch.add(x, other=y)"),
        Way(call="block(x)[0]"),
    ),
    (Way(sum="x + .5 * y"), Way(sum="torch.add(x, y, alpha=.5)")),
    (Way(sum="a * x + y"), Way(sum="x.mul(a) + y"), Way(sum="torch.add(y, x, alpha=a)")),
    (Way("post", sum="a * x + y"), Way("post", sum="torch.add(y, x, alpha=a)")),
]


@over("ways", SAME[1:2], long=[SAME[0], *SAME[2:]])
@torch.no_grad()
def test_one_block_in_two_spellings_has_one_spectrum(ways: tuple[Way, ...]) -> None:
    """What a block does to tokens, repeated: growth of the constant part and of the rest."""
    first, *others = ways
    truth = ds.spectrum(built(first), given(first))
    for way in others:
        found = ds.spectrum(built(way), given(way))
        for name in ("constant", "rest", "margins", "margin_apart", "head_margins"):
            torch.testing.assert_close(getattr(found, name), getattr(truth, name), msg=f"{way}: {name}")
