"""Numbers of blocks are told as people say them."""

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
