"""ds.paths: shares, sizes and residuals of every length, against their definitions."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import depthscope as ds
from depthscope.circuits.linearised import linearise
from depthscope.circuits.subject import subject_of
from depthscope.errors import HookError, MaskError, RecordError, UnknownNameError, UsageError
from depthscope.reports.paths import rows
from depthscope.theory.paths import along_path, every_path
from loops import over

TOKENS = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))


def plain(depth: int = 3, **choices) -> nn.Module:
    torch.manual_seed(1)
    return ds.models.classic(depth, 16, 4, **choices).eval()


def test_shares_of_lengths_and_biases_sum_to_one() -> None:
    model = plain(bias=True, output=True)
    for form in ("secant", "tangent"):
        found = ds.paths(model, TOKENS, form=form)
        assert float(found.share.sum()) + found.constant == pytest.approx(1, abs=1e-5)
        assert float(found.energy.sum()) == pytest.approx(1)
    alone = ds.paths(model, TOKENS, form="attention")
    assert float(alone.share.sum()) == pytest.approx(1, abs=1e-12) and alone.constant == 0
    assert alone.error < 1e-14 and math.isnan(alone.response_error)


def test_numbers_are_those_of_the_parts_sequence_by_sequence() -> None:
    model = plain()
    found, parts = ds.paths(model, TOKENS), linearise(subject_of(model, TOKENS))
    sizes = torch.stack([torch.stack([X.norm() for X in part]) for part in parts.parts])
    whole = torch.stack([X.norm() for X in parts.output])
    torch.testing.assert_close(found.norm, (sizes / whole).mean(1))
    dots = torch.stack(
        [torch.stack([(X * Y).sum() for X, Y in zip(p, parts.output, strict=True)]) for p in parts.parts]
    )
    torch.testing.assert_close(found.share, (dots / whole**2).mean(1))
    torch.testing.assert_close(found.cosine, (dots / sizes / whole).mean(1))
    torch.testing.assert_close(found.residual[2], ds.metrics.relative_residual(parts.parts[2]).mean())
    together = torch.stack([X.norm() for X in parts.parts.sum(0)])
    assert found.alignment == pytest.approx(float((together / sizes.sum(0)).mean()))


@over(
    "choices, skip, branch",
    [
        ({}, 1, 1),
        ({"alpha": 0.3}, 1, 0.3),
        ({"wiring": "deep_norm"}, (2 * 3) ** 0.25, 1),
        ({"wiring": "pre_norm"}, 1, 1),
    ],
)
def test_every_path_of_a_real_model_by_itself(choices: dict, skip: float, branch: float) -> None:
    """P from the model's own pass, weights from its modules: the listed paths are the network and each length of it."""
    model, X = plain(output=True, **choices).double(), TOKENS.double()
    P, W_V, W_O, state = [], [], [], X
    with torch.no_grad():
        for block in model.blocks:
            read = block.wiring.norm_1(state) if choices.get("wiring") == "pre_norm" else state
            P.append(block.attention.pattern(read))
            W_V.append(block.attention.W.weight.T.unflatten(1, (4, 4)).transpose(0, 1))
            W_O.append(block.attention.W_O.weight.T.unflatten(0, (4, 4)) * branch / skip)
            state = block(state)
        listed = torch.zeros(4, *X.shape, dtype=torch.float64)
        for path in every_path([4] * 3):
            listed[sum(h is not None for h in path)] += along_path(path, X * skip**3, P, W_V, W_O)
        network = X
        for P_l, V_l, O_l in zip(P, W_V, W_O, strict=True):
            network = skip * (network + sum(P_l[:, h] @ network @ V_l[h] @ O_l[h] for h in range(4)))
    torch.testing.assert_close(listed.sum(0), network, atol=1e-10, rtol=1e-10)
    found = ds.paths(model, X, form="attention")
    dots, sizes = (listed * network).sum((-2, -1)), network.square().sum((-2, -1))
    torch.testing.assert_close(found.share, (dots / sizes).mean(1), atol=1e-10, rtol=0)
    torch.testing.assert_close(found.norm, (listed.square().sum((-2, -1)) / sizes).sqrt().mean(1), atol=1e-10, rtol=0)


def test_padding_counts_for_nothing() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    short = ds.paths(model, TOKENS[:, :5])
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[:, 5:] = True
    padded = ds.paths(model, {"src": TOKENS, "src_key_padding_mask": padding})
    for name in ("norm", "share", "cosine", "residual"):
        torch.testing.assert_close(getattr(padded, name), getattr(short, name), atol=1e-5, rtol=1e-4)


def test_batches_are_averaged_and_generators_will_do() -> None:
    model = plain()
    whole = ds.paths(model, TOKENS)
    parts = ds.paths(model, (X for X in TOKENS.split(1)))
    assert parts.samples == whole.samples == 3
    torch.testing.assert_close(parts.share, whole.share, atol=1e-5, rtol=1e-4)


def test_drawn_paths_agree_with_the_exact_sums_at_both_ends() -> None:
    found = ds.paths(plain(output=True), TOKENS, form="attention", draw=50)
    drawn = found.drawn
    assert float(drawn["log10_norm"][0]) == pytest.approx(math.log10(float(found.norm[0])), abs=0.02)
    assert float(drawn["alignment"][0]) == pytest.approx(1, abs=0.05)
    assert float(drawn["residual"][0]) == pytest.approx(float(found.residual[0]))
    assert bool((drawn["residual"].diff() < 0).all())  # one path collapses with its length
    assert all(len(values) == 4 and bool(values.isfinite().all()) for values in drawn.values())


def test_the_record_is_saved_and_read_back_and_printed(tmp_path: Path) -> None:
    found = ds.paths(plain(), TOKENS, form="attention", draw=5)
    found.save(tmp_path / "p.json")
    again = ds.PathLengths.load(tmp_path / "p.json")
    written = json.loads((tmp_path / "p.json").read_text())
    assert written.pop("crc32") and again.to_dict() == found.to_dict() == written
    text = str(again)
    for words in ("paths: Transformer", "3 blocks, 4 heads each", "single paths", "of all paths", "residual"):
        assert words in text
    assert "when its tokens change" in str(ds.paths(plain(), TOKENS))
    (tmp_path / "q.json").write_text("{}")
    with pytest.raises(RecordError, match=r"must say format 'depthscope\.paths'; got None"):
        ds.PathLengths.load(tmp_path / "q.json")


def test_batches_of_any_size_weigh_by_their_sequences() -> None:
    model = plain(output=True)
    whole = ds.paths(model, TOKENS, form="attention", draw=6)
    parts = ds.paths(model, [TOKENS[:2], TOKENS[2:]], form="attention", draw=6)
    torch.testing.assert_close(parts.drawn["residual"], whole.drawn["residual"], atol=1e-6, rtol=1e-5)


def test_a_residual_that_rounding_makes_is_not_shown_as_one() -> None:
    """Half of the output is the biases': in float32 a part of 1e-6 has no digits left for what differs in it."""
    torch.manual_seed(0)
    model = plain(8, bias=True, output=True, alpha=0.05)
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter, std=0.5)
    found, true = ds.paths(model, TOKENS), ds.paths(model.double(), TOKENS.double())
    told = (found.residual > found.residual_floor) & (found.norm > found.floor)
    assert 2 < int(told.sum()) < 9
    torch.testing.assert_close(found.residual[told], true.residual[told], atol=0, rtol=0.5)
    for k in (~told).nonzero().flatten().tolist():
        assert rows(found)[1][k][-1].startswith(("<", "-"))


def test_attention_that_is_rounded_lets_tokens_grow_as_alike_as_exact_attention() -> None:
    """Eager attention shows a P in float32, whose rows sum to 1 but for 1e-8."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 64}
    model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=99)).eval()
    ids = torch.randint(0, 99, (2, 9), generator=torch.Generator().manual_seed(0))
    exact = ds.paths(model, ids, form="attention").residual
    model.set_attn_implementation("eager")
    torch.testing.assert_close(ds.paths(model, ids, form="attention").residual, exact, atol=1e-14, rtol=1e-2)


def test_a_verdict_on_biases_alone_divides_nothing_by_nothing() -> None:
    found = ds.paths(plain(), TOKENS)
    faint = replace(found, share=found.share * 0, constant=1.0)
    assert "Biases make 100% of the output" in faint.verdict and "0%, too little" in faint.verdict


@over("form", ["secant", "attention"])
def test_numbers_that_are_not_finite_are_named(form: str) -> None:
    model = plain()
    with torch.no_grad():
        model.blocks[0].ffn.W_1.weight[0, 0] = math.nan
    with pytest.raises(UsageError, match=r"must be finite; .*block .*of Transformer gives NaN.*scan says where"):
        ds.paths(model, TOKENS, form=form)


def test_a_block_that_attends_twice_is_refused() -> None:
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    model = nn.TransformerDecoder(layer, 2).eval()
    with pytest.raises(HookError, match=r"every block must attend once; layers.0 .* 2 times"):
        ds.paths(model, (TOKENS, TOKENS[:, :4]), form="attention")


def test_wrong_use_is_refused() -> None:
    with pytest.raises(MaskError, match=r"shape \(3, 7\); got \(3, 6\)"):
        ds.paths(plain(), TOKENS, mask=torch.ones(3, 6))
    with pytest.raises(UnknownNameError, match=r"no form is called 'secants'. Did you mean secant"):
        ds.paths(plain(), TOKENS, form="secants")
    with pytest.raises(UsageError, match="pass form='attention' with draw"):
        ds.paths(plain(), TOKENS, draw=10)
    with pytest.raises(UsageError, match="got draw=1"):
        ds.paths(plain(), TOKENS, form="attention", draw=1)
