"""Forecasts against scans of the very models: every wiring, other people's models, remedies at every site."""

import math

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import BlocksNotFoundError, ForecastError, RecordError, UnknownNameError, UsageError
from depthscope.models.design import Design, shelves
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.models.transformer import Transformer
from depthscope.registry import TABLES
from depthscope.theory.covariance import less_mean
from loops import over

shelves()
N, D = 24, 128
FEW = ["post_norm", "pre_norm", "resi_dual"]  # one stream or two, norms on the stream or beside it


def error_of(model: nn.Module, inputs) -> float:
    found, measured = ds.forecast(model, inputs), ds.scan(model, inputs, attention=False)
    assert found.depth == measured.depth
    return float((found.t_sim - measured["t_sim"]).abs().max())


@over("wiring", FEW, long=sorted(set(TABLES["wiring"]) - {"hyper_connections", *FEW}))
@over("weights, activation", [("xavier", "relu")], long=[("torch_default", "gelu"), ("xavier", "swiglu")])
def test_sizes_alone_forecast_every_wiring(wiring: str, weights: str, activation: str) -> None:
    bias = weights == "torch_default"
    choices = {
        "d": D,
        "h": 4,
        "wiring": wiring,
        "weights": weights,
        "activation": activation,
        "output": True,
        "bias": bias,
    }
    found = ds.forecast(depth=12, n=N, **choices)
    measured = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = Transformer(Design(12, **choices))
        measured.append(ds.scan(model, torch.randn(4, N, D), attention=False)["t_sim"])
    off = (found.t_sim - torch.stack(measured).mean(0)).abs()
    assert float(off.max()) < 0.08 and float(off.mean()) < 0.04


@over("causal", [False, True])
@over("wiring", ["post_norm"], long=["pre_norm", "b2t", "resi_dual", "sub_ln"])
def test_weights_forecast_the_very_model(wiring: str, causal: bool) -> None:
    torch.manual_seed(1)
    model = ds.models.classic(12, D, 4, wiring=wiring, weights="xavier", output=True, causal=causal)
    assert error_of(model, torch.randn(4, N, D)) < 0.06


@over(
    "preset",
    ["gpt2", "t5", "torch_encoder"],
    long=["albert", "bert", "roberta", "distilbert", "llama", "qwen3", "vit", "deit"],
)
def test_other_peoples_models_at_random_initialisation(preset: str) -> None:
    model, given = resolve(preset, Sizes(12, 128, 4, 32, 4, 0))
    assert error_of(model, given) < 0.08


@over("activation", ["relu"], long=["gelu"])
def test_copies_of_one_layer_meet_their_own_matrices_again(activation: str) -> None:
    """nn.TransformerEncoder starts with equal layers: as strangers to the tokens they would be off by 0.2."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, 4, 4 * D, batch_first=True, activation=activation)
    model = nn.TransformerEncoder(layer, 16, enable_nested_tensor=False).eval()
    assert error_of(model, torch.randn(4, N, D)) < 0.08


def test_a_model_without_inputs_gets_random_ones() -> None:
    model = ds.models.classic(6, D, 4, weights="xavier")
    state = torch.get_rng_state()
    found = ds.forecast(model, n=20)
    assert torch.equal(torch.get_rng_state(), state)
    assert found.n == 20 and any("random ones of shape (4, 20, 128) were used" in words for words in found.assumed)
    bert, _ = resolve("bert", Sizes(2, 32, 4, 16, 2, 0))
    assert ds.forecast(bert, n=16).n == 16
    vit, _ = resolve("vit", Sizes(2, 32, 4, 16, 2, 0))
    assert ds.forecast(vit).depth == 2


def test_tau_of_a_model_is_fix_s() -> None:
    model, X = ds.models.classic(6, D, 4, weights="xavier", output=True), torch.randn(2, N, D)
    found = ds.forecast(model, X, tau=0.4)
    with ds.fix_(model, ds.remedies.DeEscalate(0.4)):
        assert torch.equal(ds.forecast(model, X).t_sim, found.t_sim)


@over("at", ["attn_in", "ffn_sum"], long=["block_in", "sa_out", "sa_sum", "ffn_in", "block_out"])
@over("wiring", ["post_norm"], long=["pre_norm"])
def test_remedies_count_at_every_site(wiring: str, at: str) -> None:
    torch.manual_seed(2)
    model, X = ds.models.classic(10, D, 4, wiring=wiring, weights="xavier", output=True), torch.randn(4, N, D)
    plain = ds.forecast(model, X)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5), at=at):
        found, measured = ds.forecast(model, X).t_sim, ds.scan(model, X, attention=False)["t_sim"]
        assert float((found - measured).abs().max()) < 0.06 and float((found - plain.t_sim).abs().max()) > 0.05
    assert torch.equal(ds.forecast(model, X).t_sim, plain.t_sim)


@over("form", ["prefix"], long=["sink", "past"])
def test_causal_forms_count(form: str) -> None:
    torch.manual_seed(3)
    model = ds.models.classic(10, D, 4, weights="xavier", output=True, causal=True)
    with ds.fix_(model, ds.remedies.DeEscalate(0.6, form=form)):
        assert error_of(model, torch.randn(4, N, D)) < 0.06


@over("causal, tau", [(False, 0.2), (True, 0.6)])
def test_tau_of_sizes_is_what_fix_does_at_block_out(causal: bool, tau: float) -> None:
    """In a causal model the sink form; the full mean there would leave no similarity at all at tau near 1."""
    torch.manual_seed(4)
    choices = {"d": 256, "h": 4, "weights": "xavier", "output": True, "causal": causal}
    model, X = ds.models.classic(10, **choices), torch.randn(8, N, 256)
    with ds.fix_(model, ds.remedies.DeEscalate(tau)):
        measured = ds.scan(model, X, attention=False)["t_sim"]
    found = ds.forecast(depth=10, n=N, tau=tau, **choices)
    assert float((found.t_sim - measured).abs().max()) < 0.08
    if causal:
        full = ds.forecast(depth=10, n=N, tau=tau, **choices | {"causal": False})
        assert float((found.t_sim - measured).abs().mean()) < 0.5 * float((full.t_sim - measured).abs().mean())


@over("causal", [True], long=[False])
@over("site", ["attn_in", "ffn_sum"], long=["block_in", "sa_out", "sa_sum", "ffn_in"])
def test_sizes_know_every_site(site: str, causal: bool) -> None:
    torch.manual_seed(0)
    choices = {"d": D, "h": 4, "weights": "xavier", "output": True, "causal": causal, "wiring": "pre_norm"}
    model, X = ds.models.classic(10, **choices), torch.randn(8, N, D)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5), at=site):
        measured = ds.scan(model, X, attention=False)["t_sim"]
    assert float((ds.forecast(depth=10, n=N, tau=0.5, site=site, **choices).t_sim - measured).abs().max()) < 0.08


def test_smaller_scores_are_smaller_matrices() -> None:
    torch.manual_seed(0)
    model, X = ds.models.classic(8, D, 4, weights="xavier", wiring="pre_norm"), torch.randn(8, N, D)
    with torch.no_grad():
        for block in model:
            block.attention.W_q.weight.mul_(2)
            block.attention.W_k.weight.mul_(2)
    measured = ds.scan(model, X, attention=False)["t_sim"]
    sizes = {"depth": 8, "n": N, "d": D, "h": 4, "weights": "xavier", "wiring": "pre_norm"}
    plain, wide = ds.forecast(**sizes).t_sim, ds.forecast(**sizes, scores=4).t_sim
    assert float((wide - measured).abs().max()) < 0.06 < float((plain - measured).abs().max())


@over("wiring", ["post_norm", "pre_norm"])
def test_a_token_of_zeros(wiring: str) -> None:
    """As the class token of a fresh DeiT is."""
    torch.manual_seed(5)
    model, X = ds.models.classic(6, D, 4, wiring=wiring, weights="xavier", output=True), torch.randn(4, N, D)
    X[:, 0] = 0
    assert error_of(model, X) < 0.06


@over("causal, form", [(False, "full"), (True, "sink")])
def test_the_mean_of_sizes_is_the_remedys(causal: bool, form: str) -> None:
    I = torch.eye(9, dtype=torch.float64)  # noqa: E741
    torch.testing.assert_close(less_mean(9, 0.3, causal), ds.remedies.DeEscalate(0.3, form=form)(I))


@pytest.mark.long
def test_a_thousand_blocks_and_a_width_that_nobody_could_build() -> None:
    found = ds.forecast(depth=1000, n=8, d=65536, h=128, weights="torch_default", wiring="pre_norm")
    assert found.depth == 1000 and found.t_sim.isfinite().all()
    assert 0.9 < float(found.t_sim[-1]) < 1.0  # pre-norm collapses by a power law only


def test_the_record(tmp_path) -> None:
    found = ds.forecast(depth=40, n=64, d=256, h=8)  # unit gain: odds double in every block, but for the FFN
    assert found.t_sim.shape == found.t_div.shape == found.t_cos.shape == (41,)
    torch.testing.assert_close(found.t_sim + found.t_div, torch.ones(41, dtype=torch.float64))
    assert found.gain == pytest.approx(2.0, abs=0.06)
    assert found.critical_tau == pytest.approx(1 - 1 / math.sqrt(2), abs=0.02)
    lost = found.collapse_depth(0.99)
    assert float(found.t_sim[math.floor(lost)]) < 0.99 <= float(found.t_sim[math.ceil(lost)])
    assert ds.forecast(depth=12, n=64, d=256, h=8, tau=0.5).collapse_depth() == math.inf
    found.save(tmp_path / "f.json")
    again = ds.Forecast.load(tmp_path / "f.json")
    assert torch.equal(again.t_sim, found.t_sim) and again.to_dict() == found.to_dict()
    assert "Tokens are lost" in str(found) and "no block was computed" in str(found)
    (tmp_path / "f.json").write_text("{}")
    with pytest.raises(RecordError, match=r"must say format 'depthscope\.forecast'"):
        ds.Forecast.load(tmp_path / "f.json")
    with pytest.raises(UsageError, match="threshold must lie in"):
        found.collapse_depth(1.0)


def test_nothing_is_left_behind() -> None:
    model = T.BertModel(T.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99)).eval()
    ids = torch.randint(1, 99, (2, 7))
    with torch.no_grad():
        before = model(ids).last_hidden_state
        ds.forecast(model, ids)
        assert torch.equal(model(ids).last_hidden_state, before)
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())


@over(
    "call, error, message",
    [
        (lambda: ds.forecast(3), UsageError, "source must be a model, a Scan, or left out for sizes; got int"),
        (
            lambda: ds.forecast(ds.models.classic(1, 8, 2), torch.randn(1, 3, 8), depth=3),
            UsageError,
            "depth belongs to",
        ),
        (lambda: ds.forecast(ds.models.classic(1, 8, 2), t_sim=0.3), UsageError, "t_sim belongs to"),
        (lambda: ds.forecast(nn.Sequential(nn.Linear(2, 2))), UsageError, "Pass inputs, as for a scan"),
        (lambda: ds.forecast(depth=2, wirin="pre_norm"), UnknownNameError, "Did you mean wiring"),
        (lambda: ds.forecast(depth=2, attention="sinkhorn"), UsageError, "attention must be softmax"),
        (lambda: ds.forecast(depth=2, wiring="hyper_connections"), UsageError, "start as pre_norm"),
        (lambda: ds.forecast(depth=2, tau=2.0), UsageError, "tau must lie in"),
        (lambda: ds.forecast(depth=2, tau=0.5, site="ffn_on"), UnknownNameError, "Did you mean ffn_in"),
        (lambda: ds.forecast(depth=2, tau=0.5, site="ffn_in", wiring="b2t"), UsageError, "must be block_out for b2t"),
        (lambda: ds.forecast(ds.models.classic(1, 8, 2), scores=0.5), UsageError, "scores belongs to"),
        (lambda: ds.forecast(nn.Linear(2, 2), torch.randn(1, 3, 2)), BlocksNotFoundError, "none was seen"),
    ],
)
def test_wrong_use_is_answered(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_function_without_a_rule_is_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = torch.fft.fft(block(x), dim=1).real
            return x

    with pytest.raises(ForecastError, match=r"what fft_fft\(\(2, 5, 8\)\) does to the law of tokens is not known"):
        ds.forecast(Odd(), torch.randn(2, 5, 8))


def test_the_part_that_cannot_be_read_is_named_and_how_to_give_it() -> None:
    """Relative positions have no law, and are followed by samples; a sort between blocks can be told only."""
    xlnet, given = resolve("xlnet", Sizes(2, 32, 4, 8, 2, 0))
    drawn = ds.forecast(xlnet, given).assumed
    assert any("layer.0" in text and "drawn" in text for text in drawn)

    class Sorting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).layers

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x).sort(1).values
            return x

    by_hand = r"sort.*by hand, ds\.forecast\(depth=, .*wiring= \(norm placement\), activation="
    with pytest.raises(ForecastError, match=by_hand):
        ds.forecast(Sorting().eval(), torch.randn(2, 8, 32))
