"""Who made tokens alike: what the embeddings had, and what cannot be told."""

from types import SimpleNamespace

import pytest
import torch

from depthscope.scans.shares import _at_the_start


def at_the_start(*t_div: float, n: int = 5) -> float:
    rows = {"t_div": torch.tensor([t_div]), "tokens": torch.full((1, len(t_div)), n)}
    return _at_the_start(SimpleNamespace(sequences=rows, valid_tokens=n))  # type: ignore[arg-type]


def test_unrelated_tokens_are_not_alike_at_the_start() -> None:
    assert at_the_start(1 - 1 / 5) == pytest.approx(0, abs=1e-6)
    assert at_the_start(0.5, 0.2) == pytest.approx((torch.tensor([4.0, 16.0]).log()).mean())


def test_of_equal_tokens_and_of_one_token_nothing_can_be_told() -> None:
    assert at_the_start(0.0) == at_the_start(float("nan")) == at_the_start(0.3, n=1) == 0.0
    assert at_the_start(0.0, 0.5) == at_the_start(0.5)
