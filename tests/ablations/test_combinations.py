"""ablate: all combinations measured, the collapse found, what cannot be trusted said, the record kept."""

import json
import math
from html import unescape
from pathlib import Path

import pytest
import torch
from blocks_by_hand import IDS, TOKENS, built
from torch import nn

import depthscope as ds
from depthscope.errors import RecordError, UnknownNameError, UsageError
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.reports.show import picture


@pytest.fixture(scope="module")
def bert() -> ds.Ablations:
    torch.manual_seed(0)
    model, ids = resolve("bert", Sizes(depth=6, width=64, heads=4, tokens=16, batch=2))
    return ds.ablate(model, ids)


def test_the_rows_are_all_combinations(bert: ds.Ablations) -> None:
    removed = [row.removed for row in bert.rows]
    assert len(removed) == len({frozenset(r) for r in removed}) == 8
    assert removed[0] == () and removed[-1] == ("skips", "ffn", "norms")
    assert bert["ffn"].removed == ("ffn",) and bert["norms", "skips"].removed == ("skips", "norms")
    with pytest.raises(UnknownNameError, match="no row without attention_skip; the parts were skips, ffn, norms"):
        bert["attention_skip"]


def test_each_row_is_the_scan_of_the_cut_model() -> None:
    hand = built("gpt2")
    found = ds.ablate(hand.model, IDS, parts=("attention_skip", "ffn", "norms"), metrics=["effective_rank"])
    for row in found.rows:
        with torch.no_grad():
            states = hand.run(row.removed)[1]
        for name in ("relative_residual", "effective_rank"):
            expected = torch.stack([getattr(ds.metrics, name)(X).mean() for X in states])
            torch.testing.assert_close(row.scan[name], expected, atol=1e-7, rtol=1e-6)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in hand.model.modules())


def test_pure_attention_collapses_and_the_whole_model_does_not(bert: ds.Ablations) -> None:
    bare, whole = bert[bert.parts], bert[()]
    residuals = bare.scan["relative_residual"].tolist()
    assert bare.collapse == next(i for i in range(7) if all(v < 1e-3 for v in residuals[i:]))
    assert whole.collapse is None and whole.residual > 0.1
    assert bert.verdict.startswith("Pure attention (skips, ffn, norms taken out): collapse, all tokens are alike from")
    assert "What matters most: skips. Without it alone: collapse, all tokens are alike from block" in bert.verdict
    shown = str(bert)
    assert "kept  kept kept" in shown and "< 3e-07" in shown
    assert bare.ending == "numerical floor" and whole.ending == ""


def test_a_model_that_does_not_collapse_is_not_said_to() -> None:
    hand = built("gpt2")
    found = ds.ablate(hand.model, IDS, parts=["norms"])
    assert len(found.rows) == 2
    assert found.verdict.startswith("The model (norms taken out): relative residual 0.")
    assert found.verdict.count("at block 3, no collapse") == 2


def test_tokens_that_vanish_are_said_to() -> None:
    hand = built("classic")
    with torch.no_grad():
        for p in hand.model.parameters():
            p.mul_(1e-15)
    model = hand.model.float()
    found = ds.ablate(model, TOKENS.float(), parts=("skips", "norms"))
    bare = found[found.parts]
    assert math.isnan(bare.residual) and bare.until < 3
    assert bare.ending == f"tokens vanish from block {bare.until + 1} on"
    assert bare.ending in found.verdict and "tokens vanish" in " ".join(str(found).split())
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["rows"][-1]["relative_residual"] == "nan"


def test_tokens_that_overflow_are_said_to() -> None:
    hand = built("pre_norm")
    with torch.no_grad():
        for p in hand.model.parameters():
            p.mul_(1e8)
    found = ds.ablate(hand.model.float(), TOKENS.float(), parts=("norms",))
    row = found["norms"]
    assert row.ending == f"not a number from block {row.until + 1} on" and row.collapse is None


def test_half_precision_has_a_higher_floor_and_its_small_tokens_are_not_lost() -> None:
    sizes = Sizes(depth=4, width=64, heads=4, tokens=16, batch=2)
    model, ids = resolve("gpt2", sizes)
    whole = ds.ablate(model.half(), ids, parts=["ffn"])[()]
    assert float(whole.scan["token_norm"][0]) < 1 and whole.until == 4 and whole.residual > 0.1
    model, ids = resolve("bert", sizes)
    found = ds.ablate(model.half(), ids, parts=["skips"])
    bare = found["skips"]
    assert bare.limit == bare.floor == pytest.approx(0.0028, abs=1e-4)
    assert bare.collapse is not None and "(relative residual below 0.0028)" in found.verdict


def test_dropout_does_not_count_as_diversity(bert: ds.Ablations) -> None:
    torch.manual_seed(0)
    model, ids = resolve("bert", Sizes(depth=6, width=64, heads=4, tokens=16, batch=2))
    found = ds.ablate(model.train(), ids)
    assert model.training and not any("dropout" in note for note in found[()].scan.notes)
    assert found.verdict == bert.verdict


def test_a_cache_is_refused() -> None:
    model = built("gpt2").model
    cache = model(IDS[:, :3], use_cache=True).past_key_values
    given = {"input_ids": IDS[:, 3:], "past_key_values": cache}
    for inputs in (given, [given], iter([given])):
        with pytest.raises(UsageError, match="ablate: inputs must hold the whole text; got a key-value cache"):
            ds.ablate(model, inputs)
    assert cache.get_seq_length() == 3


def test_the_record_is_kept(bert: ds.Ablations, tmp_path: Path) -> None:
    path = tmp_path / "ablations.json"
    bert.save(path)
    again = ds.Ablations.load(path)
    assert str(again) == str(bert) and again.to_dict() == bert.to_dict()
    card = bert._repr_html_()
    assert card is not None and bert.verdict in unescape(card) and "goes from" in card
    assert picture(bert, tmp_path / "a.png").stat().st_size > 10_000
    path.write_text("{}")
    with pytest.raises(RecordError, match=r"must say format 'depthscope\.ablations'"):
        ds.Ablations.load(path)
    path.write_text("no")
    with pytest.raises(RecordError, match="must be JSON written by save"):
        ds.Ablations.load(path)
    with pytest.raises(RecordError, match="must have all its fields; missing: rows"):
        ds.Ablations.from_dict({"format": "depthscope.ablations", "version": 1, "parts": []})


def test_inputs_that_can_be_read_once_are_read_for_every_row() -> None:
    hand = built("classic")
    done: list[tuple[int, int]] = []
    found = ds.ablate(hand.model, (X for X in (TOKENS, TOKENS)), parts="ffn", on_row=lambda *row: done.append(row))
    assert [row.scan.samples for row in found.rows] == [6, 6] and done == [(1, 2), (2, 2)]


def test_wrong_parts_are_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UnknownNameError, match="ablate: no part is called 'mlp'"):
        ds.ablate(model, TOKENS, parts=("skips", "mlp"))
    for parts in (("skips", "ffn_skip"), ("ffn", "ffn"), ()):
        with pytest.raises(UsageError, match="parts must be at least one, and must not overlap"):
            ds.ablate(model, TOKENS, parts=parts)
