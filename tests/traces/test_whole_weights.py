"""Weights that accelerate keeps elsewhere are here while a model runs as a whole, and away again after it."""

import pytest
import torch
from torch import nn

from depthscope.traces.cut_weights import WHOLE
from depthscope.traces.whole_weights import are_away, whole_weights


def test_a_model_counts_as_whole_while_its_weights_are_here() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x, expected = torch.ones(2, 4), model(torch.ones(2, 4)).detach()
    with whole_weights(model):
        assert model not in WHOLE  # nothing is away
    accelerate.cpu_offload(model)
    assert are_away(model)
    with whole_weights(model):
        assert model in WHOLE
        with whole_weights(model):
            assert model in WHOLE
        assert model in WHOLE
        torch.testing.assert_close(model(x).detach(), expected)
    assert model not in WHOLE and model[0].weight.is_meta
