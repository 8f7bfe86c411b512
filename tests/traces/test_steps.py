"""One word for where the norms of a whole model stand."""

from types import SimpleNamespace
from typing import Any

from depthscope.traces.steps import placement_of
from loops import over


@over(
    "blocks, word",
    [
        (["pre pre", "pre pre"], "pre"),
        (["none pre", "pre pre"], "pre"),  # the first branch reads the norm of the embeddings
        (["pre none", "pre pre"], "mixed: pre x 3, none x 1"),
        (["none pre", "none pre"], "mixed: none x 2, pre x 2"),
        (["none pre", "post pre"], "mixed: pre x 2, none x 1, post x 1"),
        (["none", "pre"], "pre"),
        (["none"], "none"),
        ([""], "unknown"),
    ],
)
def test_one_branch_without_a_norm_at_the_very_start_is_no_mixture(blocks: list[str], word: str) -> None:
    anatomies: list[Any] = [SimpleNamespace(steps=b.split(), placements=b.split()) for b in blocks]
    assert placement_of(anatomies) == word
