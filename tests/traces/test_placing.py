"""Whether attention over fewer tokens than there are is over windows of them."""

import torch

from depthscope.traces.placing import _windows
from loops import over


@over(
    "front, tokens, n, found",
    [
        ((8, 3), (2, 16), 4, ([0, 1], 8)),  # all 32 tokens in 8 windows of 4
        ((8, 3), (2, 17), 4, ([0, 1], 8)),  # class tokens are left out
        ((2, 4, 3), (2, 4, 4), 4, ([0, 1, 2], 8)),
        ((2, 3, 4), (2, 4, 4), 4, ([0, 2, 1], 8)),  # heads before windows
        ((24,), (2, 16), 4, ([0], 8)),  # folded: 8 windows times 3 heads
        ((4, 3), (2, 16), 2, None),  # a quarter of the tokens
        ((2, 3), (2, 16), 8, None),  # no more windows than sequences
        ((7, 3), (2, 16), 4, None),  # not as many in each sequence
    ],
)
def test_windows_hold_most_of_the_tokens(front: tuple, tokens: tuple, n: int, found: tuple | None) -> None:
    assert _windows(front, torch.zeros(*tokens, 8), n) == found
