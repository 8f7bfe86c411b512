"""Rows of text that go on from step to step."""

import pytest
import torch

from depthscope.errors import UsageError
from depthscope.training.recipe import Recipe
from depthscope.training.text_batches import TextBatches

IDS = torch.arange(1000)  # a token is its own place


def batches(ids=IDS, segment=10, **settings):
    return TextBatches(ids, segment, Recipe(**{"batch": 4, "seed": 3} | settings), torch.device("cpu"))


def test_targets_are_the_tokens_that_follow_and_rows_go_on():
    source = batches()
    tokens, targets = source.at(0)
    assert tokens.shape == targets.shape == (4, 10)
    for step in range(1, source.steps):
        assert torch.equal(targets, tokens + 1)
        later, targets = source.at(step)
        assert torch.equal(later[:, 0], tokens[:, -1] + 1)
        tokens = later


def test_a_pass_reads_nearly_all_and_nothing_twice():
    source = batches()
    read = torch.cat([source.at(step)[0] for step in range(source.steps)], 1)
    assert len(read.flatten().unique()) == read.numel() >= 960
    assert [step for step in range(3 * source.steps) if source.fresh(step)] == [0, source.steps, 2 * source.steps]


def test_passes_and_seeds_start_at_other_places_and_the_same_again():
    source, other = batches(), batches(seed=4)
    starts = {int(source.at(turn * source.steps)[0][0, 0]) for turn in range(8)}
    assert len(starts) > 3
    assert any(int(other.at(turn * source.steps)[0][0, 0]) not in starts for turn in range(8))
    assert torch.equal(batches().at(37)[0], source.at(37)[0])


def test_a_text_too_short_for_its_rows_is_refused():
    batches(torch.arange(4 * 11))
    with pytest.raises(UsageError, match=r"4 rows of 10 tokens and one to follow must fit .* it has 43 tokens"):
        batches(torch.arange(4 * 11 - 1))


def test_text_cannot_be_augmented():
    with pytest.raises(UsageError, match="only images can be augmented; got augment='flip_crop'"):
        batches(augment="flip_crop")
