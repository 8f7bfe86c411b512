"""Memory that serves again: only for what fits into it."""

import torch

from depthscope.metrics.scratch import Scratch


def test_memory_serves_again_where_it_fits_and_is_of_the_same_kind() -> None:
    scratch, narrow = Scratch(), torch.zeros(0)
    first = scratch.take("a", (3, 4), narrow)
    again = scratch.take("a", (2, 5), narrow)
    assert first.shape == (3, 4) and again.shape == (2, 5) and again.data_ptr() == first.data_ptr()
    assert scratch.take("b", (2, 5), narrow).data_ptr() != first.data_ptr()
    assert scratch.take("a", (2, 5), narrow.double()).dtype == torch.float64
    larger = scratch.take("a", (5, 5), narrow.double())
    assert larger.shape == (5, 5) and scratch.take("a", (1, 25), larger).data_ptr() == larger.data_ptr()
    assert scratch.take("a", (1,), torch.zeros(0, device="meta")).device.type == "meta"
