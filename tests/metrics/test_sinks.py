"""attention_sink against its two sums, term by term."""

import numpy as np
import pytest
import torch

from depthscope.metrics import pattern
from depthscope.metrics.sinks import attention_sink
from loops import over


def attention(*shape, causal=True, temperature=1.0):
    scores = temperature * torch.randn(*shape, dtype=torch.float64)
    later = torch.ones(shape[-2:]).triu(1).bool() & causal
    return scores.masked_fill(later, -torch.inf).softmax(-1)


def mass_by_definition(P):
    n = len(P)
    return sum(P[t][0] for t in range(1, n)) / (n - 1)


def chance_by_definition(n, causal):
    return sum(1 / (t if causal else n) for t in range(2, n + 1)) / (n - 1)


@over("causal", [True, False])
@over("shape", [(2, 2), (6, 6), (2, 3, 9, 9)])
def test_is_its_definition(shape, causal):
    P = attention(*shape, causal=causal)
    mass, chance = attention_sink(P)
    truth = [mass_by_definition(p) for p in P.reshape(-1, *shape[-2:]).numpy()]
    np.testing.assert_allclose(mass.reshape(-1), truth, rtol=1e-12)
    np.testing.assert_allclose(chance.reshape(-1), chance_by_definition(shape[-1], causal), rtol=1e-12)
    assert mass.shape == chance.shape == shape[:-2]


def test_uniform_causal_attention_is_chance_and_a_sink_is_one():
    uniform = torch.ones(64, 64).tril() / torch.arange(1, 65)[:, None]
    mass, chance = attention_sink(uniform)
    assert float(mass) == pytest.approx(float(chance), rel=1e-6)
    assert float(chance) == pytest.approx(0.0594268, rel=1e-5)
    sink = torch.zeros(64, 64)
    sink[:, 0] = 1
    assert float(attention_sink(sink)[0]) == 1
    assert float(attention_sink(torch.eye(64))[0]) == 0


@over("causal", [True, False])
@over("held", [1 << 22, 30])
def test_the_first_token_is_the_first_that_is_no_padding(monkeypatch, causal, held):
    monkeypatch.setattr(pattern, "HELD", held)  # 30: blocks of a few rows, of which the sink's is not the first
    P = attention(3, 2, 12, 12, causal=causal)
    keep = torch.tensor([[0] * 7 + [1] * 5, [1] * 8 + [0] * 4, [0, 1, 1, 0, 1, 1] + [0] * 6]).bool()
    found = attention_sink(P, mask=keep)
    for i in range(3):
        part = P[i][:, keep[i]][:, :, keep[i]]
        part = (part / part.sum(-1, keepdim=True)).numpy()
        np.testing.assert_allclose(found[0][i], [mass_by_definition(p) for p in part], rtol=1e-12)
        np.testing.assert_allclose(found[1][i], chance_by_definition(int(keep[i].sum()), causal), rtol=1e-12)


def test_keys_of_another_sequence_have_their_own_first_token():
    P = torch.rand(2, 3, 4, 7, dtype=torch.float64).softmax(-1)
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0]]).bool()
    mass, chance = attention_sink(P, mask=mask)
    torch.testing.assert_close(mass, torch.stack([P[0, :, 2:, 0].mean(-1), P[1, :, 1, 0]]))
    torch.testing.assert_close(chance, torch.full((2, 3), 1 / 7, dtype=torch.float64))


@over("held", [1 << 22, 30])
@over("n, M", [(4, 3), (2, 5), (6, 1)])
def test_after_a_memory_all_queries_are_later_than_the_first_key(monkeypatch, held, n, M):
    monkeypatch.setattr(pattern, "HELD", held)
    P = attention(2, 3, n + M, n + M)[..., M:, :]
    mass, chance = attention_sink(P)
    torch.testing.assert_close(mass, P[..., 0].mean(-1))
    np.testing.assert_allclose(chance, np.mean([1 / (M + t) for t in range(1, n + 1)]), rtol=1e-12)
    uniform = (torch.ones(n + M, n + M).tril() / torch.arange(1, n + M + 1)[:, None])[M:]
    assert float(attention_sink(uniform)[0]) == pytest.approx(float(attention_sink(uniform)[1]), rel=1e-6)


def test_after_a_memory_queries_that_are_padding_do_not_count():
    P, keep = attention(2, 1, 7, 7)[..., 3:, :], torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    mass, chance = attention_sink(P, mask=keep)
    torch.testing.assert_close(mass, torch.stack([P[0, :, :2, 0].mean(-1), P[1, :, :, 0].mean(-1)]))
    np.testing.assert_allclose(chance[:, 0], [(1 / 4 + 1 / 5) / 2, (1 / 4 + 1 / 5 + 1 / 6 + 1 / 7) / 4], rtol=1e-12)


def test_large_n_never_holds_the_matrix(monkeypatch):
    made = []
    monkeypatch.setattr(pattern, "HELD", 1 << 10)
    monkeypatch.setattr(pattern, "_given_rows", lambda P, b, c, r, s, _: made.append((c - b) * (s - r)) or P[b:c, r:s])
    P = attention(1, 128, 128)
    assert float(attention_sink(P)[0]) == pytest.approx(mass_by_definition(P[0].numpy()), rel=1e-12)
    assert max(made) * 128 <= 1 << 10
