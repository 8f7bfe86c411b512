"""Verdicts of what is pooled, short, noisy or offset: no quantity alone is enough."""

import math

import pytest
import torch
from torch import nn

import depthscope as ds
from loops import over
from scans.played import common_and_apart, gaussian, played, towards

LOST = ("collapsed", "at the numerical floor")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@over(
    "same_answer, curve, status",
    [
        (False, (3.0, 3.0, 2.5, 0.8, 0.05, 0.005), "escalating"),
        (True, (3.0, 3.0, 2.5, 0.8, 0.05, 0.005), "collapsed"),
        (False, (3.0, 0.8, 0.2, 0.06, 0.02, 0.005), "collapsed"),
        (False, (3.0, 3.0, 2.5, 0.8, 0.05, 1e-5), "collapsed"),
    ],
)
def test_tokens_that_take_over_the_answer_of_their_sequence(same_answer: bool, curve: tuple, status: str) -> None:
    """As after mean pooling: alike within sequences, in the last blocks alone, and apart between sequences."""
    base, apart = common_and_apart(8, 24, 32)
    base = base[:1].expand_as(base) if same_answer else base
    scan = played([base + math.sqrt(t) * apart for t in curve])
    assert scan.verdict.status == status and scan.verdict.fix_needed == (status == "collapsed")
    means = base[:, 0] / base[:, 0].norm(dim=-1, keepdim=True)
    assert float(scan.sequences["sequences_apart"][-1, 0]) == pytest.approx(1 - float(means.mean(0).square().sum()))
    assert ("judge it by its score" in scan.verdict.advice) == (status == "escalating")


def test_batches_together_tell_how_far_sequences_are_apart() -> None:
    from scans.played import Played

    model = Played([torch.zeros(1, 9, 32, dtype=torch.float64)] * 3)
    tokens = gaussian(6, 1, 32) + 0.3 * gaussian(6, 9, 32)
    options = {"blocks": "blocks.*", "attention": False}
    one, many = ds.scan(model, tokens, **options), ds.scan(model, list(tokens.split(2)), **options)
    torch.testing.assert_close(one.sequences["sequences_apart"], many.sequences["sequences_apart"])


@over("short", [2, 3])
def test_short_sequences_are_no_line(short: int) -> None:
    """Two tokens always lie on one, whatever the mean length of the batch is."""
    tokens, mask = gaussian(4, 20, 48), torch.ones(4, 20, dtype=torch.bool)
    mask[:2, short:] = False
    scan = played([tokens, 1.1 * tokens, 1.2 * tokens], mask=mask)
    assert scan.verdict.status == "diverse" and scan.sequences["tokens"][0].tolist() == [short, short, 20, 20]


def test_unrelated_tokens_of_any_lengths_blame_nobody() -> None:
    tokens, mask = gaussian(4, 40, 48), torch.ones(4, 40, dtype=torch.bool)
    mask[:2, 4:] = False
    assert played([tokens, 1.1 * tokens], mask=mask).verdict.shares == {}


def test_advice_does_not_say_that_nothing_is_to_be_done() -> None:
    """A forecast follows all tokens, and the massive one hides that the others are the same."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True), 4)
    tokens = gaussian(3, 1, 32).expand(3, 24, 32).float() * (1 + 1e-3 * torch.randn(3, 24, 32))
    tokens[:, 0] = 200 * torch.randn(3, 32)
    verdict = ds.scan(model.eval(), tokens).verdict
    assert verdict.fix_needed and ": ;" not in verdict.advice and "DeEscalate" in verdict.advice


@over("points", [2, 3, 4])
def test_points_with_some_noise_are_points(points: int) -> None:
    end = gaussian(3, points, 64)[:, torch.arange(64) % points] + 0.1 * gaussian(3, 64, 64)
    assert played(towards(end)).verdict.status == "collapsed"


@over("noise", [0.05, 0.1])
def test_a_line_with_noise_is_named(noise: float) -> None:
    end = gaussian(3, 64, 1) * gaussian(3, 1, 64) + noise**0.5 * gaussian(3, 64, 64)
    verdict = played(towards(end)).verdict
    assert verdict.status == "escalating" and "directions" in verdict.text


@over("n", [3, 5, 6, 10, 40])
@over("scale", [0.2, 1.0])
def test_an_offset_is_one_at_any_length_and_scale(n: int, scale: float) -> None:
    """Tokens that enter with the offset and shrink with it, and tokens that get it on the way."""
    tokens, offset = gaussian(2, n, 40), 20 * gaussian(40)
    entered = played([scale ** (i / 8) * (tokens + offset) for i in range(9)]).verdict
    added = played([tokens + i / 8 * offset for i in range(9)]).verdict
    for verdict in (entered, added):
        assert (
            verdict.status == "escalating" and not verdict.fix_needed and "a bias of the next layer" in verdict.advice
        )


def test_an_offset_that_grows_on_needs_a_fix() -> None:
    base, apart = common_and_apart(3, 32, 48)
    verdict = played([3.0**i * (base + 0.5**i * apart) for i in range(7)]).verdict
    assert verdict.status == "escalating" and verdict.fix_needed and "a quarter more blocks" in verdict.advice


@over("n", [4, 5, 8, 12, 16])
@over("times", [3.0, 4.5])
def test_a_larger_token_makes_no_line_and_no_points(n: int, times: float) -> None:
    end = gaussian(3, 1, 48) + 0.25 * gaussian(3, n, 48)
    end[:, 0] = times * gaussian(3, 48)
    verdict = played(towards(end)).verdict
    assert verdict.status in ("diverse", "escalating") and verdict.sequences_collapsed == 0
    assert "hide that" not in verdict.text  # no share of equal tokens, where there are none


def test_the_floor_tells_of_whom_it_speaks() -> None:
    end = gaussian(4, 24, 32)
    end[:2] = gaussian(2, 1, 32)
    end[:2, 3] = 50 * gaussian(2, 32)
    verdict = played(towards(end)).verdict
    assert verdict.status == "at the numerical floor"
    assert verdict.text.startswith("In 2 of 4 sequences all tokens (except outliers and massive ones) are the same")


def test_at_least_one_more_block_is_foreseen() -> None:
    base, apart = common_and_apart(2, 32, 32)
    verdict = played([base + math.sqrt(t) * apart for t in (3.0, 0.3, 0.03, 0.0102)]).verdict
    assert verdict.status == "escalating" and " 0 more blocks" not in verdict.text
