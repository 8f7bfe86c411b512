"""Who works on what, when several machines share a storage: signs of life, and when to give somebody up."""

import os
import socket
import time
from typing import Any

BEAT = 20.0  # seconds between signs of life
GONE = 120.0  # seconds without one after which a worker is given up; clocks of machines may differ by less than that


def worker() -> dict[str, Any]:
    """A sign of life of this process."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "seen": time.time()}


def gone(other: dict[str, Any]) -> bool:
    """Whether the one who gave a sign is there no more: on this machine by its process, on others by its silence."""
    if other.get("host") == socket.gethostname():
        try:
            os.kill(other["pid"], 0)  # signal 0 asks whether there is such a process, and sends nothing
        except ProcessLookupError:
            return True
        except PermissionError:  # it is there, and somebody else's
            pass
        return False  # however long it was silent: a machine that slept or swapped goes on
    return time.time() - other["seen"] > GONE
