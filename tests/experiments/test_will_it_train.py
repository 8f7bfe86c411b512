"""Designs that are drawn, the ladder they climb, the table of outcomes, and how forecasts of training are judged."""

import dataclasses
from pathlib import Path

import pytest
import torch

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.experiments.beyond.will_it_train import rung
from depthscope.experiments.drawn_designs import TASKS, drawn_designs
from depthscope.experiments.kept_outcomes import Outcomes, Repair, kept, largest, on_the_ladder, wanted_rate, write
from depthscope.experiments.odds_of_training import auc, auc_interval, logistic, share_interval, told, within
from depthscope.experiments.outcomes import Outcome, constant_loss, next_rate, outcome_here, outcomes
from depthscope.experiments.repaired import advised
from depthscope.forecasts.rate_limit import RateLimit
from depthscope.training.tasks import task

DRAWN = drawn_designs(300, 24, (6, 128), (32, 32, 48))


def outcome(rate: float, trains: bool, number: int = 0) -> Outcome:
    return Outcome(number, rate, 0.5 if trains else 1.0, 0.5, -1, "done", 1.0)


def test_the_second_half_is_held_out_and_the_first_does_not_depend_on_it() -> None:
    for name in TASKS:
        own = [design for design in DRAWN if design.task == name]
        assert [design.held_out for design in own] == [False] * 40 + [True] * 60
        assert [design.judges_advice for design in own] == [False] * 80 + [True] * 20
    assert drawn_designs(30, 24, (6, 128), (32, 32, 48)) == DRAWN[:30]
    assert drawn_designs(30, 25, (6, 128), (32, 32, 48)) != DRAWN[:30]
    depths = [design.choices["depth"] for design in DRAWN]
    assert min(depths) >= 6 and max(depths) <= 128
    assert 0.4 < sum(depth < (6 * 128) ** 0.5 for depth in depths) / len(DRAWN) < 0.6  # even on the log scale


def test_the_rung_that_is_forecast_is_the_likeliest_to_be_near() -> None:
    """A steep limit on either side tells the rung; where no rate is likely, a third of the least stands for none."""
    for update, right in ((1e-3, 1e-2), (12.7 / 5.5e-3, 3e-3), (12.7 / 1.8e-3, 1e-3)):
        guess = rung(RateLimit(depth=9, update=update, local=update, diversity=1.0), steps=10**6)
        assert 1 / 3 <= guess / right <= 3
    assert rung(RateLimit(depth=9, update=1e6, local=1e6, diversity=1.0)) < 3e-4


def test_a_changed_design_has_the_settings_alone() -> None:
    mended = next(design for design in DRAWN if design.tau and design.choices["scores"] != 1)
    plain = mended.changed(wiring="pre_norm")
    assert plain.tau == 0 and plain.build.remedy is None and plain.build.scores == 1.0
    assert plain.build.wiring == "pre_norm" and plain.build.depth == mended.build.depth
    assert mended.changed(tau=0.5, site="ffn_in").build.at == "ffn_in"


@pytest.mark.parametrize(
    ("known", "then"),
    [
        ({}, 3e-3),
        ({3e-3: True}, 1e-2),
        ({3e-3: True, 1e-2: False}, None),
        ({3e-3: True, 1e-2: True}, None),
        ({3e-3: False}, 1e-3),
        ({3e-3: False, 1e-3: True}, None),
        ({3e-3: False, 1e-3: False}, 1e-2),  # it may be slow
        ({1e-3: False, 3e-3: False, 1e-2: False}, 3e-4),
        ({1e-3: False, 3e-3: False, 1e-2: False, 3e-4: True}, None),
        ({1e-3: True, 1e-2: False}, 3e-3),
    ],
)
def test_the_ladder_is_climbed_to_the_largest_rate_that_trains(known: dict[float, bool], then: float | None) -> None:
    assert next_rate(known) == then


def test_what_is_known_of_a_ladder() -> None:
    row = on_the_ladder([outcome(1e-3, True), outcome(3e-3, False)])
    assert str(row) == "[nan, 1.0, 0.0, 0.0]"  # above the failure all fail; below nobody looked
    assert largest([outcome(1e-3, True), outcome(3e-3, False)]) == 1e-3
    assert largest([outcome(rate, False) for rate in (3e-4, 1e-3, 3e-3, 1e-2)]) == pytest.approx(1e-4)


def test_the_table_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Outcomes({4: [outcome(1e-3, True, 4)]}, {4: [Repair("advice", {"tau": 0.5}, outcome(3e-3, False, 4))]})
    write(tmp_path / "table.json", found, "a command")
    monkeypatch.setattr("depthscope.experiments.kept_outcomes.TABLE", tmp_path / "table.json")
    assert kept() == found


def test_a_run_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    """One process trains, the pool finds it done: the same outcome; a damaged folder is trained again."""
    tiny = DRAWN[2].changed(wiring="pre_norm", depth=1, d=8, q=8, h=2)
    here = outcome_here(tiny, 1e-2, tmp_path, epochs=1)
    assert outcome_here(tiny, 1e-2, tmp_path, epochs=1) == here
    assert outcomes([(tiny, 1e-2)], tmp_path, epochs=1) == [here]
    assert len([*tmp_path.glob("sorting-2-*")]) == 1
    next(tmp_path.glob("sorting-2-*/run.json")).unlink()
    again = outcome_here(tiny, 1e-2, tmp_path, epochs=1)
    assert dataclasses.replace(again, seconds=0) == dataclasses.replace(here, seconds=0)


def test_a_constant_answer_loses_the_entropy_of_the_labels() -> None:
    digits = task("digits", train=800).valid.labels
    shares = digits.bincount().double() / len(digits)
    assert constant_loss("digits", (("train", 800),)) == pytest.approx(float(-(shares * shares.log()).sum()))


def test_areas_fits_and_shares() -> None:
    score, y = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True])
    assert auc(score, y) == 0.75  # three of four pairs are in order
    assert auc(torch.zeros(4), y) == 0.5
    X = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = (2 * X[:, 0] - X[:, 1] + 0.5).sigmoid()
    w = logistic(X, torch.rand(4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) < p)
    assert w.tolist() == pytest.approx([2.0, -1.0, 0.5], abs=0.25)
    assert auc(told(X, w), p > 0.5) > 0.98
    low, high = auc_interval(X[:200, 0], p[:200] > 0.5, torch.arange(200) // 4)
    assert low < auc(X[:200, 0], p[:200] > 0.5) < high
    assert within(torch.tensor([1e-3, 1e-3, 1e-3]), torch.tensor([3e-3, 3.1e-3, 4e-4]), 3.0).tolist() == [
        True,
        False,
        True,
    ]
    assert share_interval(torch.tensor([True] * 8 + [False] * 2)) == pytest.approx((0.490, 0.943), abs=2e-3)  # Wilson


def test_trainings_want_a_folder() -> None:
    with pytest.raises(UsageError, match="trained in a folder"):
        ds.reproduce("beyond/will_it_train", outcomes="trained")


def test_one_half_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="some designs must be seen and some held out; designs 120"):
        ds.reproduce("beyond/will_it_train", designs=120)


def test_the_table_of_the_package_has_the_largest_rate_of_every_design() -> None:
    found = kept()
    assert sorted(found.ladder) == [design.number for design in DRAWN]
    assert all(next_rate({one.rate: one.trains for one in ones}) is None for ones in found.ladder.values())


def test_advice_that_was_trained_is_the_advice_of_today() -> None:
    """Of the two shallowest designs that judge advice."""
    found = kept()
    judged = [design for design in DRAWN if design.judges_advice and design.number in found.repairs]
    assert len(judged) == 17
    for design in sorted(judged, key=lambda one: one.choices["depth"])[:2]:
        wanted = wanted_rate(design, found.ladder[design.number])
        assert wanted is not None
        (tried,) = [one.settings for one in found.repairs[design.number] if one.arm == "advice"]
        assert advised(design, wanted) == tried
