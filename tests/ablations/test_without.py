"""without_: blocks with parts left out compute what a block written by hand computes, and get all of it back."""

import pytest
import torch
from blocks_by_hand import COMBINATIONS, FAMILIES, TOKENS, built, output
from torch import Tensor

import depthscope as ds
from depthscope.errors import UnknownNameError, UsageError
from loops import over


@over("name", FAMILIES)
def test_every_combination_is_the_block_by_hand_and_undo_is_bit_equal(name: str) -> None:
    hand = built(name)
    with torch.no_grad():
        before = output(hand.model, hand.inputs)
        torch.testing.assert_close(hand.run()[0], before, atol=1e-9, rtol=1e-9)
        for removed in COMBINATIONS:
            with ds.without_(hand.model, *removed) as handle:
                found = output(hand.model, hand.inputs)
            assert handle.fired >= len({*handle.blocks})
            torch.testing.assert_close(found, hand.run(removed)[0], atol=1e-8, rtol=1e-7)
            assert not torch.equal(found, before)
        assert torch.equal(output(hand.model, hand.inputs), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in hand.model.modules())


@over("name", FAMILIES)
def test_in_float32(name: str) -> None:
    hand = built(name)
    model, inputs = hand.model.float(), hand.inputs.float() if hand.inputs.is_floating_point() else hand.inputs
    with torch.no_grad():
        before = output(model, inputs)
        with ds.without_(model, "attention_skip", "ffn"):
            found = output(model, inputs)
        assert torch.equal(output(model, inputs), before)
        model.double()
        torch.testing.assert_close(found.double(), hand.run(["attention_skip", "ffn"])[0], atol=1e-4, rtol=1e-4)


def test_skips_are_both_skips() -> None:
    hand = built("bert")
    with torch.no_grad(), ds.without_(hand.model, "skips"):
        torch.testing.assert_close(output(hand.model, hand.inputs), hand.run(["attention_skip", "ffn_skip"])[0])


@over("name", ["bert", "gpt2", "torch post"])
def test_gradients_are_those_of_the_cut_model(name: str) -> None:
    hand = built(name)
    weights = [p for p in hand.model.parameters() if p.ndim == 2]
    with ds.without_(hand.model, "skips", "norms"):
        found = torch.autograd.grad(output(hand.model, hand.inputs).square().sum(), weights, allow_unused=True)
    by_hand = torch.autograd.grad(
        hand.run(["attention_skip", "ffn_skip", "norms"])[0].square().sum(), weights, allow_unused=True
    )
    for one, other in zip(found, by_hand, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


@over("removed", [("attention_skip",), ("skips", "norms"), ("ffn",), ("norms",)])
@over("name", ["bert", "xlnet", "gpt2", "pre_norm"])
def test_a_scan_of_a_cut_model_sees_what_the_cut_model_does(name: str, removed: tuple[str, ...]) -> None:
    hand = built(name)
    with ds.without_(hand.model, *removed) as handle:
        scan = ds.scan(hand.model, hand.inputs)
    parts = handle.parts
    with torch.no_grad():
        states = hand.run(parts)[1]
    time_first = name == "xlnet"
    states = [X.transpose(0, 1) if time_first else X for X in states]
    for metric in ("relative_residual", "t_div", "token_norm"):
        expected = torch.stack([getattr(ds.metrics, metric)(X).mean() for X in states])
        torch.testing.assert_close(scan[metric], expected.detach(), atol=1e-7, rtol=1e-6)
    assert scan.remedies == [f"without {', '.join(removed)}"]
    if "norms" in removed:
        assert scan.placement in ("none", "unknown") and not any("norm" in step for step in scan.step_names)
    assert not any("could not be followed" in note for note in scan.notes)
    if removed == ("ffn",):
        assert not any("ffn" in step and "norm" not in step for step in scan.step_names)


def test_attention_of_a_model_without_norms_is_measured_on_what_it_reads() -> None:
    hand = built("pre_norm")
    with ds.without_(hand.model, "norms"), torch.no_grad():
        scan = ds.scan(hand.model, TOKENS)
        P = hand.model.blocks[0].attention.pattern(TOKENS)  # type: ignore[union-attr]
    torch.testing.assert_close(scan["omega"][0], ds.metrics.omega(TOKENS, P).mean(), rtol=1e-4, atol=1e-6)


def test_blocks_chooses_where() -> None:
    hand = built("pre_norm")
    with torch.no_grad(), ds.without_(hand.model, "skips", blocks="blocks.1"):
        found = output(hand.model, TOKENS)
        X = hand._block(hand.blocks[0], TOKENS, ())
        X = hand._block(hand.blocks[2], hand._block(hand.blocks[1], X, ("attention_skip", "ffn_skip")), ())
        torch.testing.assert_close(found, hand.end(X))


def test_with_a_remedy_at_the_ends_of_blocks() -> None:
    hand = built("classic")
    with torch.no_grad(), ds.without_(hand.model, "ffn"), ds.fix_(hand.model, ds.remedies.DeEscalate(1.0)):
        found = output(hand.model, TOKENS)
        X: Tensor = TOKENS
        for block in hand.blocks:
            X = hand._block(block, X, ("ffn",))
            X = X - X.mean(-2, keepdim=True)
        torch.testing.assert_close(found, hand.end(X))


@over("first", ["without_", "fix_"])
def test_with_a_remedy_where_blocks_begin_whichever_came_first(first: str) -> None:
    hand = built("classic")
    makes = {
        "without_": lambda: ds.without_(hand.model, "ffn"),
        "fix_": lambda: ds.fix_(hand.model, ds.remedies.DeEscalate(1.0), at="block_in"),
    }
    for name in sorted(makes, key=lambda name: name != first):
        makes[name]()
    with torch.no_grad():
        found = output(hand.model, TOKENS)
        X: Tensor = TOKENS
        for block in hand.blocks:
            X = hand._block(block, X - X.mean(-2, keepdim=True), ("ffn",))
        torch.testing.assert_close(found, hand.end(X))


def test_undo_without_a_context() -> None:
    hand = built("classic")
    handle = ds.without_(hand.model, "skips", "ffn", "norms")
    assert repr(handle) == "without skips, ffn, norms"
    handle.undo()
    handle.undo()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in hand.model.modules())


def test_wrong_use_is_refused() -> None:
    model = built("classic").model
    with pytest.raises(UnknownNameError, match=r"without_: no part is called 'skip'\. Did you mean skips"):
        ds.without_(model, "skip")
    with pytest.raises(UsageError, match="at least one part must be named; got none"):
        ds.without_(model)
    with pytest.raises(UsageError, match=r"model must be a torch\.nn\.Module; got str"):
        ds.without_("bert", "ffn")  # type: ignore[arg-type]
    with ds.without_(model, "ffn"), pytest.raises(UsageError, match="Name all parts in one call"):
        ds.without_(model, "norms")
    ds.without_(model, "norms").undo()
