"""How long the other sequence is that tells the token axis."""

import torch

from depthscope.traces.token_axis import _other_length
from loops import over


@over(
    "shape, size, length",
    [((2, 5), 5, 4), ((4, 5), 5, 3), ((4, 3), 5, 6), ((9, 2), 2, 3), ((5, 4, 4), 5, 3), ((5,), 5, 4)],
)
def test_it_is_the_length_of_nothing_else(shape: tuple[int, ...], size: int, length: int) -> None:
    kept = _other_length(size, [torch.zeros(shape)])
    assert kept == [*range(min(length, size)), *[size - 1] * (length - size)]
