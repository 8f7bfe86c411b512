"""What a fresh reader broke: layouts, masks, padding, fused matrices, shared blocks, and arguments that went nowhere."""

import math

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import ForecastError, RecordError, UsageError
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from loops import over

N, D = 24, 64


def error_of(model: nn.Module, inputs, **more) -> float:
    found, measured = ds.forecast(model, inputs), ds.scan(model, inputs, attention=False, **more)
    assert found.depth == measured.depth
    return float((found.t_sim - measured["t_sim"]).abs().max())


def encoder(depth: int = 6, **choices) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(D, 4, 2 * D, **{"batch_first": True, "dropout": 0.0, **choices})
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).eval()


@over("tokens", [8, N])
def test_torchs_layers_with_time_first(tokens: int) -> None:
    """Also where there are as many sequences as tokens, and no shape tells which is which."""
    X = torch.randn(tokens, 1, D) + 0.1 * torch.randn(tokens, 8, D)
    assert error_of(encoder(3, batch_first=False), X) < 0.08


@over("side", [0, 1])
def test_queries_and_values_of_one_product_have_their_own_gains(side: int) -> None:
    """A fused c_attn whose queries and keys, or values, are larger than the rest."""
    model, ids = resolve("gpt2", Sizes(8, 128, 4, 32, 4, 0))
    with torch.no_grad():
        for block in model.h:
            block.attn.c_attn.weight[:, 256 * side : 256 + 128 * side].mul_(2)
    assert error_of(model, ids) < 0.08


class Fused(nn.Module):
    """qkv in one matrix: by heads (inner: q, k and v of each head together), or all queries first."""

    def __init__(self, inner: bool, by_index: bool) -> None:
        super().__init__()
        self.inner, self.by_index = inner, by_index
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        with torch.no_grad():  # values that are nothing, so that what is mixed up shows
            rows = self.qkv.weight.view(4, 3, 16, D) if inner else self.qkv.weight.view(3, 4, 16, D).transpose(0, 1)
            rows[:, 2].zero_()
            rows[:, :2].mul_(3)
            self.qkv.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        y, (B, n, _) = self.qkv(self.norm(x)), x.shape
        if self.by_index:
            shape, order = ((B, n, 4, 3, 16), (3, 0, 2, 1, 4)) if self.inner else ((B, n, 3, 4, 16), (2, 0, 3, 1, 4))
            q, k, v = y.view(shape).permute(order)
        elif self.inner:
            q, k, v = y.view(B, n, 4, 48).transpose(1, 2).chunk(3, -1)
        else:
            q, k, v = (part.view(B, n, 4, 16).transpose(1, 2) for part in y.chunk(3, -1))
        a = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, n, D)
        return x + self.out(a)


@over("inner", [False, True])
@over("by_index", [False, True])
def test_heads_that_interleave_are_cut_as_the_model_cuts_them(inner: bool, by_index: bool) -> None:
    model = nn.Sequential(*(Fused(inner, by_index) for _ in range(4)))
    X = torch.randn(4, N, D) + torch.randn(4, 1, D)
    assert error_of(model, X) < 0.02


class Scaled(nn.Module):
    """x + y f(norm(x)) for a y of any shape; then `after`."""

    def __init__(self, y: Tensor, after) -> None:
        super().__init__()
        self.norm, self.f, self.y, self.after = nn.LayerNorm(D), nn.Linear(D, D), y, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x + self.y * self.f(self.norm(x)), self)


@over("y", [torch.linspace(0, 2, N).view(1, N, 1), torch.linspace(0, 2, D).view(1, 1, D), torch.linspace(0, 2, D)])
def test_factors_for_tokens_and_for_channels(y: Tensor) -> None:
    model = nn.Sequential(*(Scaled(y, lambda x, _: x) for _ in range(4)))
    X = torch.randn(4, N, D) + 0.5 * torch.randn(4, 1, D)
    assert error_of(model, X, blocks=[str(i) for i in range(4)]) < 0.05


def test_a_vector_minus_tokens() -> None:
    vector = 3 * torch.randn(D)
    model = nn.Sequential(*(Scaled(torch.ones(D), lambda x, _: 0.5 * x + (vector - x)) for _ in range(2)))
    X = torch.randn(4, N, D)
    assert error_of(model, X, blocks=["0", "1"]) < 0.05


def test_padding_counts_for_nothing() -> None:
    bert, ids = resolve("bert", Sizes(6, 128, 4, 32, 4, 0))
    mask = torch.ones_like(ids)
    mask[:, 8:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    assert error_of(bert, given) < 0.05
    found = ds.forecast(bert, given)
    assert float((found.t_cos - ds.scan(bert, given, attention=False)["t_cos"]).abs().max()) < 0.06
    gpt2, ids = resolve("gpt2", Sizes(4, 128, 4, 32, 4, 0))
    left = torch.ones_like(ids)
    left[:, :10] = 0
    assert ds.forecast(gpt2, {"input_ids": ids, "attention_mask": left}).t_sim.isfinite().all()


class Looped(nn.Module):
    """One block that runs again, with something between."""

    def __init__(self, between) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(D, 4, D, 0.0, batch_first=True)])
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        for i in range(5):
            x = self.between(self.blocks[0](x), i)
        return x.amax(1)  # of no interest, and unknown to laws


def test_a_block_that_runs_again_is_followed_to_the_last_run() -> None:
    X, positions = torch.randn(4, N, D), torch.randn(5, N, D)
    found = ds.forecast(Looped(lambda x, _: x).eval(), X)
    assert found.depth == 5
    assert ds.forecast(Looped(lambda x, i: x + positions[i]).eval(), X).depth == 5
    with pytest.raises(ForecastError, match="cannot be followed"):
        ds.forecast(Looped(lambda x, i: x.sort(1).values).eval(), X)


def test_small_tokens_feel_the_norms_epsilon() -> None:
    assert error_of(encoder(norm_first=True), 1e-3 * torch.randn(4, N, D)) < 0.08


def test_dropout_is_named_and_scans_with_it_are_refused() -> None:
    model, X = encoder(dropout=0.1).train(), torch.randn(4, N, D)
    assert any("dropout is off" in words for words in ds.forecast(model, X).assumed)
    with pytest.raises(UsageError, match="must be without dropout"):
        ds.forecast(ds.scan(model, X), depth=12)


def test_scans_that_a_calibration_would_misread() -> None:
    model, X = ds.models.classic(6, D, 4, weights="xavier"), torch.randn(4, N, D)
    with ds.fix_(model, ds.remedies.DeEscalate(0.3), at="block_in"):
        between = ds.scan(model, X)
    with pytest.raises(ForecastError, match="something happens between them"):
        ds.forecast(between, depth=12)
    causal = ds.models.classic(6, D, 4, weights="xavier", causal=True)
    with ds.fix_(causal, ds.remedies.DeEscalate(0.3)):
        fixed = ds.scan(causal, X)
    with pytest.raises(ForecastError, match="must be without remedies"):
        ds.forecast(fixed, depth=12)


def test_cosines_of_an_extrapolated_scan_are_those_of_all_tokens() -> None:
    model = ds.models.classic(12, D, 4, wiring="deep_norm", weights="xavier")
    X = torch.randn(4, 96, D)
    found = ds.forecast(ds.scan(model, X, blocks=[f"blocks.{i}" for i in range(6)]), depth=12)
    assert float((found.t_cos - ds.scan(model, X, attention=False)["t_cos"]).abs().max()) < 0.02


def test_wide_scores_overflow_nowhere() -> None:
    assert ds.forecast(n=64, depth=4, d=64, h=4, weights="xavier", scores=1000.0).t_sim.isfinite().all()
    assert ds.forecast(encoder(2), 30 * torch.randn(2, N, D)).t_sim.isfinite().all()


def test_critical_tau_counts_what_is_there() -> None:
    sizes = {"depth": 60, "n": 64, "d": 256, "h": 8}
    plain, some = ds.forecast(**sizes), ds.forecast(**sizes, tau=0.1)
    assert some.critical_tau == pytest.approx(plain.critical_tau, abs=0.02)


def test_one_gain_for_all_blocks() -> None:
    found = ds.forecast(gain=2.0, depth=20, n=64)
    assert found.collapse_depth(0.99) == pytest.approx(ds.theory.collapse_depth(1 / 64, gain=2.0), abs=0.01)
    assert ds.forecast(gain=2.0, depth=20, n=64, tau=0.3).collapse_depth() == math.inf
    torch.testing.assert_close(found.t_sim + found.t_div, torch.ones(21, dtype=torch.float64))
    torch.testing.assert_close(found.t_sim, (1 + 63 * found.t_cos) / 64)  # of tokens of one length, by definition


def test_heads_is_h_and_lists_are_batches() -> None:
    assert torch.equal(ds.forecast(depth=3, heads=2).t_sim, ds.forecast(depth=3, h=2).t_sim)
    model, X = ds.models.classic(3, D, 4), torch.randn(4, N, D)
    both = ds.forecast(model, [X[:2], X[2:]]).t_sim
    torch.testing.assert_close(both, ds.forecast(model, X).t_sim, atol=1e-6, rtol=0)


def test_our_own_vit_and_roberta_get_inputs_that_they_take() -> None:
    assert ds.forecast(ds.models.vit(depth=2, d=32, h=4)).depth == 2
    config = T.RobertaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=66)
    assert ds.forecast(T.RobertaModel(config).eval(), n=200).n == 64


def model() -> nn.Module:
    return ds.models.classic(4, 32, 4)


X = torch.zeros(1, 5, 32)


@over(
    "call, message",
    [
        (lambda: ds.forecast(blocks="nonsense", depth=3), "blocks goes with a model"),
        (lambda: ds.forecast(model(), X, n=9), "n says how many random tokens"),
        (lambda: ds.forecast(model(), n=-3), "n must be a whole number"),
        (lambda: ds.forecast(ds.scan(model(), torch.randn(2, 9, 32)), depth=9, n=5), "n belongs to a model"),
        (lambda: ds.forecast(ds.scan(model(), torch.randn(2, 9, 32)), depth=9.5), "depth must be a whole number"),
        (lambda: ds.forecast(ds.scan(model(), torch.randn(2, 9, 32)), depth=9, causal="no"), "causal must be True"),
        (lambda: ds.forecast(gain=2.0, d=64), "d is given by gain"),
        (lambda: ds.advise(model(), X, tau=0.1), "tau is what advise finds by itself"),
        (lambda: ds.advise(ds.scan(model(), torch.randn(2, 9, 32)), n=4), "goes with depth="),
        (lambda: ds.advise(ds.scan(model(), torch.randn(2, 9, 32)), depth=2), "goes with depth="),
        (lambda: ds.advise(depth=4, floor="x"), "floor must lie in"),
        (lambda: ds.advise(depth=4, most_growth=-1), "most_growth must be positive"),
    ],
)
def test_nothing_is_ignored(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def test_tokens_that_are_all_gone() -> None:
    with pytest.raises(ForecastError, match="t_sim must be a number"):
        ds.forecast(n=16, depth=3, tau=1.0, t_sim=1.0)


def test_records_that_are_none(tmp_path) -> None:
    for content in ("[]", "{", '{"format": "depthscope.forecast", "version": 1}'):
        (tmp_path / "f.json").write_text(content)
        with pytest.raises(RecordError):
            ds.Forecast.load(tmp_path / "f.json")
    with pytest.raises(RecordError, match="the file must exist"):
        ds.Forecast.load(tmp_path / "none.json")


@pytest.mark.long
def test_tau_and_smaller_scores_are_weighed_together() -> None:
    """Alone, tau makes gradients explode here; with scores a third as large it need not be larger."""
    advice = ds.advise(depth=96, n=64, d=256, h=4, weights="xavier", output=True, floor=0.5)
    both = [o for o in advice.options if {"tau", "scores"} <= o.settings.keys()]
    assert any(advice.keeps(o) and o.settings["tau"] < 0.6 for o in both)
    assert advice.holds and advice.choice.growth is not None and advice.choice.growth <= 30
