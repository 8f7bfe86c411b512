"""A forecast by weights says how sure it is: the measured curve lies in its band, and beyond its range it warns."""

import dataclasses
import json

import pytest
import torch
import transformers as T
from torch import nn

import depthscope as ds
from depthscope.experiments.beyond.forecast_error import Config, compared, hard, sharper, sureness
from depthscope.forecasts.sureness import ROUNDING, SLACK
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from loops import over


def compared_with_scan(model: nn.Module, inputs) -> tuple[torch.Tensor, ds.Forecast]:
    return ds.scan(model, inputs, metrics=["t_sim"], attention=False)["t_sim"], ds.forecast(model, inputs)


def lies_inside(measured: torch.Tensor, found: ds.Forecast) -> bool:
    low, high = found.band
    return bool(((low <= measured + 1e-9) & (measured <= high + 1e-9)).all())


@pytest.mark.long
def test_nine_of_ten_hard_designs_lie_in_their_band() -> None:
    """16 designs of a generator seed that nothing was fitted on: 14 or more, and the band is no wider than it must."""
    torch.manual_seed(5)
    designs = [d for d in hard(Config(hard=48, seed=5)) if d["depth"] <= 12 and d["d"] <= 128][:16]
    found = [sureness(*compared(design, batch=1)) for design in designs]
    inside, error, half = (torch.stack([row[name] for row in found]) for name in ("inside", "error", "half"))
    assert len(designs) == 16 and inside.sum() >= 14
    assert half.median() < 5 * error.median()


@over("preset", ["gpt2", "vit"], long=["bert", "llama", "albert"])
def test_other_peoples_models_lie_in_their_band(preset: str) -> None:
    model, given = resolve(preset, Sizes(6, 64, 4, 16, 4, 0))
    assert lies_inside(*compared_with_scan(model, given))


@torch.no_grad()
def shifted_norms(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and "norm" in name:
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model.eval()


def gemma() -> tuple[nn.Module, torch.Tensor]:
    """Its norms multiply by 1 + weight."""
    sizes = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "head_dim": 16}
    config = T.GemmaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4)
    return shifted_norms(T.GemmaModel(config)), torch.randint(0, 50, (2, 16))


def registers() -> tuple[nn.Module, torch.Tensor]:
    """Register tokens start far smaller than patches."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "image_size": 56, "patch_size": 14}
    return T.Dinov2WithRegistersModel(T.Dinov2WithRegistersConfig(**sizes)).eval(), torch.randn(2, 3, 56, 56)


def detection_tokens() -> tuple[nn.Module, torch.Tensor]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 128}
    config = T.YolosConfig(**sizes, image_size=[64, 64], patch_size=16, num_detection_tokens=20)
    return T.YolosModel(config).eval(), torch.randn(2, 3, 64, 64)


def massive_tokens() -> tuple[nn.Module, torch.Tensor]:
    model, given = resolve("gpt2", Sizes(6, 64, 4, 16, 4, 0))
    with torch.no_grad():
        model.get_input_embeddings().weight[::20] *= 30
    return model, given


@over("made", [gemma, registers, detection_tokens, massive_tokens])
def test_kinds_of_tokens_and_norms(made) -> None:
    """They were off by up to .5, without a word: small tokens took on what large ones have in common."""
    measured, found = compared_with_scan(*made())
    assert lies_inside(measured, found)
    assert float((found.t_sim - measured).abs().max()) < 0.06


def encoder(seed: int, d: int, norm_first: bool, depth: int = 6) -> tuple[nn.Module, torch.Tensor]:
    """PyTorch copies its layer: all blocks start with the same weights."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).eval(), torch.randn(2, 24, d)


def albert(seed: int, d: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 100, "embedding_size": 32, "hidden_size": d, "intermediate_size": 4 * d}
    config = T.AlbertConfig(**sizes, num_hidden_layers=8, num_attention_heads=4, initializer_range=0.07)
    return T.AlbertModel(config).eval(), torch.randint(0, 100, (2, 24))


@pytest.mark.long
def test_blocks_that_share_their_weights_lie_in_their_band() -> None:
    """Each of them makes the error of the one before it again: the band was the slack alone, without a word."""
    made = [encoder(seed, d, first) for seed in (11, 12) for d in (32, 96) for first in (True, False)]
    found = [compared_with_scan(*each) for each in (*made, albert(11, 64), albert(12, 64))]
    assert sum(lies_inside(*each) for each in found) >= 9
    assert all((f.band[1] - f.band[0]).max() < 0.25 for _, f in found)


def test_tokens_that_are_all_equal_have_a_narrow_band() -> None:
    """What is left of their differences is rounding: nothing is divided by it."""
    measured, found = compared_with_scan(*encoder(3, 32, False, depth=64))
    assert 0.95 < float(found.band[0, -1]) <= float(measured[-1]) <= float(found.band[1, -1]) + 1e-9


def trained(norm_first: bool, affine: bool, steps: int) -> tuple[nn.Module, torch.Tensor]:
    """A classifier of tokens by their mean, for a few steps."""
    model, X = encoder(0, 32, norm_first, depth=3)
    if not affine:
        for layer in model.layers:
            layer.norm1, layer.norm2 = (nn.LayerNorm(32, elementwise_affine=False) for _ in range(2))
    model.train()  # without dropout it is the same; PyTorch's fast path wants gains
    side, head = torch.randn(32), nn.Linear(32, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], 3e-3)
    for _ in range(steps):
        x = torch.randn(16, 12, 32)
        loss = nn.functional.cross_entropy(head(model(x).mean(1)), (x @ side > 0).long().mode(1).values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, X


@over("norm_first", [True], long=[False])
@over("affine", [True], long=[False])
def test_trained_weights_are_told(norm_first: bool, affine: bool) -> None:
    """They were off by .3, in a band of .04 without a word."""
    fresh = ds.forecast(*trained(norm_first, affine, 0))
    assert not any("look trained" in words for words in fresh.warnings)
    measured, found = compared_with_scan(*trained(norm_first, affine, 100))
    assert "the weights look trained" in found.warnings[0] and "the band does not hold for them" in found.warnings[0]
    assert lies_inside(measured, found)


def test_sharp_scores_warn_and_calm_ones_do_not() -> None:
    torch.manual_seed(0)
    model, X = ds.models.classic(12, 64, 2, weights="xavier", output=True), torch.randn(1, 8, 64)
    sharper(model, 12.0)
    measured, found = compared_with_scan(model, X)
    assert lies_inside(measured, found)
    (words,) = found.warnings
    assert "cannot be trusted from block" in words and "Scores are sharp: their variance is" in words
    calm = ds.models.classic(12, 256, 8, weights="torch_default", wiring="pre_norm")
    assert ds.forecast(calm, torch.randn(4, 32, 256)).warnings == []


def test_weights_that_are_not_random_widen_the_band() -> None:
    """Training makes a few singular values rule; here they are made so by hand."""
    torch.manual_seed(0)
    model, X = ds.models.classic(6, 128, 4, weights="xavier", wiring="pre_norm", output=True), torch.randn(2, 16, 128)
    plain = ds.forecast(model, X)
    with torch.no_grad():
        for block in model:
            for _, matrix in block.matrices():
                U, s, V = torch.linalg.svd(matrix.weight, full_matrices=False)
                steep = torch.exp(-torch.arange(len(s)) / 8.0)
                matrix.weight.copy_(U @ torch.diag(steep * s.norm() / steep.norm()) @ V)
    found = ds.forecast(model, X)
    assert "The weights are not random (trained?)" in found.warnings[0]
    assert (found.band[1] - found.band[0])[-1] > 2 * (plain.band[1] - plain.band[0])[-1]


def test_the_band_of_blocks_that_do_nothing_is_the_slack() -> None:
    model, X = ds.models.classic(6, 64, 4, weights="xavier", wiring="rezero"), torch.randn(2, 16, 64)
    found = ds.forecast(model, X)
    slack = torch.tensor([[-SLACK], [SLACK]], dtype=torch.float64).expand(2, 6)
    torch.testing.assert_close(found.band[:, 1:] - found.t_sim[1:], slack)
    torch.testing.assert_close(found.band[:, 0] - found.t_sim[0], ROUNDING * slack[:, 0] / SLACK, rtol=1e-4, atol=0)


def test_it_is_shown_and_kept(tmp_path) -> None:
    torch.manual_seed(0)
    model, X = ds.models.classic(8, 32, 1, weights="xavier"), torch.randn(1, 8, 32)
    sharper(model, 16.0)
    found = ds.forecast(model, X)
    said = " ".join(found.text().split()) if callable(getattr(found, "text", None)) else str(found)
    assert "in nine cases of ten" in said and "warning: this forecast cannot be trusted" in said
    assert "cannot be trusted" in found._repr_html_()
    found.save(tmp_path / "f.json")
    again = ds.Forecast.load(tmp_path / "f.json")
    assert again.warnings == found.warnings and torch.equal(again.band, found.band)
    old = json.loads((tmp_path / "f.json").read_text())
    del old["warnings"], old["crc32"]
    old["version"] = 2
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert ds.Forecast.load(tmp_path / "old.json").warnings == []
    assert dataclasses.replace(found, warnings=[]).warnings == []


def test_a_step_without_doubt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the error of a block cannot be followed, the band is everything, and that is said."""
    from depthscope.laws.law import Law

    monkeypatch.setattr(Law, "doubted", lambda self: self)
    model = ds.models.classic(2, 32, 2, weights="xavier")
    found = ds.forecast(model, torch.randn(1, 8, 32))
    assert torch.equal(found.band[:, 1:], torch.tensor([[0.0], [1.0]]).expand(2, 2).double())
    assert "The error of one step is not known" in found.warnings[0]
