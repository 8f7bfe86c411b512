"""Numbers of blocks are told as people say them, and a verdict says what its numbers are worth."""

from dataclasses import replace

import torch
from small_families import ids, llama

import depthscope as ds
from depthscope.depths.record import Removal
from depthscope.depths.words import numbered
from loops import over


@over(
    "blocks, words",
    [
        ([4], "block 4"),
        ([2, 1], "blocks 1 and 2"),
        ([1, 4, 5], "blocks 1, 4 and 5"),
        ([3, 7, 22, 23, 24], "blocks 3, 7 and 22 to 24"),
        ([1, 2, 3], "blocks 1 to 3"),
    ],
)
def test_numbers_of_blocks_in_words(blocks: list[int], words: str) -> None:
    assert numbered(blocks) == words


def test_a_verdict_says_what_is_gained_and_what_is_not_sure() -> None:
    found = ds.depth(llama().model, ids(), what=["prices"])
    assert found.prices is not None
    dear = replace(found, removal=Removal((2,), 1.0, 1.5, 1.0, 0.75))
    assert "Removing block 2 costs 0.5 nats" in dear.verdict and "saves 25%" in dear.verdict
    assert "Removing block 2 gains 0.5 nats" in replace(found, removal=Removal((2,), 1.5, 1.0, 1.0, 0.75)).verdict
    broken = replace(found, removal=Removal((2,), 1.0, torch.nan, 1.0, 0.75))
    assert "gains" not in broken.verdict and "costs nan" in broken.verdict
    unknown = replace(found.prices, skip=torch.tensor([torch.nan, 3.0, 2.0, 4.0]))
    assert "block 3 is the cheapest" in replace(found, prices=unknown).verdict
    for error, is_said in ((0.2, True), (0.001, False)):
        prices = replace(found.prices, error=torch.tensor([torch.nan, error, error, error]))
        assert ("tell prices to ± 0.2" in replace(found, prices=prices).verdict) == is_said
