"""Numbers that were seen in a running model, as circuits keep them."""

import torch
from torch import Tensor


def wide(seen: Tensor) -> Tensor:
    """float64 on the CPU, a copy of its own: models write in place, some devices have no float64 (MPS), and what is
    computed from it meets constants. Moved first and widened there."""
    return seen.detach().cpu().to(torch.float64, copy=True)
