"""Every family is measured, priced and shortened alike; the truth is the model with entries of its list left out."""

import copy

import pytest
import torch
from small_families import FAMILIES, Tiny, squares
from torch import nn

import depthscope as ds
from depthscope.depths.losses import items_of, own_loss
from loops import over


def shortened(tiny: Tiny, *gone: int) -> nn.Module:
    """The model with blocks (numbers from 1) left out of the list by hand, in a copy."""
    twin = copy.deepcopy(tiny)
    kept = [block for i, block in enumerate(twin.blocks, start=1) if i not in gone]
    twin.blocks._modules.clear()
    for i, block in enumerate(kept):
        twin.blocks._modules[str(i)] = block
    if hasattr(twin.model, "config"):
        twin.model.config.num_hidden_layers = len(kept)
        twin.model.config.use_cache = False  # its numbers of layers are those of the whole model
        if getattr(twin.model.config, "layer_types", None):
            types = enumerate(twin.model.config.layer_types, start=1)
            twin.model.config.layer_types = [kind for i, kind in types if i not in gone]
    return twin.model


def loss_of(model: nn.Module, inputs) -> torch.Tensor:
    """The same losses, written literally."""
    with torch.no_grad():
        output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        if own_loss(output) is not None:
            return items_of(own_loss(output))
        if isinstance(model, nn.TransformerEncoder):
            return squares(output, inputs).double()
        logits = getattr(output, "logits", output)
        flat = logits[:, :-1].flatten(0, 1), inputs[:, 1:].flatten()
        return nn.functional.cross_entropy(*flat, reduction="none").double()


def half(inputs, rows: slice):
    return {k: v[rows] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[rows]


@over("family", FAMILIES)
def test_prices_and_curves_are_those_of_the_shorter_model(family: str) -> None:
    tiny = FAMILIES[family]()
    first, second = half(tiny.inputs, slice(0, 2)), half(tiny.inputs, slice(2, 4))
    before = loss_of(tiny.model, tiny.inputs)
    found = ds.depth(tiny.model, tiny.inputs, tiny.loss, drops=2)
    assert torch.equal(loss_of(tiny.model, tiny.inputs), before)
    assert found.prices is not None and found.depth == len(tiny.blocks)
    exact = {"rtol": 0, "atol": 0} if family not in ("by_hand", "encoder") else {"rtol": 1e-6, "atol": 1e-6}
    for block in range(1, found.depth + 1):
        change = loss_of(shortened(tiny, block), first).mean() - loss_of(tiny.model, first).mean()
        torch.testing.assert_close(found.prices.skip[block - 1], change, rtol=1e-9, atol=1e-6)
    assert {curve.by for curve in found.curves} == {"greedy", "influence", "contiguous", "last"}
    for curve in found.curves:
        for gone, loss in zip(((), *curve.choices), curve.losses, strict=True):
            truth = float(loss_of(shortened(tiny, *gone), second).mean())
            torch.testing.assert_close(loss, truth, **exact)
    assert found.curves[0].choices[0] == (int(found.prices.skip.argmin()) + 1,)


@over("family", [name for name in FAMILIES if name != "by_hand"])
def test_a_dropped_model_is_the_shorter_model(family: str) -> None:
    tiny = FAMILIES[family]()
    truth = loss_of(shortened(tiny, 2, 3), tiny.inputs)
    assert ds.drop_(tiny.model, [2, 3]) is tiny.model
    assert len(tiny.blocks) == 2
    assert torch.equal(loss_of(tiny.model, tiny.inputs), truth)
    assert ds.scan(tiny.model, tiny.inputs).depth == 2


@over("family", FAMILIES)
def test_the_measures_of_one_pass_are_there(family: str) -> None:
    tiny = FAMILIES[family]()
    found = ds.depth(tiny.model, tiny.inputs, tiny.loss, what=["lens"])
    assert bool((found.plain.influence > 0).all()) and bool((found.plain.size > 0).all())
    assert found.prices is None and found.curves == ()
    assert (found.lens is None) == (family == "encoder")
    if found.lens is not None:
        assert float(found.lens.kl[-1]) == pytest.approx(0, abs=1e-6) and float(found.lens.overlap[-1]) == 1


@over("family", ["llama", "by_hand"])
def test_the_greedy_choice_is_greedy(family: str) -> None:
    """The second block that goes is the best of all, tried literally."""
    tiny = FAMILIES[family]()
    first = half(tiny.inputs, slice(0, 2))
    greedy = ds.depth(tiny.model, tiny.inputs, drops=2).curves[0]
    [one] = greedy.choices[0]
    others = [b for b in range(1, len(tiny.blocks) + 1) if b != one]
    best = min(others, key=lambda b: float(loss_of(shortened(tiny, one, b), first).mean()))
    assert greedy.choices[1] == tuple(sorted((one, best)))
