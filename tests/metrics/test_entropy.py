"""Attention entropy against its sum, term by term."""

import math

import numpy as np
import pytest
import torch

from depthscope.errors import ShapeError, StochasticError
from depthscope.metrics import pattern
from depthscope.metrics.entropy import attention_entropy
from loops import over


def entropy_by_definition(P):
    n, m = P.shape
    return -sum(P[i, j] * math.log(P[i, j]) for i in range(n) for j in range(m) if P[i, j] > 0) / n


@over("shape", [(2, 2), (6, 6), (4, 9), (2, 3, 5, 5)])
@over("temperature", [0.1, 1.0, 300.0])
def test_is_its_definition(shape, temperature):
    P = (torch.randn(shape, dtype=torch.float64) * temperature).softmax(-1)
    truth = [entropy_by_definition(p) for p in P.reshape(-1, *shape[-2:]).numpy()]
    np.testing.assert_allclose(attention_entropy(P).reshape(-1), truth, rtol=1e-12, atol=1e-14)
    assert attention_entropy(P).shape == shape[:-2]


def test_uniform_rows_reach_log_m_and_one_hot_rows_nothing():
    assert float(attention_entropy(torch.full((4, 7), 1 / 7))) == pytest.approx(math.log(7), rel=1e-6)
    assert float(attention_entropy(torch.eye(5)[[3, 3, 0, 1, 2]])) == 0


def test_the_mask_takes_padding_out_of_rows_and_columns():
    P = torch.randn(2, 3, 6, 6, dtype=torch.float64).softmax(-1)
    keep = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 0]]).bool()
    for i in range(2):
        part = P[i][:, keep[i]][:, :, keep[i]].numpy()
        truth = [entropy_by_definition(p / p.sum(-1, keepdims=True)) for p in part]
        np.testing.assert_allclose(attention_entropy(P, mask=keep)[i], truth, rtol=1e-12)


@over("masked", [False, True])
def test_blocks_of_rows_give_what_the_whole_matrix_gives(monkeypatch, masked):
    P = torch.randn(2, 3, 20, 20, dtype=torch.float64).softmax(-1)
    mask = torch.arange(20).expand(2, 20) < torch.tensor([[20], [13]]) if masked else None
    whole = attention_entropy(P, mask=mask)
    monkeypatch.setattr(pattern, "HELD", 200)
    torch.testing.assert_close(attention_entropy(P, mask=mask), whole, rtol=1e-12, atol=0)


def test_what_is_not_attention_is_refused_with_the_reason():
    with pytest.raises(StochasticError, match=r"^attention_entropy: the rows of P must .* off by 0\.5"):
        attention_entropy(torch.full((2, 2), 0.75))
    with pytest.raises(StochasticError, match=r"^attention_entropy: .* smallest entry is -0\.5"):
        attention_entropy(torch.tensor([[1.5, -0.5], [0.0, 1.0]]))
    with pytest.raises(ShapeError, match=r"^attention_entropy: P must .* got torch.float32 \(1, 1\)"):
        attention_entropy(torch.ones(1, 1))


def test_a_mask_of_the_queries_of_cross_attention():
    P = torch.rand(2, 3, 4, 7).softmax(-1)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    found = attention_entropy(P, mask=mask)
    torch.testing.assert_close(found[0], attention_entropy(P[0, :, :3]))
    torch.testing.assert_close(found[1], attention_entropy(P[1, :, :2]))
