"""Whose turn it is: one thread at a time may call a model that is changed."""

import threading


class Turn:
    """Held by the thread whose pass runs, from before its first look at the model to its end.

    depth: how many passes of it have begun; while a model is tried before a pass, there is one inside another.
    """

    def __init__(self) -> None:
        self._lock, self._holder, self.depth = threading.Lock(), 0, 0

    @property
    def is_mine(self) -> bool:
        """Whether no other thread is in a pass."""
        return not self.depth or self._holder == threading.get_ident()

    def take(self) -> bool:
        """Whether this thread may go on; the turn is its own then."""
        with self._lock:
            if not self.is_mine:
                return False
            self._holder = threading.get_ident()
            self.depth += 1
            return True

    def leave(self, depth: int) -> None:
        """Go back to so many passes."""
        self.depth = max(0, depth)
