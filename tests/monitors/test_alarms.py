"""Alarms: each kind when it is so and not otherwise, with block, driver and advice; and what is done about them."""

import math
import warnings

import pytest
import torch
from torch import nn

import depthscope as ds
from depthscope.errors import MonitorWarning
from depthscope.monitors.alarms import Alarm, widest
from depthscope.monitors.pace import lost_at
from loops import over
from monitored import batch, bert, net, words


def alarms_of(model: nn.Module, probe: object, **choices: object) -> list[Alarm]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorWarning)
        return ds.Monitor(model, probe, **choices).alarms  # type: ignore[arg-type]


def test_collapsed_tokens_are_told_with_block_driver_and_line_of_code() -> None:
    model = ds.models.classic(depth=24, d=32, h=2)
    X = torch.randn(2, 16, 32)
    with pytest.warns(MonitorWarning, match="depthscope at step 0: From block"):
        monitor = ds.Monitor(model, X, every=10)
    scan = ds.scan(model, X)
    (alarm,) = monitor.alarms
    assert alarm.kind == "diversity" and alarm.block == scan.verdict.block and alarm.driver == scan.verdict.driver
    assert alarm.advice == scan.verdict.advice and "ds.fix_(model, ds.remedies.DeEscalate(" in alarm.advice
    assert monitor.alarmed is not None and torch.equal(monitor.alarmed["t_sim"], scan["t_sim"])
    monitor.step(10)  # the same state again is no second alarm
    assert len(monitor.alarms) == 1 and not monitor.should_stop


def test_a_diverse_model_is_none_and_a_floor_decides_by_itself() -> None:
    model = bert(2).eval()
    assert alarms_of(model, batch(0)) == []
    curve = ds.scan(model, batch(0))["t_div"]
    (alarm,) = alarms_of(model, batch(0), floor=float(curve.min()) * 1.01)
    assert alarm.kind == "diversity" and alarm.block == int(curve.argmin()) == 2
    assert "ds.advise(monitor.alarmed, floor=" in alarm.advice
    assert alarms_of(model, batch(0), floor=float(curve.min()) * 0.99) == []


def test_a_nan_is_told_where_it_appears_first_at_once() -> None:
    model = net()
    with torch.no_grad():
        model.layers[1].linear2.weight[0, 0] = math.nan
    (alarm,) = alarms_of(model, words(), patience=5)
    assert alarm.kind == "not a number" and alarm.block == 2 and "NaN" in alarm.text


@over("causal", [False, True])
def test_the_widest_attention_looks_at_all_alike(causal: bool) -> None:
    P = torch.ones(1, 1, 12, 12, dtype=torch.float64)
    P = (P.tril() if causal else P) / (P.tril() if causal else P).sum(-1, keepdim=True)
    assert widest(12, causal=causal) == pytest.approx(float(ds.metrics.attention_entropy(P)))


def test_attention_to_single_tokens_is_told_when_heads_are_scanned() -> None:
    model = bert(3).eval()
    with torch.no_grad():
        for part in (model.bert.encoder.layer[1].attention.self.query, model.bert.encoder.layer[1].attention.self.key):
            part.weight.mul_(60)
    assert alarms_of(model, batch(0)) == []
    (alarm,) = alarms_of(model, batch(0), attention=True)
    assert alarm.kind == "entropy" and alarm.block == 2 and "QKNorm" in alarm.advice


def test_patience_waits_and_an_alarm_that_was_over_comes_again() -> None:
    model, heard = bert(2).eval(), []
    monitor = ds.Monitor(model, batch(0), every=1, floor=0.1, patience=2, action=heard.append)
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def alike(*, yes: bool) -> None:
        model.load_state_dict(start)
        if yes:
            with torch.no_grad():
                model.bert.encoder.layer[1].output.LayerNorm.bias += 10

    for n, yes in enumerate((True, True, True, False, True, True), start=1):
        alike(yes=yes)
        monitor.step(n)
    assert [alarm.step for alarm in heard] == [2, 6] == [alarm.step for alarm in monitor.alarms]
    assert not monitor.should_stop


def test_stop_warns_and_says_so() -> None:
    with pytest.warns(MonitorWarning):
        monitor = ds.Monitor(bert(2), batch(0), floor=0.9, action="stop")
    assert monitor.should_stop


def test_what_an_action_raises_is_the_users_own() -> None:
    def give_up(alarm: Alarm) -> None:
        raise KeyError(alarm.kind)

    with pytest.raises(KeyError, match="diversity"):
        ds.Monitor(bert(2), batch(0), floor=0.9, action=give_up)


STEPS = list(range(0, 900, 100))


def test_the_forecast_of_a_steady_fall_is_the_line_itself() -> None:
    fall = [0.8 * math.exp(-s / 300) for s in STEPS]
    assert lost_at(STEPS, fall, 0.01) == pytest.approx(300 * math.log(80))
    assert lost_at(STEPS[:4], fall[:4], 0.01) is None  # too few looks
    assert lost_at(STEPS, fall, 1e-9) is None  # further ahead than it looks back


@over("what", ["flat", "noise", "hardly", "slows", "turns", "lost", "nan"])
def test_no_forecast_without_a_fall_that_goes_on(what: str) -> None:
    noise = torch.randn(9, generator=torch.Generator().manual_seed(0)).mul(0.5).exp().tolist()
    values = {
        "flat": [0.05] * 9,
        "noise": [0.8, *(0.1 * one for one in noise[1:])],
        "hardly": [0.5 - 0.01 * i for i in range(9)],
        "slows": [0.8 * math.exp(-3 * (1 - math.exp(-i / 2))) for i in range(9)],
        "turns": [0.8, 0.4, 0.2, 0.1, 0.05, 0.03, 0.02, 0.02, 0.03],
        "lost": [0.5 * 4.0**-i for i in range(9)],
        "nan": [0.8 * 0.7**i for i in range(8)] + [math.nan],
    }[what]
    assert lost_at(STEPS, values, 0.01) is None


def test_a_fall_that_ends_before_the_run_is_told() -> None:
    """A bias that all tokens share grows from step to step: diversity falls by a steady factor."""
    found = {}
    for total in (None, 9, 100):
        model = bert(2).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MonitorWarning)
            monitor = ds.Monitor(model, batch(0), every=1, total=total, floor=0.001)
            for n in range(1, 9):
                with torch.no_grad():
                    model.bert.encoder.layer[1].output.LayerNorm.bias.copy_(torch.full((32,), 0.5 * 1.4**n))
                monitor.step(n)
        found[total] = [alarm for alarm in monitor.alarms if alarm.kind == "forecast"]
    assert found[None] == found[9] == []
    (alarm,) = found[100]
    assert "at this pace it is 0.001 at step" in alarm.text and alarm.driver in alarm.text
    assert "ds.advise(monitor.alarmed, floor=0.1)" in alarm.advice
