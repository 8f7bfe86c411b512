"""The coverage run through an executor: a case in a process of its own, within its time, and lost ones are told."""

import sys
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from tools.coverage import run
from tools.coverage.case import all_cases
from tools.coverage.checks import Finding, check
from tools.coverage.one_case import findings

CASE = all_cases()["sdpa"]


@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_a_process_of_its_own_finds_the_same_and_has_a_limit() -> None:
    assert findings(0, "sdpa", ("scan",)) == check(CASE, ("scan",))
    assert findings(0, "sdpa", ("scan", "fix"), limit=0.0) == dict.fromkeys(
        ("scan", "fix"), Finding("crash", "more than 0 s")
    )


class Fake(Executor):
    """Does no case: gives a finding, or loses the worker."""

    def __init__(self, *lost: str) -> None:
        self.lost = lost

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        _, name, verbs = args
        future: Future[Any] = Future()
        if fn is not findings or name in self.lost:
            future.set_exception(OSError("gone"))
        else:
            future.set_result({verb: Finding("right", name) for verb in verbs})
        return future


def test_findings_come_in_the_order_of_the_cases_and_a_lost_one_is_a_crash() -> None:
    cases = [all_cases()[name] for name in ("sdpa", "bert", "gpt2")]
    with pytest.warns(UserWarning, match=r"bert: its worker was lost \(OSError: gone\)"):
        found = run.run(cases, ("scan",), Fake("bert"))
    assert [*found] == ["sdpa", "bert", "gpt2"] and found["gpt2"] == {"scan": Finding("right", "gpt2")}
    assert found["bert"]["scan"] == Finding("crash", "lost with its worker 3 times, at last: OSError: gone")
