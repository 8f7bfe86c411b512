"""A fix goes with its model into copies and pickles, and each is on its own there."""

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import IDS, MODELS, X, encoder, gpt2, out, shifted, written
from torch import nn

import depthscope as ds
from depthscope.errors import FixLostWarning, UsageError
from depthscope.interventions.hooks import Hook
from loops import crossed, over

R = ds.remedies
REMEDIES = [
    (R.DeEscalate(0.7), "block_out"),
    (R.DeEscalate(0.7), "sa_sum"),
    (R.DeEscalate(0.7, learnable=True), "block_out"),
    (R.CentredAttention(), "attn"),
    (R.SigmaReparam(0.5), "weights"),
]


def by_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def by_file(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = [copy.deepcopy, by_pickle, by_file]


@crossed("name, remedy_at, way", list(MODELS), REMEDIES, WAYS)
def test_a_copy_is_fixed_too_and_on_its_own(name: str, remedy_at: tuple, way: Callable) -> None:
    build, inputs = MODELS[name]
    model, (remedy, at) = build(), remedy_at
    plain = out(model, inputs)
    fix = ds.fix_(model, remedy, at=at)
    shifted(model)
    early = way(model)  # before any pass
    fixed = out(model, inputs)
    assert not torch.allclose(fixed, plain, atol=1e-4)
    late = way(model)
    for twin in (early, late):
        assert torch.equal(out(twin, inputs), fixed)
        (own,) = ds.fixes(twin)
        assert own is not fix and own.fired and repr(own) == repr(fix) and own.describe() == fix.describe()
        own.undo()
        assert torch.equal(out(twin, inputs), plain) and ds.fixes(twin) == []
        assert [name for name, _ in twin.named_modules()] == [name for name, _ in build().named_modules()]
        assert not any(hook for m in twin.modules() for hook in (*m._forward_hooks, *m._forward_pre_hooks))
        assert "save_pretrained" not in vars(twin) and not twin._state_dict_hooks and not twin._state_dict_pre_hooks
    again = way(late := way(model))  # a copy of a copy that was never called
    fix.undo()
    assert torch.equal(out(model, inputs), plain)
    assert torch.equal(out(again, inputs), fixed) and torch.equal(out(late, inputs), fixed)


def test_what_a_copy_learns_is_its_own() -> None:
    model = encoder()
    ds.fix_(model, R.DeEscalate(0.5, learnable=True))
    twin = copy.deepcopy(model)
    before = out(model, X)
    twin(X).pow(3).sum().backward()
    grads = [p.grad for n, p in twin.named_parameters() if "depthscope_" in n]
    assert len(grads) == 3 and all(bool(g.abs().max() > 0) for g in grads)
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(out(model, X), before)


def test_the_causal_form_of_a_copy_has_its_parameters() -> None:
    """In a causal model the remedy stands in another form, with the very same parameters."""
    model = gpt2()
    ds.fix_(model, R.DeEscalate(0.5, learnable=True))
    out(model, IDS)
    for twin in (copy.deepcopy(model), by_file(model)):
        shifted(twin)
        shown = out(twin, IDS)
        assert not torch.allclose(shown, out(model, IDS), atol=1e-4)
        shifted(other := copy.deepcopy(model))
        assert torch.equal(out(other, IDS), shown)


def test_several_fixes_keep_their_order() -> None:
    model = encoder()
    ds.fix_(model, R.DeEscalate(0.5))
    ds.fix_(model, R.GainControl(), at="sa_sum")
    ds.fix_(model, R.PairNorm(), at="block_out")
    before = out(model, X)
    for way in WAYS:
        twin = way(model)
        assert torch.equal(out(twin, X), before)
        assert list(map(repr, ds.fixes(twin))) == list(map(repr, ds.fixes(model)))


def test_a_model_of_two_streams_and_a_fix_of_a_part() -> None:
    import transformers as T

    sizes = {"d_model": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "d_kv": 8, "vocab_size": 99}
    model = T.T5Model(T.T5Config(**sizes, decoder_start_token_id=0)).eval()
    given = {"input_ids": IDS, "decoder_input_ids": IDS.flip(0)}
    with torch.no_grad():
        ds.fix_(model, R.DeEscalate(0.7))
        both = model(**given).last_hidden_state
        for way in WAYS:
            twin = way(model)
            assert torch.equal(twin(**given).last_hidden_state, both)
            assert len(ds.fixes(twin)) == 1 and len(ds.fixes(twin)[0].others) == 1
        ds.fixes(model)[0].undo()
        ds.fix_(model.decoder, R.DeEscalate(0.7))
        part = model(**given).last_hidden_state
        assert not torch.allclose(part, both, atol=1e-4)
        assert torch.equal(copy.deepcopy(model)(**given).last_hidden_state, part)


def test_hooks_of_others_are_not_overwritten_in_another_process(tmp_path: Path) -> None:
    """Numbers of hooks begin at 0 in every process: those that came from a file must not be taken again."""
    model = encoder()
    ds.fix_(model, R.DeEscalate(0.7))
    expected = out(model, X)
    torch.save((model, X, expected), tmp_path / "all.pt")
    code = f"""if True:
        import torch
        model, X, expected = torch.load({str(tmp_path / "all.pt")!r}, weights_only=False)
        called = []
        for module in model.modules():
            for _ in range(20):
                module.register_forward_pre_hook(lambda *_: called.append(1))
        with torch.no_grad():
            assert torch.equal(model(X), expected), "the fix is lost"
        assert called
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_block_that_is_copied_alone_says_that_the_fix_is_not_there() -> None:
    model = written()
    plain = out(model.blocks[1], X)
    ds.fix_(model, R.DeEscalate(0.7))
    out(model, X)
    for way in WAYS:
        block = way(model.blocks[1])
        with pytest.warns(
            FixLostWarning, match=r"this Block was copied out of a model with a change .* not in the copy"
        ):
            assert torch.equal(out(block, X), plain)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            assert torch.equal(out(block, X), plain)
        assert not block._forward_hooks and not block._forward_pre_hooks


def test_what_cannot_be_copied_or_pickled_says_so() -> None:
    model = encoder()
    fix = ds.fix_(model, R.DeEscalate(0.7), mask=lambda x: torch.ones(x.shape[:2]))
    before = out(model, X)
    assert torch.equal(out(copy.deepcopy(model), X), before)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(model)
    fix.undo()
    fix.group = object()  # as a group of processes is
    with pytest.raises(
        UsageError, match=r"group= cannot be pickled with DeEscalate\(tau=0.7\) at block_out\. Save the"
    ):
        pickle.dumps(fix)
    assert copy.deepcopy(fix).group is fix.group
    shallow = copy.copy(model)
    ds.fix_(model, R.DeEscalate(0.7))
    with pytest.raises(
        UsageError, match="belongs to another model, of which this TransformerEncoder is a shallow copy"
    ):
        out(shallow, X)


def test_a_copy_without_parts_is_without_them_too() -> None:
    model = written()
    with ds.without_(model, "ffn"):
        before = out(model, X)
        for way in WAYS:
            assert torch.equal(out(way(model), X), before)


@over("way", WAYS)
def test_a_scan_of_a_copy_sees_its_fix(way: Callable) -> None:
    model = encoder()
    ds.fix_(model, R.DeEscalate(1.0))
    twin = way(model)
    scan = ds.scan(twin, X)
    assert scan.remedies == ["DeEscalate(tau=1) at block_out"] and float(scan["t_sim"][1:].max()) < 1e-6
    assert all(isinstance(hook, Hook) for m in twin.modules() for hook in m._forward_pre_hooks.values())


def test_quantised_copies_are_fixed() -> None:
    """quantize_dynamic copies the model and replaces its linear modules."""
    model = written()
    plain = out(model, X)
    ds.fix_(model, R.DeEscalate(0.9), at="block_out")
    fixed = out(model, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        found = out(small, X)
    assert float((found - fixed).norm()) < 0.2 * float((found - plain).norm())
