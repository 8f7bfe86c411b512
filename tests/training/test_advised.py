"""The arm that asks the advisor: it is asked of the task's own tokens, and what it says is what is built."""

import pytest
import torch

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.reports.show import text
from depthscope.training.advised import settled, sizes
from depthscope.training.arms import arm, arms
from depthscope.training.build import Build
from depthscope.training.loop import train
from depthscope.training.recipe import Recipe
from depthscope.training.tasks import task

BASE = Build(depth=12, d=16, h=2, q=32)
DIGITS = task("digits")


def test_sizes_are_those_of_the_tokens_that_the_task_feeds() -> None:
    model, _ = BASE.model(DIGITS, 0)
    tokens = model.tokens(DIGITS.probe("cpu")[:2])
    found = sizes(BASE, DIGITS)
    assert (found["depth"], found["d"], found["q"], found["n"]) == (12, 16, 32, tokens.shape[1])
    assert found["t_sim"] == pytest.approx(float(ds.metrics.t_sim(tokens).mean()), abs=1e-6)


def test_what_the_advisor_says_is_what_is_built() -> None:
    one, other = settled(arms("advised@1e-3,pre_norm"), BASE, DIGITS, 9.0)
    said = ds.advise(**sizes(BASE, DIGITS), lr=1e-3).choice.settings
    assert other == arm("pre_norm")
    assert (one.name, one.lr, one.advised, other.advised) == ("advised@1e-3", 1e-3, True, False)
    build = one.build(BASE)
    assert build.wiring == said.get("wiring", "post_norm")
    assert (build.remedy, build.at) == (("de_escalate", said["site"]) if "tau" in said else (None, None))
    assert (build.scores, build.alpha) == (said.get("scores", 1.0), said.get("alpha", 1.0))
    assert "trains at 0.001" in one.remark


def test_every_setting_of_advice_reaches_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ds.advise(depth=2, n=4, d=8, h=2, lr=1e-3)
    chosen = {"wiring": "even_steps", "tau": 0.5, "site": "ffn_in", "scores": 0.25, "alpha": 0.5}
    real.choice.settings.update(chosen)
    monkeypatch.setattr("depthscope.training.advised.advise", lambda **asked: real)
    build = settled([arm("advised")], BASE, DIGITS, 1e-3)[0].build(BASE)
    assert (build.wiring, build.remedy, build.at) == ("even_steps", "de_escalate", "ffn_in")
    assert (build.remedy_settings, build.scores, build.alpha) == ({"tau": 0.5}, 0.25, 0.5)


def test_a_thousand_blocks_at_a_large_rate_get_even_steps() -> None:
    """The formulas alone: the largest rate of even steps does not depend on depth, that of all others falls."""
    shape = {"n": 17, "d": 16, "h": 2, "q": 32, "weights": "torch_default", "output": True}
    rates = {
        (wiring, depth): ds.forecast(depth=depth, wiring=wiring, **shape).largest_rate
        for wiring in ("even_steps", "depth_scaled", "deep_norm")
        for depth in (16, 128)
    }
    assert rates["even_steps", 128] == pytest.approx(rates["even_steps", 16], rel=0.05)
    assert rates["depth_scaled", 128] < 0.5 * rates["depth_scaled", 16]
    assert rates["deep_norm", 128] < 0.5 * rates["deep_norm", 16]


def test_de_escalated_even_steps_learn_at_a_depth_and_rate_that_leave_post_norm_at_chance() -> None:
    """The run of a thousand blocks at a small size: 40 blocks and 32 steps. Measured: 60 %, and 8 % for post-norm."""
    few, budget = task("digits", train=512), Recipe(epochs=2, batch=32, lr=1e-2, eval_every=2, log_every=32)
    base = Build(depth=40, d=16, h=2, q=16)
    mended, plain = (
        train(arm(words).build(base), few, budget).final["test"]["accuracy"]
        for words in ("even_steps+de_escalate", "post_norm")
    )
    assert mended > 0.4
    assert plain < 0.2


def test_a_comparison_says_what_was_chosen_and_why() -> None:
    sizes_ = {"depth": 2, "d": 8, "h": 2, "q": 8, "epochs": 1, "train": 128}
    result = ds.compare("digits", "advised", seeds=1, processes=1, caveat=False, **sizes_)
    (lane,) = result.lanes
    assert lane.arm.advised and lane.arm.remark in " ".join(text(result, 400).split())


def test_a_model_that_is_no_stack_of_reference_blocks_is_refused() -> None:
    class Odd:
        name = "odd"

        def model(self, build: Build) -> object:
            return torch.nn.Linear(2, 2)

    with pytest.raises(UsageError, match=r"must train a stack of reference blocks.*odd trains Linear"):
        settled([arm("advised")], BASE, Odd(), 1e-3)
