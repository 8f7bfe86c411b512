"""What cannot be watched is an error at the start of a training, that says what to do."""

from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import depthscope as ds
from depthscope.errors import DepthscopeError
from monitored import net, words

GOOD = words()
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a probe that does not fit": ({"probe": torch.rand(2, 3)}, "Monitor: the model must run on these inputs; Net raised"),
    "a loader": ({"probe": DataLoader(TensorDataset(GOOD))}, r"probe must be one fixed batch .* got DataLoader.*next\(iter"),
    "a model without blocks": ({"model": nn.Linear(2, 2), "probe": torch.rand(1, 4, 2)}, "^Monitor: .*block"),
    "no model": ({"model": 3}, "Monitor: model must be a torch.nn.Module; got int"),
    "an action": ({"action": "halt"}, "Monitor: .*action.*'halt'.*warn"),
    "a logger": ({"log": "tensorboard"}, "log must be a function .* got str"),
    "a floor": ({"floor": 1.5}, "floor must lie between 0 and 1, a share; got 1.5"),
    "a floor of nothing": ({"floor": 0.0}, "floor must lie between 0 and 1"),
    "an entropy of no attention": ({"entropy_floor": 0.5}, "entropy_floor needs .* attention=True"),
    "an entropy": ({"entropy_floor": -1}, "entropy_floor must lie between 0 and 1"),
    "every": ({"every": 0}, "every must be a whole number, 1 or more; got 0"),
    "total": ({"total": 2.5}, "total must be a whole number"),
    "patience": ({"patience": True}, "patience must be a whole number"),
    "a metric": ({"metrics": ["t_simm"]}, "t_simm.*t_sim"),
    "heads without attention": ({"metrics": ["attention_entropy"]}, "attention=True"),
    "a choice": ({"flor": 0.1}, "Monitor: .*choice.*flor.*floor"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_it_is_told_before_the_training(case: str) -> None:
    given, says = BAD[case]
    with pytest.raises(DepthscopeError, match=says):
        ds.Monitor(**{"model": net(), "probe": GOOD, **given})


def test_steps_never_fall() -> None:
    monitor = ds.Monitor(net(), GOOD)
    monitor.step(5)
    monitor.step(numpy.int64(5))
    for n in (4, 2.5, True):
        with pytest.raises(DepthscopeError, match="the number of optimizer steps done"):
            monitor.step(n)  # type: ignore[arg-type]


def test_without_a_probe_the_model_must_be_called() -> None:
    model = net()
    monitor = ds.Monitor(model)
    with pytest.raises(DepthscopeError, match=r"no call was seen .* Give probe="):
        monitor.step(1)
    assert not model._forward_pre_hooks


def test_positional_arguments_without_names_need_a_probe() -> None:
    class Any_(nn.Module):  # noqa: N801
        def forward(self, *args: Any, scale: float = 1.0) -> Any:
            return args[0]

    model = Any_().train()
    monitor = ds.Monitor(model)
    model(GOOD, scale=2.0)
    with pytest.raises(DepthscopeError, match="must have names; 1 came by position, and it names 0"):
        monitor.step(1)
