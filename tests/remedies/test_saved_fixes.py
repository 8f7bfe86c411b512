"""Fixes beside the weights: what save_pretrained, state dicts and fix.save write comes back bit-equal, or is refused."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T
from small_models import IDS, MODELS, X, encoder, gpt2, out, shifted, written
from torch import nn

import depthscope as ds
from depthscope.errors import FixLostWarning, RecordError, UnknownNameError, UsageError
from depthscope.remedies.fix_record import FILE, LEARNED, FixRecord
from loops import crossed, over

R = ds.remedies
REMEDIES = [
    (R.DeEscalate(0.7), "block_out", {}),
    (R.DeEscalate(0.7, learnable=True), "sa_sum", {}),
    (R.FeatScale(16, s=0.3, t=-0.2), "block_out", {}),
    (R.DeEscalate(0.7), "block_in", {"causal": "leak"}),
    (R.SigmaReparam(0.5), "weights", {}),
    (R.SpectralH("sharpen/own"), "values", {}),
]


@crossed("name, chosen", ["gpt2", "bert", "llama"], REMEDIES)
def test_save_pretrained_and_back(name: str, chosen: tuple, tmp_path: Path) -> None:
    build, inputs = MODELS[name]
    model, (remedy, at, more) = build(), chosen
    plain = out(model, inputs)
    fix = ds.fix_(model, remedy, at=at, **more)
    out(model, inputs)
    shifted(model)
    fixed = out(model, inputs)
    with pytest.warns(
        FixLostWarning, match=r"in depthscope\.json; from_pretrained alone returns .* ds\.fix_\(model, folder\)"
    ):
        model.save_pretrained(tmp_path)
    learned = {key: value for key, value in model.state_dict().items() if "depthscope_" in key}
    assert bool(learned) == (tmp_path / LEARNED).exists()
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(out(again, inputs), plain) and ds.fixes(again) == []
    back = ds.fix_(again, tmp_path)
    assert torch.equal(out(again, inputs), fixed)
    state = again.state_dict()
    assert set(state) == set(model.state_dict()) and all(
        torch.equal(state[key], value) for key, value in learned.items()
    )
    assert back.describe() == fix.describe() and repr(back) == repr(fix)
    back.undo()
    assert torch.equal(out(again, inputs), plain)
    fix.undo()
    assert "save_pretrained" not in vars(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FixLostWarning)
        model.save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / FILE).exists()


@over("name", ["encoder", "written"])
def test_a_model_of_ones_own(name: str, tmp_path: Path) -> None:
    """Weights by a state dict, the fix beside them; the record is read by every strict parser and by ds.load."""
    build, inputs = MODELS[name]
    model = build()
    fix = ds.fix_(model, R.DeEscalate(0.7, learnable=True))
    shifted(model)
    fixed = out(model, inputs)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    assert fix.save(tmp_path) == tmp_path / FILE
    again = build()
    ds.fix_(again, str(tmp_path))
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(out(again, inputs), fixed)
    record = ds.load(tmp_path / FILE)
    assert isinstance(record, FixRecord) and record.fixes[0]["settings"]["tau"] == 0.7
    assert json.loads((tmp_path / FILE).read_text())["format"] == "depthscope.fixes"


def test_state_dicts_into_fixed_and_plain_models() -> None:
    """A remedy without numbers adds no key: its state dict is the plain one. One that learns has its own keys."""
    fixed, plain = encoder(), encoder()
    with ds.fix_(fixed, R.DeEscalate(0.7)):
        assert list(fixed.state_dict()) == list(plain.state_dict())
        plain.load_state_dict(fixed.state_dict())
        fixed.load_state_dict(plain.state_dict())
    with ds.fix_(fixed, R.DeEscalate(0.7, learnable=True)):
        with pytest.raises(RuntimeError, match=r"Unexpected key.*depthscope_deescalate_block_out\.layers_0\.raw_tau"):
            plain.load_state_dict(fixed.state_dict())
        with pytest.raises(RuntimeError, match=r"Missing key.*depthscope_deescalate_block_out\.layers_0\.raw_tau"):
            fixed.load_state_dict(plain.state_dict())
        other = encoder()
        ds.fix_(other, R.DeEscalate(0.1, learnable=True))
        other.load_state_dict(fixed.state_dict())
        assert torch.equal(out(other, X), out(fixed, X))


def test_several_fixes_and_their_arguments_come_back_in_order(tmp_path: Path) -> None:
    model = encoder()
    ds.fix_(model, R.DeEscalate(0.5), at="sa_sum", blocks="layers.1")
    ds.fix_(model, R.GainControl())
    last = ds.fix_(model, R.DeEscalate(0.3), mask=lambda x: torch.ones(x.shape[:2]), causal="no")
    last.save(tmp_path)
    again = encoder()
    again.load_state_dict(model.state_dict())
    plain = out(again, X)
    with pytest.raises(UsageError, match=r"DeEscalate was saved with mask=, .* ds\.fix_\(model, folder, mask=\.\.\.\)"):
        ds.fix_(again, tmp_path)
    assert ds.fixes(again) == []  # all or none
    back = ds.fix_(again, tmp_path, mask=torch.ones(2, 7))
    assert list(map(repr, ds.fixes(again))) == list(map(repr, ds.fixes(model)))
    assert torch.equal(out(again, X), out(model, X)) and not torch.allclose(out(again, X), plain)
    assert ds.fixes(again)[0].blocks == ["layers.1"]
    back.undo()
    assert ds.fixes(again) == [] and torch.equal(out(again, X), plain)


def test_models_of_several_streams(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "d_kv": 8, "vocab_size": 99}
    model = T.T5Model(T.T5Config(**sizes, decoder_start_token_id=0)).eval()
    given = {"input_ids": IDS, "decoder_input_ids": IDS.flip(0)}
    with torch.no_grad():
        for more in ({}, {"stream": "decoder"}):
            fix = ds.fix_(model, R.DeEscalate(0.7), **more)
            expected = model(**given).last_hidden_state
            fix.save(tmp_path)
            fix.undo()
            with ds.fix_(model, tmp_path) as back:
                assert torch.equal(model(**given).last_hidden_state, expected)
                assert len(back.others) == (not more)


def test_a_fix_of_a_part_of_the_model(tmp_path: Path) -> None:
    model = gpt2()
    fix = ds.fix_(model.transformer, R.DeEscalate(0.7))
    fixed = out(model, IDS)
    with pytest.warns(
        FixLostWarning, match=r"transformer has a fix, .* the GPT2LMHeadModel around .*fix\.save\(folder\)"
    ):
        model.save_pretrained(tmp_path)
    fix.save(tmp_path)
    again = T.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    ds.fix_(again.transformer, tmp_path)
    assert torch.equal(out(again, IDS), fixed)
    whole = ds.fix_(model, R.DeEscalate(0.2), at="sa_sum")
    both = out(model, IDS)
    with pytest.warns(FixLostWarning, match="from_pretrained alone returns") as said:
        model.save_pretrained(tmp_path)
    assert len(said) == 1
    again = T.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    ds.fix_(again, tmp_path)
    assert torch.equal(out(again, IDS), both) and [f.model for f in ds.fixes(again)] == [again, again.transformer]
    whole.undo()


class NoSettings(nn.Module):
    causal_safe = True

    def forward(self, X: torch.Tensor, mask: Any = None) -> torch.Tensor:
        return X * 0.5


def test_what_cannot_be_written_warns_where_weights_are_saved(tmp_path: Path) -> None:
    model = gpt2()
    fix = ds.fix_(model, NoSettings())
    with pytest.raises(UsageError, match=r"NoSettings has no settings\(\)"):
        fix.save(tmp_path)
    with pytest.warns(FixLostWarning, match=r"the weights are saved without the fix\. .*NoSettings has no settings"):
        model.save_pretrained(tmp_path)
    assert not (tmp_path / FILE).exists() and torch.equal(out(copy.deepcopy(model), IDS), out(model, IDS))
    fix.undo()
    with ds.without_(model, "ffn"):
        fix = ds.fix_(model, R.DeEscalate(0.5))
        with pytest.raises(UsageError, match="only fixes can be saved; the model is without ffn"):
            fix.save(tmp_path)


def test_models_that_a_saved_fix_does_not_fit(tmp_path: Path) -> None:
    fix = ds.fix_(gpt2(), R.FeatScale(16, s=0.3))
    fix.save(tmp_path)
    deeper = r"saved for GPT2LMHeadModel with 3 blocks \(transformer\.h\.0 to transformer\.h\.2\); .* has 4 blocks"
    with pytest.raises(UsageError, match=deeper):
        ds.fix_(gpt2(depth=4), tmp_path)
    with pytest.raises(UsageError, match=r"has no blocks|with 3 blocks"):
        ds.fix_(gpt2().transformer, tmp_path)
    wider = gpt2(width=32)
    ds.fix_(gpt2(), R.SpectralH()).save(tmp_path)
    with pytest.raises(UsageError, match=r"what the remedy has learned must fit the model; .*size mismatch"):
        ds.fix_(wider, tmp_path)
    assert ds.fixes(wider) == []
    with pytest.raises(UsageError, match="a saved fix has its own at, blocks, stream and causal"):
        ds.fix_(gpt2(), tmp_path, at="sa_sum")


def test_files_that_are_damaged_or_not_there(tmp_path: Path) -> None:
    model = encoder()
    with pytest.raises(RecordError, match=r"fix_: .* must hold depthscope\.json.* saved without a fix"):
        ds.fix_(model, tmp_path)
    with pytest.raises(UsageError, match="or a folder in which a fix was saved; got 'nowhere'"):
        ds.fix_(model, "nowhere")
    fix = ds.fix_(model, R.DeEscalate(0.5, learnable=True))
    path = fix.save(tmp_path)
    good = json.loads(path.read_text())
    del good["crc32"]
    for bad, error, said in (
        ({"fixes": []}, RecordError, "at least one fix"),
        ({"fixes": [{"remedy": "DeEscalate"}]}, RecordError, "each with within, needs and learns"),
        ({"fixes": [good["fixes"][0] | {"remedy": "DeEscalat"}]}, UnknownNameError, "Did you mean DeEscalate"),
        ({"fixes": [good["fixes"][0] | {"within": "tower"}]}, UsageError, "has no tower"),
        ({"version": 99}, RecordError, "reads format version 1; got 99"),
    ):
        path.write_text(json.dumps(good | bad))
        with pytest.raises(error, match=said):
            ds.fix_(encoder(), tmp_path)
    path.write_text("{")
    with pytest.raises(RecordError, match="must be JSON"):
        ds.fix_(encoder(), tmp_path)
    path.write_text(json.dumps(good))
    (tmp_path / LEARNED).write_bytes(b"nothing")
    with pytest.raises(RecordError, match=r"depthscope_learned\.pt must hold what the remedy has learned"):
        ds.fix_(encoder(), tmp_path)
    (tmp_path / LEARNED).unlink()
    with pytest.raises(RecordError, match="Copy the whole folder"):
        ds.fix_(encoder(), tmp_path)


def test_a_model_that_was_never_called_is_described_whole(tmp_path: Path) -> None:
    model = written()
    ds.fix_(model, R.DeEscalate(0.7)).save(tmp_path)
    again = copy.deepcopy(model)
    ds.fixes(again)[0].undo()
    assert ds.fix_(again, tmp_path).describe()["blocks"] is None
    assert torch.equal(out(again, X), out(model, X)) and ds.fixes(again)[0].fired == 3
