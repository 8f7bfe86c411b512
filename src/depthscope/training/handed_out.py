"""Calls in the hands of an executor: any that is a concurrent.futures.Executor. Those of lost workers are repeated."""

import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

from depthscope.errors import UsageError

TRIES = 3  # times that a call is handed out in all, when workers are lost with it
Key = TypeVar("Key")
_numbers = count()  # no two calls are equal: Dask would take the second for the first, and give its result again


@dataclass(frozen=True)
class Lost:
    """What a call came to whose workers were lost TRIES times."""

    why: str


@dataclass(frozen=True)
class Call(Generic[Key]):
    """A call by its key; its function takes a number before the arguments. tries: how often it was handed out."""

    key: Key
    label: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    tries: int = 1


class HandedOut(Generic[Key]):
    """The calls that an executor has.

    A function that is handed out gives back what goes wrong in it as a value. So an exception of its Future means that
    the function did not come to its end: the worker died, the connection broke, a queue ran out of time.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._calls: dict[Future[Any], Call[Key]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def submit(self, call: Call[Key]) -> None:
        try:
            future = self._executor.submit(call.function, next(_numbers), *call.arguments)
        except RuntimeError as error:  # shut down or broken, which is a RuntimeError too
            raise UsageError(
                f"executor: must take jobs; {type(self._executor).__name__} says: {error}. "
                "Give one that is open, and the same folder: what is done is not done again."
            ) from error
        self._calls[future] = call

    def running(self) -> Iterator[tuple[Key, bool]]:
        """The keys of all calls, and whether the executor says that they run; some never say."""
        for future, call in self._calls.items():
            yield call.key, future.running()

    def ended(self, seconds: float) -> list[tuple[Key, Any]]:
        """The results that came since this was last called; waits for the first, but no longer than these seconds."""
        if not self._calls:
            time.sleep(seconds)
        over = wait(self._calls, timeout=seconds, return_when=FIRST_COMPLETED).done
        found = ((call, _result(future)) for future, call in [*self._calls.items()] if future in over)
        results = []
        for call, result in [*found]:
            if not isinstance(result, Lost):
                results.append((call.key, result))
            elif call.tries < TRIES:
                self._again(call, result)
            else:
                why = f"lost with its worker {TRIES} times, at last: {result.why}"
                results.append((call.key, Lost(why)))
        for future in over:
            del self._calls[future]
        return results

    def stop(self, seconds: float) -> None:
        """Take back what has not begun, and wait for what has; whoever does it must have been told otherwise."""
        for future in self._calls:
            future.cancel()
        wait(self._calls, timeout=seconds)
        self._calls.clear()

    def _again(self, call: Call[Key], lost: Lost) -> None:
        warnings.warn(
            f"{call.label}: its worker was lost ({lost.why}); the job is submitted again, try {call.tries + 1} "
            f"of {TRIES}.",
            stacklevel=3,
        )
        self.submit(Call(call.key, call.label, call.function, call.arguments, call.tries + 1))


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except CancelledError:
        return Lost("cancelled by the executor")
    except Exception as error:  # every engine has its own for a worker that is gone
        said = " ".join(str(error).split())[:300]
        return Lost(f"{type(error).__name__}: {said}" if said else type(error).__name__)
