"""The alarm of a failing run comes long before its loss differs from that of a slow one."""

import warnings

import pytest
import torch

import depthscope as ds
from depthscope.errors import MonitorWarning
from monitored import batch, bert

pytestmark = pytest.mark.long
STEPS, WINDOW, SURE = 320, 20, 3.0


def run(depth: int) -> tuple[list[float], ds.Monitor]:
    model = bert(depth, attention_probs_dropout_prob=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorWarning)
        monitor = ds.Monitor(model, batch(5), every=10, total=STEPS)
        model.train()
        for n in range(1, STEPS + 1):
            loss = model(**batch(1000 + n)).loss
            loss.backward()
            optimizer.step(), optimizer.zero_grad()
            losses.append(float(loss.detach()))
            if n <= 100:
                monitor.step(n)
    return losses, monitor


def parted(slow: list[float], failing: list[float]) -> int:
    """The step from which on the loss of the slow run is below the other's by SURE standard errors, over a WINDOW."""
    below = (torch.tensor(slow) - torch.tensor(failing)).unfold(0, WINDOW, 1)
    sure = below.mean(-1) < -SURE * below.std(-1) / WINDOW**0.5
    return int((~sure).nonzero().max()) + 1 + WINDOW


def test_the_alarm_is_a_hundred_steps_earlier_and_more() -> None:
    (slow, quiet), (failing, monitor) = run(2), run(24)
    assert not quiet.alarms and [alarm.kind for alarm in monitor.alarms] == ["diversity"]
    step = parted(slow, failing)
    assert monitor.alarms[0].step == 10 and 110 < step < STEPS, step
