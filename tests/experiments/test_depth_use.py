"""The de-escalated arm of depth_use/wirings: a remedy that is made a part of its blocks computes the same."""

import math

import pytest
import torch

import depthscope as ds
from depthscope.experiments.depth_use import wirings
from depthscope.experiments.depth_use.wirings import ARMS, built_in
from depthscope.training.build import Build
from depthscope.training.tasks import task


def test_every_arm_takes_the_rate_that_is_best_in_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that broke is not chosen; one rate alone is not tried."""
    losses = {1e-3: 2.0, 3e-3: 1.5, 1e-2: math.nan}
    monkeypatch.setattr(wirings, "_trained", lambda choice, cfg, seed, steps: (choice["lr"], math.nan))
    monkeypatch.setattr(wirings, "_valid_loss", lambda rate, cfg: losses[rate])
    assert wirings.best_rate({}, wirings.Config(rates=tuple(losses))) == 3e-3
    assert wirings.best_rate({}, wirings.Config(rates=(0.5,))) == 0.5


def test_a_remedy_that_is_built_in_computes_the_same() -> None:
    pydoc = task("pydoc", segment=8, test=64, epoch_tokens=64)
    model, fix = Build(depth=3, d=8, h=2, **ARMS["de-escalated post-norm"]).model(pydoc, seed=0)
    words = torch.randint(20, (2, 8))
    with torch.no_grad():
        fixed = model.eval()(words)[0]
        plain = built_in(model)
        assert torch.equal(plain(words)[0], fixed)
        fix.undo()
        assert torch.equal(plain(words)[0], fixed)  # it is out of the hooks already
    found = ds.depth(plain, words, drops=1)
    assert found.depth == 3 and not bool(found.rest.size.isnan().any())
