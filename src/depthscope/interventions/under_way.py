"""Whether a call of a model is still under way: hooks are not told when it is interrupted from outside (Ctrl-C)."""

import sys
from typing import Any

from torch.nn.modules import module as calls


class UnderWay:
    """The call of a module whose hook runs now, known by its frame."""

    def __init__(self) -> None:
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != calls.__file__:
            frame = frame.f_back
        self._frame = frame

    def is_over(self) -> bool:
        """Whether the call has been left, by whatever way; False where it cannot be known."""
        if self._frame is None:
            return False
        try:
            self._frame.clear()  # refused as long as it runs
        except RuntimeError:
            return False
        return True

    def forget(self) -> None:
        """Let go of the frame, and of all that it holds."""
        self._frame = None
