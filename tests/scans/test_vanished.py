"""A head that is given nothing: the scan says so, with the ratio that hooks find, and only then."""

import re

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.scans.state_reader import StateReader
from depthscope.traces.blocks import candidates
from depthscope.traces.recorder import Recorder
from depthscope.traces.watcher import Watcher
from loops import crossed

X = torch.randn(4, 9, 32, generator=torch.Generator().manual_seed(3))
WORD = "VANISHED"


def layers(depth: int = 3, **options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(32, 4, 64, **{"dropout": 0.0, "batch_first": True} | options)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class Classifier(nn.Module):
    """Somebody's own model: an encoder, the mean of the tokens that count, a head."""

    def __init__(self, head: nn.Module | None = None, between: nn.Module | None = None, **options) -> None:
        super().__init__()
        self.encoder = layers(**options)
        self.between = between or nn.Identity()
        self.head = head or nn.Linear(32, 5)

    def pool(self, tokens: Tensor) -> Tensor:
        return tokens.mean(1)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        tokens = self.between(self.encoder(x, src_key_padding_mask=src_key_padding_mask))
        if src_key_padding_mask is None:
            return self.head(self.pool(tokens))
        keep = (~src_key_padding_mask)[..., None].to(x.dtype)
        return self.head((tokens * keep).sum(1) / keep.sum(1))


def centred(model: nn.Module, tau: float = 1.0, **options):
    return ds.fix_(model, ds.remedies.DeEscalate(tau=tau), at="block_out", **options)


def vanished(model: nn.Module, inputs=X, **options) -> list[str]:
    return [note for note in ds.scan(model, inputs, **options).notes if note.startswith(WORD)]


def rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def test_the_note_has_the_name_and_the_ratio_that_hooks_find() -> None:
    model = Classifier().eval()
    assert not vanished(model)
    with centred(model):
        (note,) = vanished(model)
        seen: list[Tensor] = []
        model.encoder.register_forward_hook(lambda _, args, out: seen.append(out))
        model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with torch.no_grad():
            model(X)
        tokens, pooled = seen
    share = float(re.search(r"the input of head \((\S+)\)", note).group(1))
    assert share == pytest.approx(rms(pooled) / rms(tokens), rel=0.05)
    assert share < 1e-6
    assert all(way in note for way in ("cls", "tau below 1", "blocks="))
    assert not vanished(model)  # undone


def test_the_note_comes_first_and_is_printed_reported_and_saved(tmp_path) -> None:
    model = Classifier(dropout=0.1).train()
    with centred(model):
        scan = ds.scan(model, X)
    assert len(scan.notes) == 2 and scan.notes[0].startswith(WORD)
    assert WORD in str(scan) and WORD in scan._repr_html_()
    scan.save(tmp_path / "scan.json")
    assert ds.Scan.load(tmp_path / "scan.json").notes == scan.notes


@crossed("dtype, norm_first", [torch.float64, torch.float32, torch.bfloat16, torch.float16], [False, True])
def test_every_dtype_has_its_floor(dtype: torch.dtype, norm_first: bool) -> None:
    model = Classifier(norm_first=norm_first).eval().to(dtype)
    for tau, expected in ((0.5, 0), (0.9, 0), (1.0, 1)):
        with centred(model, tau):
            assert len(vanished(model, X.to(dtype))) == expected, tau


def test_noise_of_dropout_does_not_hide_it() -> None:
    model = Classifier(between=nn.Dropout(0.2)).train()
    with centred(model):
        assert len(vanished(model)) == 1
    assert not vanished(model)


def test_a_masked_mean_over_tokens_that_count() -> None:
    model = Classifier().eval()
    inputs = {"x": X, "src_key_padding_mask": torch.arange(9).expand(4, 9) >= torch.tensor([[9], [6], [4], [7]])}
    assert not vanished(model, inputs)
    with centred(model):
        assert len(vanished(model, inputs)) == 1


def test_batches_share_one_note() -> None:
    model = Classifier().eval()
    batches = [X, X[:1, :2], X[:2, :5]]
    with centred(model):
        each = [float(re.search(r"head \((\S+)\)", vanished(model, batch)[0]).group(1)) for batch in batches]
        (note,) = vanished(model, batches)
    assert len(set(each)) > 1 and f"head ({min(each):.1e})" in note


def test_a_second_pass_for_the_token_axis_and_gradients_change_nothing() -> None:
    model = Classifier().eval()
    with centred(model):
        assert len(vanished(model, torch.randn(9, 9, 32))) == 1
        assert len(vanished(model, gradients=lambda out: out.square().mean())) == 1


def test_small_tokens_inside_a_block_are_not_what_is_pooled() -> None:
    model = Classifier().eval()
    nn.init.constant_(model.encoder.layers[0].norm1.weight, 1e-9)
    with centred(model):
        assert len(vanished(model)) == 1


def test_time_first_tokens() -> None:
    class TimeFirst(Classifier):
        def pool(self, tokens: Tensor) -> Tensor:
            return tokens.mean(0)

    model = TimeFirst(batch_first=False).eval()
    assert not vanished(model)
    with centred(model):
        assert len(vanished(model)) == 1


def test_heads_of_every_shape() -> None:
    class MeanHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(32, 5)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(tokens.mean(1))

    class Kept(Classifier):
        def pool(self, tokens: Tensor) -> Tensor:
            return tokens.mean(1, keepdim=True)

    normed = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 5))
    numbered = nn.Sequential(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 8)), nn.ReLU(), nn.Linear(8, 5))
    heads = {
        "head.0.0": Classifier(numbered).eval(),
        "head.0": Kept(normed).eval(),
        "1.out": nn.Sequential(layers(), MeanHead()).eval(),
        "head": Classifier(nn.utils.parametrizations.weight_norm(nn.Linear(32, 5))).eval(),
    }
    square = torch.randn(9, 9, 32)  # a pooled (9, 1, 32) that is normed must not be taken for tokens
    for path, model in heads.items():
        assert not vanished(model, square)
        with centred(model):
            assert f"the input of {path} (" in vanished(model, square)[0]


def test_a_model_without_a_head_returns_what_it_pooled() -> None:
    model = Classifier(nn.Identity()).eval()
    assert not vanished(model)
    with centred(model):
        assert "the output (" in vanished(model)[0]


def test_a_hugging_face_model_that_pools_the_mean() -> None:
    sizes = {"vocab_size": 99, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 64, "summary_type": "mean"}
    model = T.XLNetForSequenceClassification(T.XLNetConfig(**sizes)).eval()
    ids = torch.randint(1, 99, (4, 11))
    assert not vanished(model, ids)
    with centred(model):
        assert "the input of sequence_summary.summary (" in vanished(model, ids)[0]


def test_a_first_token_that_was_erased() -> None:
    """The prefix mean of the first token is itself: tau = 1 leaves a head that reads it nothing."""

    class First(Classifier):
        def pool(self, tokens: Tensor) -> Tensor:
            return tokens[:, 0]

    model = First().eval()
    with centred(model):
        assert not vanished(model)
    with ds.fix_(model, ds.remedies.DeEscalate(tau=1.0, form="prefix"), at="block_out"):
        assert len(vanished(model)) == 1


def test_only_what_is_smaller_than_the_tokens_is_looked_at() -> None:
    """No module inside the blocks: that is why it costs nothing."""
    model = Classifier().eval()
    seen: list[Tensor] = []
    handle = model.head.register_forward_hook(lambda _, args, out: seen.extend((args[0], out)))
    recorder = Recorder(model, candidates(model, None), StateReader([], None), lambda seen, X: None)
    with torch.no_grad(), Watcher(recorder):
        model(X)
    handle.remove()
    assert [r.path for r in recorder.log.head_inputs] == ["head", ""]
    assert [r.rms for r in recorder.log.head_inputs] == pytest.approx([rms(t) for t in seen], rel=1e-5)
    model(X)
    assert len(recorder.log.head_inputs) == 2


# what must not be taken for it


def test_a_gate_inside_a_block_is_no_head() -> None:
    class Gated(nn.TransformerEncoderLayer):
        def __init__(self) -> None:
            super().__init__(32, 4, 64, dropout=0.0, batch_first=True)
            self.gate = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * self.gate(x.mean(1, keepdim=True)).sigmoid())

    model = nn.Sequential(*(Gated() for _ in range(3))).eval()
    with centred(model):
        assert not vanished(model)


def test_the_ways_out_that_the_note_names() -> None:
    model = Classifier().eval()
    with centred(model, blocks=["encoder.layers.0", "encoder.layers.1"]):
        assert not vanished(model)
    with centred(model, tau=0.9):
        assert not vanished(model)


def test_a_final_norm_that_makes_huge_tokens_small() -> None:
    """In bfloat16 the head reads a thousandth of the last block's tokens, but all that the norm gives."""
    model = Classifier(between=nn.LayerNorm(32), norm_first=True).eval().bfloat16()
    assert not vanished(model, 1e4 * X.bfloat16())


def test_a_head_that_starts_at_zero() -> None:
    model = Classifier(nn.Sequential(nn.Linear(32, 5))).eval()
    nn.init.zeros_(model.head[0].weight)
    nn.init.zeros_(model.head[0].bias)
    assert not vanished(model)


def test_a_decoder_that_starts_from_zeros() -> None:
    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = layers(4)
            block = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.decoder = nn.TransformerDecoder(block, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(torch.zeros(len(x), 3, 32), self.encoder(x))

    scan = ds.scan(Queries().eval(), X)
    assert scan.blocks == "encoder.layers.*"
    assert not [note for note in scan.notes if WORD in note]


def test_tokens_that_are_all_zero_are_left_to_the_verdict() -> None:
    model = Classifier().eval()
    for p in model.encoder.layers[-1].norm2.parameters():
        nn.init.zeros_(p)
    scan = ds.scan(model, X)
    assert "all zero" in scan.verdict.text and not [note for note in scan.notes if WORD in note]


def test_our_vit_refuses_before_a_scan_could_say_it() -> None:
    model = ds.models.vit(depth=2, d=16, h=2, side=12, pooling="mean")
    with centred(model), pytest.raises(ds.errors.VanishedError, match=r"^vit: mean pooling"):
        ds.scan(model, torch.randn(2, 3, 12, 12))
