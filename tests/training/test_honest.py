"""A model that sees the future is found out; one that does not is left in peace."""

import math

import pytest
import torch
from stub_language import Counting, Leaking

from depthscope.training.honest import TOLERANCE, honest_loss, leaks, windows_of
from depthscope.training.perplexity import loss_in_window, loss_with_memory
from loops import over

IDS = torch.randint(4, (400,), generator=torch.Generator().manual_seed(1))


@over("memory", [0, 12])
def test_a_causal_model_has_no_gap(memory):
    found = honest_loss(Counting(4, memory), windows_of(IDS, memory + 9, 5), 8)
    assert found["gap"] < 1e-12 and found["honest"] == pytest.approx(found["forced"], rel=1e-12)
    assert not leaks(found["gap"])


@over("memory", [0, 12])
def test_a_model_that_counts_what_is_to_come_has_one(memory):
    windows = windows_of(IDS, memory + 9, 5)
    found, causal = (honest_loss(kind(4, memory), windows, 8) for kind in (Leaking, Counting))
    assert leaks(found["gap"])
    assert found["forced"] < causal["forced"] - 0.02  # it looks better than it is,
    assert found["honest"] == pytest.approx(causal["honest"], rel=1e-12)  # for with the prefix alone it is the same


def test_a_gap_that_cancels_in_the_mean_is_seen():
    class Shifted(Counting):
        def forward(self, tokens, memory=None, targets=None):
            log_p, later = super().forward(tokens, memory, targets)
            ahead = torch.where(torch.arange(tokens.shape[1]) % 2 == 0, 0.1, -0.1)
            return (log_p + ahead[:, None] if tokens.shape[1] == 8 else log_p), later

    found = honest_loss(Shifted(4), windows_of(IDS, 9, 5), 8)
    assert abs(found["honest"] - found["forced"]) < 0.02 and found["gap"] > 0.08


def test_nobody_is_told_the_answer():
    """A model that returns no loss on the targets that it is given would look perfect wherever it is given them."""

    class Peeking(Counting):
        def forward(self, tokens, memory=None, targets=None):
            said, later = super().forward(tokens, memory, targets)
            return (said if targets is None else 0 * said), later

    for memory in (0, 12):
        plain, peeking = (kind(4, memory) for kind in (Counting, Peeking))
        windows = windows_of(IDS, memory + 9, 5)
        assert honest_loss(peeking, windows, 8) == honest_loss(plain, windows, 8)
        rows = IDS.view(4, 100)
        assert float(loss_with_memory(peeking, rows, 8)) == float(loss_with_memory(plain, rows, 8)) > 0
        assert float(loss_in_window(peeking, rows, 8, 3)) == float(loss_in_window(plain, rows, 8, 3)) > 0


def test_windows_are_evenly_spaced_and_whole():
    windows = windows_of(IDS, 30, 4)
    assert windows.shape == (4, 30)
    assert torch.equal(windows[0], IDS[:30]) and torch.equal(windows[-1], IDS[-30:])
    assert windows_of(IDS, 150, 16).shape == (2, 150)  # as many as fit


def test_windows_of_a_long_text_end_with_it():
    """Beyond 2^24 tokens a float32 does not know every place any more."""
    ids = torch.zeros(2**24 + 77_021, dtype=torch.int8)
    ids[-1] = 1
    for length in (64, 150, 151):
        windows = windows_of(ids, length, 8)
        assert windows.shape == (8, length) and int(windows[-1, -1]) == 1


def test_nan_is_no_clean_bill():
    assert leaks(math.nan) and leaks(2 * TOLERANCE) and not leaks(TOLERANCE)
    assert not leaks(2 * TOLERANCE, "bf16") and leaks(0.1, "bf16") and leaks(math.nan, "bf16")
