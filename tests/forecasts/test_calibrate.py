"""Forecasts from a scan: gains of blocks whose gains are known, later blocks that were held back, what chance does."""

from types import SimpleNamespace

import pytest
import torch

import depthscope as ds
from depthscope.errors import ForecastError, UsageError
from depthscope.forecasts.calibrate import Gains, _usable, calibrate, fit
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from loops import over

N, D = 32, 256


def scanned(blocks: int, of: int = 32, seed: int = 0, **choices) -> tuple[ds.Scan, ds.Scan]:
    """A scan of the first blocks of a model, and one of all."""
    torch.manual_seed(seed)
    model = ds.models.classic(of, D, 4, **{"weights": "torch_default", "output": True, **choices})
    X = torch.randn(4, N, D)
    first = [f"blocks.{i}" for i in range(blocks)]
    return ds.scan(model, X, blocks=first), ds.scan(model, X, attention=False)


@over("wiring", ["pre_norm"], long=["post_norm"])
@over("weights, s, k", [("torch_default", 1 / 9, 1 / 18)], long=[("xavier", 1.0, 0.32)])
def test_gains_are_those_of_the_weight_law(wiring: str, weights: str, s: float, k: float) -> None:
    """s = d Var(W_V) d Var(W_O), k = d Var(W_1) q Var(W_2) / 2; the common part of one model varies by chance."""
    found = [calibrate(scanned(12, 12, seed, wiring=wiring, weights=weights)[0]).gains for seed in range(3)]
    assert sum(float(g.s) for g in found) / 3 == pytest.approx(s, rel=0.2)
    assert sum(float(g.k) for g in found) / 3 == pytest.approx(k, rel=0.1)


@over("causal", [True], long=[False])
@over("wiring", ["pre_norm"], long=["post_norm", "sandwich", "deep_norm"])
def test_blocks_that_were_held_back(wiring: str, causal: bool) -> None:
    errors, inside = [], []
    for seed in range(2):
        first, whole = scanned(8, seed=seed, wiring=wiring, causal=causal)
        found = ds.forecast(first, depth=32)
        assert found.measured == 8 and found.depth == 32 and found.band is not None
        torch.testing.assert_close(found.t_sim[:9], first["t_sim"])
        assert torch.equal(found.band[0, :8], found.band[1, :8])
        errors.append(float((found.t_sim - whole["t_sim"]).abs()[-1]))
        low, high = found.band[:, 9:]
        inside.append(float(((low <= whole["t_sim"][9:]) & (whole["t_sim"][9:] <= high)).double().mean()))
    assert max(errors) < 0.12 and sum(errors) / 2 < 0.08
    assert sum(inside) / 2 > 0.6


@over("preset, family", [("llama", "layers")], long=[("bert", "encoder.layer")])
def test_other_peoples_models(preset: str, family: str) -> None:
    model, given = resolve(preset, Sizes(24, 256, 4, 32, 4, 0))
    first = ds.scan(model, given, blocks=[f"{family}.{i}" for i in range(8)])
    whole = ds.scan(model, given, attention=False)["t_sim"]
    assert abs(float(ds.forecast(first, depth=24).t_sim[-1] - whole[-1])) < 0.08


def test_tau_is_foreseen_by_a_scan_without_it() -> None:
    torch.manual_seed(0)
    model, X = ds.models.classic(16, D, 4, weights="xavier", output=True), torch.randn(4, N, D)
    plain = ds.scan(model, X)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5)):
        measured = ds.scan(model, X)
    found = ds.forecast(plain, depth=17, tau=0.5)
    assert found.measured == 0
    assert float((found.t_sim[:17] - measured["t_sim"]).abs().max()) < 0.1
    again = ds.forecast(measured, depth=32)  # a remedy that is in the scan stays in the blocks to come
    assert float(again.t_sim[-1]) == pytest.approx(float(measured["t_sim"][-4:].mean()), abs=0.1)


@pytest.mark.long
def test_a_collapsed_scan_is_calibrated_on_what_is_no_rounding() -> None:
    first, _ = scanned(48, 48, weights="xavier")
    gains = calibrate(first).gains
    assert float(gains.s) == pytest.approx(1.0, rel=0.4)
    assert float(ds.forecast(first, depth=60).t_sim[-1]) > 0.999


def test_a_saved_scan_will_do(tmp_path) -> None:
    first, _ = scanned(6, 6)
    first.save(tmp_path / "s.json")
    again = ds.forecast(ds.Scan.load(tmp_path / "s.json"), depth=12)
    assert torch.allclose(again.t_sim, ds.forecast(first, depth=12).t_sim)
    again.save(tmp_path / "f.json")
    loaded = ds.Forecast.load(tmp_path / "f.json")
    assert loaded.band is not None and torch.equal(loaded.band, again.band) and loaded.measured == 6
    assert "6 of them were measured" in str(again)


def test_what_a_scan_must_have() -> None:
    model, X = ds.models.classic(6, 32, 4), torch.randn(2, 8, 32)
    whole = ds.scan(model, X)
    for call, error, message in (
        (lambda: ds.forecast(whole), UsageError, "depth must be more than the 6 blocks of the scan; got None"),
        (lambda: ds.forecast(whole, depth=6), UsageError, "Try depth=12"),
        (lambda: ds.forecast(whole, depth=9, wiring="pre_norm"), UsageError, "wiring belongs to sizes"),
        (lambda: ds.forecast(ds.scan(model, X, attention=False), depth=9), UsageError, "pass causal=True or"),
        (lambda: ds.forecast(ds.scan(model, X, metrics=["t_sim"]), depth=9), UsageError, "default metrics"),
        (lambda: ds.forecast(ds.scan(model, X, blocks=["blocks.0", "blocks.1"]), depth=9), UsageError, "3 or more"),
    ):
        with pytest.raises(error, match=message):
            call()
    blind = ds.scan(model, X, attention=False)
    assert ds.forecast(blind, depth=9, causal=False).depth == 9
    parallel = ds.scan(torch.nn.Sequential(*(Parallel() for _ in range(4))), X)
    with pytest.raises(ForecastError, match="this one has steps attention and ffn and placement"):
        ds.forecast(parallel, depth=9)


class Parallel(torch.nn.Module):
    """X + SA(LN(X)) + FFN(LN(X)): one sum, and no stream between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = torch.nn.LayerNorm(32), torch.nn.MultiheadAttention(32, 4, batch_first=True)
        self.ffn = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + (self.attention(y, y, y)[0] + self.ffn(y))


def test_blocks_in_which_little_was_chance_decide_on_the_gain() -> None:
    """The common part is off by 2 x . branch, of variance 4 |stream| |branch|, beside its own spread."""
    unit, stream, D = torch.tensor([1.0, 0.5, 0.25]), torch.tensor([0.0, 1.0, 9.0]), torch.ones(3)
    added = torch.tensor([0.3, 0.1, 0.2])
    rows = torch.stack([added, torch.ones(3), unit, torch.ones(3), D, stream], -1)
    before = Gains(*map(torch.tensor, (0.4, 0.0, 0.7, 0.3, 0.1)))
    weight = [1 / (4 * x + 2 * 0.4 * u) for x, u in zip(stream.tolist(), unit.tolist(), strict=True)]
    s = sum(w * a for w, a in zip(weight, added.tolist(), strict=True)) / sum(map(float.__mul__, weight, unit.tolist()))
    assert float(fit(rows, rows, before).s) == pytest.approx(s)


def test_blocks_are_used_as_long_as_tokens_differ_by_more_than_rounding() -> None:
    def usable(*t_div: float) -> int:
        return _usable(SimpleNamespace(states={"t_div": torch.tensor(t_div)}, depth=len(t_div) - 1))  # type: ignore[arg-type]

    assert usable(*[0.5] * 9) == 8
    assert usable(*[0.5] * 6, *[1e-30] * 3) == 5 and usable(0.5, *[1e-30] * 8) == 3
