"""torch's encoder without its fast path, which hides blocks and nests padded batches."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _SlowPath:
    """Whether torch's fast path was on, and how many want it off: fixes end in the order in which they began."""

    def __init__(self) -> None:
        self.wanted, self.was_on = 0, True

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """nn.TransformerEncoder runs its layers one by one."""
        if not self.wanted:
            self.was_on = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        self.wanted += 1
        try:
            yield
        finally:
            self.wanted -= 1
            if not self.wanted:
                torch.backends.mha.set_fastpath_enabled(self.was_on)


slow_path = _SlowPath()
