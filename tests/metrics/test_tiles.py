"""Products with P by tiles, held to the softmax that is written down."""

import pytest
import torch

from depthscope.metrics import attention_entropy, delta, lambda_2, pattern, tiles
from depthscope.metrics.entropy import entropy_of
from depthscope.metrics.mixing import mu_of
from depthscope.metrics.pattern import pattern_of
from depthscope.metrics.scratch import Scratch
from depthscope.metrics.tiles import Scores, Tiles
from loops import over

D = 8
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-5}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "NEAR", (16, 24))
    monkeypatch.setattr(pattern, "HELD", 100)


def drawn(n, m, causal, dtype=torch.float64, temperature=1.0):
    """Tiles of two heads, and their P (2, n, m), in float64."""
    draw = torch.Generator().manual_seed(n + m)
    q, k = (torch.randn(2, length, D, dtype=torch.float64, generator=draw) for length in (n, m))
    s = q @ k.mT * temperature
    s = s.masked_fill(torch.ones(n, m).triu(1).bool() & causal, -torch.inf)
    return Tiles(Scores(q.to(dtype), k.to(dtype), temperature, causal), Scratch()), s.softmax(-1)


def close(found, truth, dtype):
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), truth, rtol=limit, atol=limit * float(truth.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "m", "causal"), [(70, 70, True), (70, 70, False), (50, 90, False), (90, 50, True)])
def test_what_tiles_say_is_what_the_definition_says(n, m, causal, dtype):
    found, P = drawn(n, m, causal, dtype)
    V, U = torch.randn(2, 3, m, dtype=dtype), torch.randn(2, 3, n, dtype=dtype)
    close(found.image(V), V.double() @ P.mT, dtype)
    close(found.pulled(U), U.double() @ P, dtype)
    close(found.rows.received, P.sum(-2), dtype)
    close(found.rows.squares, P.square().sum((-2, -1)), dtype)
    close(found.rows.entropy, -torch.special.xlogy(P, P).sum(-1), dtype)
    if n == m:
        close(found.diagonal(), P.diagonal(dim1=-2, dim2=-1), dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("temperature", [1e-4, 1.0, 40.0])  # differences of 1e-4 beside the mean; a maximum of 500
def test_there_and_back_in_one_pass_is_what_two_give(causal, temperature, monkeypatch):
    found, P = drawn(80, 80, causal, torch.float32, temperature)
    A = P - P.mean(-2, keepdim=True)
    passes = []
    made = Tiles._exponentials
    monkeypatch.setattr(Tiles, "_exponentials", lambda self, cut, **how: passes.append(cut) or made(self, cut, **how))
    for turn in range(3):
        V = torch.randn(2, 5, 80)
        passes.clear()
        y = found.image(V)
        back = found.pulled(tiles._centred(y))
        assert len(passes) == (10 if turn == 0 else 5)  # of 5 strips: from the second time on one pass gives both
        truth = V.double() @ A.mT @ A
        torch.testing.assert_close(back.double(), truth, rtol=0, atol=1e-3 * float(truth.abs().max()))


def test_what_was_asked_before_is_no_answer_to_another_question():
    found, P = drawn(40, 40, False)
    for _ in range(3):
        V, U = torch.randn(2, 2, 4, 40, dtype=torch.float64)
        found.pulled(tiles._centred(found.image(V)))
        found.image(V)
        close(found.pulled(U), U @ P, torch.float64)


@pytest.mark.parametrize("causal", [True, False])
def test_metrics_of_long_sequences_are_those_of_the_matrix(causal):
    q, k = torch.randn(2, 1, 4, 60, D, dtype=torch.float64)
    k = k[:, :2]  # two heads share a key
    s = (q @ k.repeat_interleave(2, 1).mT * D**-0.5).masked_fill(torch.ones(60, 60).triu(1).bool() & causal, -torch.inf)
    P = s.softmax(-1)
    for f in (delta, lambda_2):
        torch.testing.assert_close(f(q=q, k=k, causal=causal), f(P), rtol=1e-8, atol=1e-12)
    long, _ = pattern_of(None, q=q, k=k, causal=causal, where="test")
    found = torch.cat([entropy_of(part) for part in long.pieces()]).reshape(1, 4)
    torch.testing.assert_close(found, attention_entropy(P))


def test_what_tokens_lose_in_long_sequences_is_what_the_definition_says():
    q, k = torch.randn(2, 2, 2, 60, D, dtype=torch.float64)
    X, P = torch.randn(2, 60, 5, dtype=torch.float64) + 3, (q @ k.mT * D**-0.5).softmax(-1)
    long, _ = pattern_of(None, q=q, k=k, where="test")
    parts = [*long.pieces()]
    assert all(part.tiles is not None for part in parts)
    found = torch.cat([mu_of(part, X)[1] for part in parts]).reshape(2, 2)
    Z = X - X.mean(-2, keepdim=True)
    moved = P @ Z.unsqueeze(1)
    truth = (moved - moved.mean(-2, keepdim=True)).norm(dim=(-2, -1)) / Z.norm(dim=(-2, -1))[:, None]
    torch.testing.assert_close(found, truth)


def test_a_number_that_is_none_is_passed_on():
    found, _ = drawn(40, 40, False)
    found.q[0, 30] = torch.nan
    assert found.rows.entropy[0, 30].isnan() and found.rows.entropy[1].isfinite().all()
    assert found.image(torch.ones(2, 1, 40, dtype=torch.float64))[0, 0, 30].isnan()


@over("causal", [True, False])
def test_strips_hold_every_entry_once(causal, monkeypatch):
    monkeypatch.setattr(pattern, "STRIP", 8)
    _, P = drawn(50, 50, causal)
    for held in (100, 10**6):  # blocks of a row, and one block
        monkeypatch.setattr(pattern, "HELD", held)
        whole, _ = pattern_of(P, causal=causal, where="test")
        found = torch.zeros_like(P)
        for rows, columns, part in whole.strips():
            found[:, rows, columns] += part
        close(found, P, torch.float64)
