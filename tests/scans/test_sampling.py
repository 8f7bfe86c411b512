"""Nothing is sampled unless it is asked for by name, and then its error stands in the record."""

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import UsageError


def wide() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(320, 4, 64, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(3, 24, 320)


def test_every_channel_of_a_wide_model_counts() -> None:
    model, X = wide()
    scan = ds.scan(model, X)
    with torch.no_grad():
        attention = model.layers[0].self_attn
        _, P = attention(X, X, X, need_weights=True, average_attn_weights=False)
    truth = torch.stack([ds.metrics.mu(x.double(), p.double())[1] for x, p in zip(X, P, strict=True)]).mean(0)
    torch.testing.assert_close(scan.per_head("mu_2")[0], truth, rtol=1e-5, atol=0)
    assert "mu_2" not in scan.residuals and not any("random channels" in note for note in scan.notes)


def test_a_sample_of_channels_is_near_and_says_how_near() -> None:
    model, X = wide()
    exact, sampled = ds.scan(model, X), ds.scan(model, X, sample=64)
    error = sampled.residuals["mu_2"]
    assert 0 < error < 0.1
    away = (sampled.per_head("mu_2") / exact.per_head("mu_2") - 1).abs().max()
    assert 0 < away < 4 * error
    assert any("64 random channels" in note and f"{error:.1%}" in note for note in sampled.notes)
    torch.testing.assert_close(sampled.per_head("mu_1"), exact.per_head("mu_1"))
    assert "mu_2" not in ds.scan(model, X, sample=320).residuals  # that is all of them


@pytest.mark.parametrize("sample", [1, 0, -3, 2.5, True, "64"])
def test_a_sample_that_is_no_number_of_channels_is_refused(sample: object) -> None:
    model, X = wide()
    with pytest.raises(UsageError, match="sample must be a number of channels"):
        ds.scan(model, X, sample=sample)  # type: ignore[arg-type]
