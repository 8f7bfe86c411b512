"""first_token_similarity against its sum, token by token."""

import numpy as np
import pytest
import torch

from depthscope.metrics.first_token import first_token_similarity
from depthscope.metrics.similarity import t_sim
from loops import over


def by_definition(X):
    direction = X[0] / np.linalg.norm(X[0])
    along = sum((x @ direction) ** 2 for x in X[1:])
    return along / sum(x @ x for x in X[1:])


@over("shape", [(2, 3), (7, 4), (2, 3, 5, 6)])
@over("offset", [0.0, 1.0, 30.0])
def test_is_its_definition(shape, offset):
    X = torch.randn(shape, dtype=torch.float64) + offset
    truth = [by_definition(x) for x in X.reshape(-1, *shape[-2:]).numpy()]
    np.testing.assert_allclose(first_token_similarity(X).reshape(-1), truth, rtol=1e-12)
    assert first_token_similarity(X).shape == shape[:-2]


def test_padding_on_either_side_does_not_count():
    X = torch.randn(3, 9, 4, dtype=torch.float64) + 0.5
    keep = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0], [0, 1, 0, 1, 1, 0, 0, 0, 0]]).bool()
    truth = [by_definition(X[i, keep[i]].numpy()) for i in range(3)]
    np.testing.assert_allclose(first_token_similarity(X, mask=keep), truth, rtol=1e-12)


def test_says_whether_tokens_lie_on_the_line_of_the_first():
    x_1 = torch.randn(8)
    on_the_line = torch.tensor([1.0, 2.0, -0.5, 1e-3])[:, None] * x_1
    assert float(first_token_similarity(on_the_line)) == pytest.approx(1, abs=1e-12)
    assert float(t_sim(on_the_line)) < 0.6  # alike in direction, and still not alike
    assert float(first_token_similarity(torch.eye(5))) == 0
    X = torch.randn(64, 256, 128)
    assert float(first_token_similarity(X).mean()) == pytest.approx(1 / 128, rel=0.02)


def test_causal_attention_draws_every_token_to_the_first():
    P, X = torch.randn(12, 12, dtype=torch.float64), torch.randn(12, 6, dtype=torch.float64)
    P = P.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf).softmax(-1)
    values = [float(first_token_similarity(torch.linalg.matrix_power(P, k) @ X)) for k in (0, 4, 16, 64, 400)]
    assert values == sorted(values) and values[0] < 0.5 and values[-1] == pytest.approx(1, abs=1e-6)


def test_a_first_token_a_million_times_larger_costs_no_digits():
    X = torch.randn(9, 4, dtype=torch.float64)
    expected = by_definition(X.numpy())
    assert float(first_token_similarity(torch.cat([1e6 * X[:1], X[1:]]))) == pytest.approx(expected, rel=1e-12)


def test_zero_tokens_have_no_direction():
    X = torch.randn(3, 5, 4)
    X[0, 0] = 0
    X[1, 1:] = 0
    assert first_token_similarity(X).isnan().tolist() == [True, True, False]
