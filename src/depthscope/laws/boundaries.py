"""Where blocks begin and end as a model runs: the modules that tokens enter and leave by, or sums after them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from depthscope.errors import ForecastError
from depthscope.laws.tensor import LawTensor
from depthscope.traces.operations import Operation
from depthscope.traces.spans import Span
from depthscope.traces.watcher import Watched


@dataclass(frozen=True)
class Boundary:
    """A block: the path of the module that its tokens enter by, and of the one after which it ends.

    sums: how many sums with the stream come after that module before the block is over, 0 where it returns the stream.
    """

    entry: str
    exit: str
    sums: int = 0


def by_modules(paths: Iterable[str]) -> list[Boundary]:
    """Blocks that are modules which take and return the stream."""
    return [Boundary(path, path) for path in paths]


def by_spans(spans: list[Span]) -> list[Boundary]:
    """Blocks as they were seen to run: where they are no modules, sums in the code around bring branches back."""
    functional = next((span.block for span in spans if not span.entry or not (span.exit or span.last)), None)
    if functional is not None:
        raise ForecastError(
            f"blocks must be made of modules to be followed by laws; {functional} is made of functions alone. Give "
            "what counts by hand, ds.forecast(depth=, n=, d=, h=, ...), or calibrate on a scan, ds.forecast(scan)."
        )
    return [Boundary(span.entry, span.exit or span.last, span.sums) for span in spans]


class Sums:
    """A listener that tells of every sum of laws."""

    everything = False

    def __init__(self, tell: Callable[[LawTensor], None]) -> None:
        self.tell = tell

    def modules(self) -> Iterable[Watched]:
        return ()

    def operation(self, op: Operation) -> Any:
        result = op.run()
        if op.role == "sum" and isinstance(result, LawTensor) and all(isinstance(x, LawTensor) for x in op.args[:2]):
            self.tell(result)
        return result

    def closed(self, failed: bool) -> None: ...
