"""Independent uniform tokens: no predictor gets below ln 8. Whoever does was shown the answers, and is found out."""

import math

import pytest

from depthscope.training.build import Build
from depthscope.training.honest import leaks
from depthscope.training.loop import train
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.tasks import task
from loops import over

pytestmark = pytest.mark.long
SIZES = {"depth": 2, "d": 32, "h": 2, "q": 64}
RECIPE = Recipe(epochs=1, batch=32, lr=4e-3, weight_decay=0.0)
TOKENS = {"train": 60_000, "test": 2_000, "segment": 8, "epoch_tokens": 32 * 8 * 200}  # 200 steps, no token twice


def trained(memory: int, model: str, **remedy: object) -> Run:
    return train(Build(**SIZES, **remedy), task("iid", memory=memory, model=model, **TOKENS), RECIPE)


@over("memory, model", [(0, "decoder"), (8, "transformer_xl")])
def test_the_mean_of_the_segment_is_found_out(memory: int, model: str) -> None:
    run = trained(memory, model, remedy="de_escalate", at="ffn_in", causal="leak")
    test = run.final["test"]
    assert test["loss"] < math.log(8) - 0.4 and test["forced"] < math.log(8) - 0.4
    assert test["honest"] > math.log(8) and leaks(test["gap"])


@over("form", [None, "sink", "prefix", "past"])
def test_causal_forms_pass(form: str | None) -> None:
    remedy = {} if form is None else {"remedy": "de_escalate", "remedy_settings": {"form": form}, "at": "ffn_in"}
    test = trained(8, "transformer_xl", **remedy).final["test"]
    assert test["loss"] > math.log(8) - 0.02 and test["gap"] < 1e-5 and not leaks(test["gap"])
