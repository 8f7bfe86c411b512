"""Attentions that belong together: sequences that were computed one by one, heads that were."""

import pytest

from depthscope.scans.attention_reader import AttentionNumbers
from depthscope.scans.together import _as_one, of_sequences
from depthscope.traces.log import Attention


def numbers(*rows: list[float], **more) -> AttentionNumbers:  # type: ignore[no-untyped-def]
    return AttentionNumbers(values={"delta": list(rows)}, sequences=len(rows), **more)


def test_parts_of_a_batch_have_all_sequences_and_the_largest_doubts() -> None:
    one = numbers([0.1], [0.2], residuals={"delta": 1e-6}, leak=0.1, causal=True)
    other = numbers([0.3], residuals={"delta": 1e-3}, leak=0.2, causal=True)
    found = of_sequences([one, other])
    assert found.values == {"delta": [[0.1], [0.2], [0.3]]} and found.sequences == 3
    assert (found.residuals, found.leak, found.causal) == ({"delta": 1e-3}, 0.2, True)
    assert of_sequences([one, numbers([0.4], causal=False)]).causal is False
    assert of_sequences([one, numbers([0.4])]).causal is None


def test_heads_of_one_are_heads_of_as_many_sequences() -> None:
    def attention(*rows: list[float]) -> Attention:
        return Attention("block", 1, 4, numbers(*rows), "self", False, 0)

    found = _as_one([attention([0.1], [0.2]), attention([0.3], [0.4])])
    assert found.numbers.values == {"delta": [[0.1, 0.3], [0.2, 0.4]]} and found.numbers.sequences == 2
    with pytest.raises(ValueError, match="zip"):  # never mixed up
        _as_one([attention([0.1], [0.2]), attention([0.3])])
