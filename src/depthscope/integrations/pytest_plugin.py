"""The pytest fixture depthscope_scan: a test that fails when the tokens of a model collapse.

pytest loads this module wherever depthscope is installed, so it imports nothing until a test asks for the fixture.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from depthscope.scans.record import Scan


class Scanner(Protocol):
    """What the fixture gives."""

    def __call__(
        self,
        model: Any,
        inputs: Any,
        *,
        min_diversity: float | None = None,
        verdict: str | Iterable[str] | None = None,
        against: "Scan | None" = None,
        tolerance: float | None = None,
        **choices: Any,
    ) -> "Scan": ...


@pytest.fixture
def depthscope_scan() -> Scanner:
    """A function that scans a model, fails the test where the scan does not pass a gate, and returns the scan.

    depthscope_scan(model, inputs, min_diversity=0.05): thresholds as for ds.gate, all else as for ds.scan.
    """

    def scan_and_gate(
        model: Any,
        inputs: Any,
        *,
        min_diversity: float | None = None,
        verdict: str | Iterable[str] | None = None,
        against: "Scan | None" = None,
        tolerance: float | None = None,
        **choices: Any,
    ) -> "Scan":
        from depthscope.gates.demands import demanded
        from depthscope.gates.gate import gate
        from depthscope.scans.scan import scan

        asked: dict[str, Any] = {"min_diversity": min_diversity, "verdict": verdict, "tolerance": tolerance}
        demanded(**asked, compared=against is not None)
        found = scan(model, inputs, **choices)
        held = gate(found, against=against, **asked)
        if not held.passed:
            pytest.fail(str(held), pytrace=False)
        return found

    return scan_and_gate
