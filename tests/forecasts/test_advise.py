"""Advice: what it chooses is built and measured, it leaves sound designs alone, and it watches gradients."""

import json

import pytest
import torch

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.forecasts.advice import FLOOR, Kind, Limits, Option, choose
from depthscope.forecasts.advise import advise
from depthscope.forecasts.record import Forecast
from loops import over


def curve(t_div: float, growth: float | None = None) -> Forecast:
    end = torch.tensor([0.9, t_div], dtype=torch.float64)
    per_block = None if growth is None else torch.tensor([growth], dtype=torch.float64)
    return Forecast("x", 8, 1 - end, end, 1 - end, gradient_growth=per_block)


def kind(rank: int, left: dict[float, tuple[float, float]], calms: bool = False) -> Kind:
    """left: strength -> (t_div, growth of gradients)."""
    return Kind(rank, lambda x: Option(f"{rank}: {x}", {"x": x}, "", curve(*left[x])), tuple(left), calms)


def test_the_mildest_that_holds() -> None:
    now = Option("nothing", {}, "", curve(0.001, 1.0))
    weak = kind(1, {0.1: (0.01, 1), 0.2: (0.05, 1), 0.3: (0.2, 1), 0.4: (0.3, 1)})
    assert choose(now, [kind(2, {1: (0.9, 1)}), weak]).choice.change == "1: 0.3"
    explosive = kind(1, {0.1: (0.01, 1), 0.2: (0.5, 1e6)})
    assert choose(now, [explosive, kind(2, {1: (0.9, 1)})]).choice.change == "2: 1"
    calm = kind(2, {0.2: (0.4, 2)}, calms=True)
    assert choose(now, [explosive, calm]).choice.change == "2: 0.2"
    assert len(choose(now, [weak, calm]).options) == 2  # nothing explodes: no need to calm
    none = choose(now, [kind(1, {1: (0.02, 1)}), explosive])
    assert none.choice.change == "1: 1" and "No single change keeps 0.05" in none.text
    fine = choose(Option("nothing", {}, "", curve(0.5)), [weak])
    assert not fine.needed and fine.text.startswith("No fix needed: 0.5 of the signal")
    with pytest.raises(UsageError, match="floor must lie in"):
        choose(now, [weak], Limits(floor=1.0))


@over(
    "choices",
    [
        {"wiring": "deep_norm", "depth": 48, "weights": "xavier"},
        {"wiring": "rezero", "depth": 24},
        {"wiring": "pre_norm", "depth": 12, "weights": "xavier"},
    ],
)
def test_sound_designs_are_left_alone(choices: dict) -> None:
    advice = advise(n=32, d=64, h=4, **choices)
    assert not advice.needed and str(advice).startswith("No fix needed")
    assert len(advice.text.split(". ")) <= 2


@over("causal", [False], long=[True])
def test_what_is_chosen_from_sizes_holds_when_it_is_built(causal: bool) -> None:
    choices = {"depth": 24, "d": 128, "h": 4, "weights": "xavier", "causal": causal}
    advice = advise(n=32, **choices)
    assert advice.needed and advice.holds and advice.choice.settings["site"] == "block_out"
    model, X = ds.models.classic(**choices), torch.randn(4, 32, 128)
    assert float(ds.scan(model, X, attention=False)["t_div"][-1]) < FLOOR
    with ds.fix_(model, ds.remedies.DeEscalate(advice.choice.settings["tau"])):
        assert float(ds.scan(model, X, attention=False)["t_div"][-1]) > FLOOR
    record = json.loads(json.dumps(advice.to_dict()))
    assert record["options"][record["choice"]]["tau"] == advice.choice.settings["tau"]


@pytest.mark.long
def test_gradients_that_explode_are_calmed() -> None:
    """A tight limit on gradients, wide scores: de-escalation comes with smaller scores."""
    choices = {"n": 8, "depth": 24, "d": 64, "h": 4, "weights": "xavier", "alpha": 2.0}
    free, tight = advise(**choices, most_growth=1e9), advise(**choices, most_growth=4.0)
    assert "scores" not in free.choice.settings and free.choice.growth > 4.0
    assert tight.choice.growth is None or tight.choice.growth <= 4.0
    assert any("scores" in option.settings for option in tight.options)


@pytest.mark.long
def test_a_scan_and_a_model_are_advised() -> None:
    torch.manual_seed(0)
    model, X = ds.models.classic(20, 128, 4, weights="xavier", output=True), torch.randn(4, 32, 128)
    for advice in (advise(ds.scan(model, X)), advise(model, X)):
        assert advice.needed and advice.holds
        with ds.fix_(model, ds.remedies.DeEscalate(advice.choice.settings["tau"])):
            assert float(ds.scan(model, X, attention=False)["t_div"][-1]) > FLOOR
    assert [option.change for option in advise(ds.scan(model, X)).options][-1] == "pre-norm blocks"


def test_the_verdict_names_the_mildest_way_out() -> None:
    torch.manual_seed(0)
    X = torch.randn(4, 32, 128)
    lost = ds.scan(ds.models.classic(20, 128, 4, weights="xavier", output=True), X).verdict
    assert "Mildest way out, by a forecast from these blocks: ds.fix_(model, ds.remedies.DeEscalate(0." in lost.advice
    blind = ds.scan(ds.models.classic(20, 128, 4, weights="xavier", output=True), X, attention=False).verdict
    assert blind.advice.startswith("Ways out: de-escalation")
    assert ds.scan(ds.models.classic(4, 128, 4, wiring="deep_norm"), X).verdict.advice.startswith("No fix needed")


def test_the_verdict_of_a_model_with_a_remedy_does_not_advise_the_same_again() -> None:
    torch.manual_seed(0)
    model, X = ds.models.classic(20, 128, 4, weights="xavier", output=True), torch.randn(4, 32, 128)
    with ds.fix_(model, ds.remedies.DeEscalate(0.05)):
        advice = ds.scan(model, X, attention=False).verdict.advice
    assert advice.startswith("The model has DeEscalate(tau=0.05) at block_out already.") and "learning rate" in advice
    assert "ds.remedies" not in advice
