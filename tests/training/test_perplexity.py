"""Losses of a text by segments with memory and in a sliding window, against every token predicted by itself."""

import math

import pytest
import torch
from stub_language import Counting, Leaking

from depthscope.errors import UsageError
from depthscope.training.perplexity import (
    evaluating,
    in_rows,
    loss_in_window,
    loss_with_memory,
    segments,
    stated,
)
from loops import over

IDS = torch.randint(5, (211,), generator=torch.Generator().manual_seed(0))


def alone(model, row, reach):
    """-ln p of every token of a row but the first, each by a call of its own on the `reach` tokens before it at most."""
    return sum(
        float(model(row[None, max(0, t - reach) : t])[0][0, -1, row[t]].neg().double()) for t in range(1, len(row))
    )


@over("length", [1, 7, 64, 300])
def test_segments_with_memory_lose_nothing_of_the_past(length):
    model, rows = Counting(5, memory=1000), in_rows(IDS, 3)
    truth = sum(alone(model, row, 1000) for row in rows)
    assert float(loss_with_memory(model, rows, length)) == pytest.approx(truth, rel=1e-9)


def test_a_memory_of_its_own_length_is_what_tokens_see():
    model, row = Counting(5, memory=4), IDS[:50]
    truth = 0.0
    for start in range(0, 49, 6):  # the first of a segment sees 4 tokens before it, the others those of the segment too
        for t in range(start + 1, min(start + 6, 49) + 1):
            truth -= float(model(row[None, max(0, start - 4) : t])[0][0, -1, row[t]].double())
    assert float(loss_with_memory(model, row[None], 6)) == pytest.approx(truth, rel=1e-9)


def test_every_token_but_the_first_of_a_row_is_a_target_once():
    rows = in_rows(IDS, 4)
    assert rows.shape == (4, 52)
    found = torch.cat([targets for _, targets in segments(rows, 9)], 1)
    assert torch.equal(found, rows[:, 1:])
    assert all(torch.equal(tokens[:, 1:], targets[:, :-1]) for tokens, targets in segments(rows, 9))


def test_a_window_that_slides_by_one_gives_every_token_the_same_context():
    model, row = Counting(5, memory=0), IDS[:60]
    assert float(loss_in_window(model, row[None], 8, 1)) == pytest.approx(alone(model, row, 8), rel=1e-9)


def test_a_window_that_moves_by_its_length_is_segments_without_memory():
    model, rows = Counting(5, memory=0), in_rows(IDS, 2)
    assert float(loss_in_window(model, rows, 13, 13)) == pytest.approx(
        float(loss_with_memory(model, rows, 13)), rel=1e-2
    )
    whole = rows[:, : 13 * 8 + 1]
    assert float(loss_in_window(model, whole, 13, 13)) == pytest.approx(
        float(loss_with_memory(model, whole, 13)), rel=1e-9
    )


@over("stride", [0, 9, -1])
def test_a_stride_outside_the_window_is_refused(stride):
    with pytest.raises(UsageError, match="stride must be from 1 to the window's 8 tokens"):
        loss_in_window(Counting(5), IDS[None], 8, stride)


def test_how_the_field_states_a_loss():
    assert stated(math.log(2), "character", 1.0) == {"bits_per_character": pytest.approx(1.0)}
    assert stated(math.log(100), "word", 5.0) == {"perplexity": pytest.approx(100.0)}
    both = stated(math.log(16), "token", 4.0)
    assert both == {"perplexity": pytest.approx(16.0), "bits_per_character": pytest.approx(1.0)}
    assert math.isfinite(stated(1e6, "word", 1.0)["perplexity"])


def test_eval_mode_ends_with_an_error_too():
    model = Leaking(5).train()
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not model.training
        raise ZeroDivisionError
    assert model.training
