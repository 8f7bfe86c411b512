"""What a scan says of decoders: sinks, the first token, and where Theorem 2.6 stops."""

from pathlib import Path

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.metrics import delta
from depthscope.scans.decoders import decoder_notes
from loops import over

SIZES = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 0}
IDS = torch.randint(1, 99, (3, 12), generator=torch.Generator().manual_seed(3))


def gpt2(**options) -> T.GPT2Model:
    return T.GPT2Model(T.GPT2Config(**SIZES, initializer_range=0.2, **options)).eval()


def notes_with(word: str, scan: ds.Scan) -> list[str]:
    return [note for note in scan.notes if note.startswith(word)]


@over("padded", ["no", "left", "right"])
def test_sink_mass_of_gpt2_is_that_of_its_own_attention(padded: str) -> None:
    model, n = gpt2(attn_implementation="eager"), IDS.shape[1]
    counts = torch.tensor([[12], [12], [12]] if padded == "no" else [[12], [8], [5]])
    at = torch.arange(n).expand(3, n)
    keep = at >= n - counts if padded == "left" else at < counts
    inputs = {"input_ids": IDS, "attention_mask": keep.long()}
    scan = ds.scan(model, inputs)
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    for i, P in enumerate(attentions):
        mass = torch.zeros(4, dtype=torch.float64)
        for b in range(3):
            rows = keep[b].nonzero().flatten().tolist()
            for t in rows[1:]:
                mass += P[b, :, t, rows[0]].double() / (len(rows) - 1) / 3
        torch.testing.assert_close(scan.per_head("sink_mass")[i], mass, rtol=1e-5, atol=1e-7)
    chance = sum(sum(1 / t for t in range(2, int(c) + 1)) / (int(c) - 1) for c in counts) / 3
    torch.testing.assert_close(scan["sink_chance"], torch.full((3,), chance, dtype=torch.float64), rtol=1e-12, atol=0)
    assert scan.causal and len(scan["attention_sink"]) == 2


class Sinking(nn.Module):
    """Causal attention without skips whose queries all look at the first token with the given strength."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.value = nn.Identity()

    def forward(self, X: Tensor) -> Tensor:
        n = X.shape[1]
        q = torch.full((X.shape[0], 1, n, 8), self.strength)
        k = torch.zeros(X.shape[0], 1, n, 8)
        k[:, :, 0] = 1
        return nn.functional.scaled_dot_product_attention(q, k, self.value(X).unsqueeze(1), is_causal=True).squeeze(1)


@over("strength, sink", [(0.0, False), (0.2, False), (1.5, True), (10.0, True)])
def test_a_sink_is_told_from_chance(strength: float, sink: bool) -> None:
    scan = ds.scan(nn.Sequential(Sinking(0.0), Sinking(strength)), torch.randn(2, 40, 8))
    assert float(scan["sink_mass"][0]) == pytest.approx(float(scan["sink_chance"][0]), rel=1e-5)
    notes = notes_with("attention sinks", scan)
    assert bool(notes) == sink
    if sink:
        assert "in 1 of 2 heads" in notes[0] and "block 2, head 1" in notes[0]
        assert f"{scan['sink_mass'][1]:.0%}, where uniform attention gives {scan['sink_chance'][1]:.0%}" in notes[0]


def test_full_sinks_put_every_token_on_the_line_of_the_first() -> None:
    scan = ds.scan(nn.Sequential(Sinking(50.0), Sinking(50.0)), torch.randn(2, 40, 8))
    first = scan["first_token_similarity"]
    assert float(first[0]) < 0.3 and float(first[1]) == pytest.approx(1, abs=1e-6)


@over("family", ["gpt2", "classic"])
def test_causal_models_are_told_where_the_theorem_stops(family: str, tmp_path: Path) -> None:
    if family == "gpt2":
        scan = ds.scan(gpt2(), IDS)
    else:
        scan = ds.scan(ds.models.classic(depth=3, d=32, h=4, causal=True).eval(), torch.randn(2, 40, 32))
    (note,) = notes_with("causal attention", scan)
    holds = int((scan.per_head("omega") + scan.per_head("delta") < 1).sum())
    assert f"omega + delta < 1, which Theorem 2.6 needs, holds in {holds} of 12 heads" in note
    page = ds.report(scan, to=tmp_path / "scan.html").read_text()
    for name in ("first_token_similarity", "sink_mass", "sink_chance"):
        value = f"{scan[name][-1]:.3f}"
        assert (
            name in str(scan) and value in str(scan) and f"{name}</th>" in page and f'data-v="{float(value)}"' in page
        )


def test_models_that_are_not_causal_are_spared() -> None:
    scan = ds.scan(ds.models.classic(depth=3, d=32, h=4).eval(), torch.randn(2, 40, 32))
    assert scan.causal is False and not notes_with("causal", scan) and not notes_with("attention sinks", scan)
    assert "sink_mass" not in str(scan) and scan["sink_chance"].tolist() == pytest.approx([1 / 40] * 3)


def test_what_was_not_measured_is_not_spoken_of() -> None:
    model = ds.models.classic(depth=3, d=32, h=4, causal=True).eval()
    scan = ds.scan(model, torch.randn(2, 40, 32), metrics=["delta"])
    assert scan.causal and not notes_with("causal", scan) and "sink_mass" not in str(scan)
    assert decoder_notes({}) == []
    unknown = torch.full((3, 4), torch.nan)
    assert decoder_notes({"omega": unknown, "delta": unknown, "sink_mass": unknown, "sink_chance": unknown}) == []


def test_uniform_causal_attention_has_delta_above_one_from_seventeen_tokens_on() -> None:
    def value(n: int) -> float:
        P = torch.ones(n, n, dtype=torch.float64).tril()
        return float(delta(P / P.sum(-1, keepdim=True)))

    assert value(16) < 1 < value(17)
    assert value(17) < value(64) < value(512)
