"""A segment memory taken apart, put together, cut by rows, and refused."""

import pytest
import torch

from depthscope.errors import ShapeError, UsageError
from depthscope.models.segment_memory import SegmentMemory, last_tokens


def memory(batch: int = 3) -> SegmentMemory:
    read = [torch.randn(batch, 5, 4) for _ in range(2)]
    calls = [[torch.randn(batch, 5, 4), torch.randn(batch, 5, 1)] for _ in range(11)]
    return SegmentMemory(read, {"PairNorm@block_out": calls, "DeEscalate@ffn_in#2": []})


def equal(a: SegmentMemory, b: SegmentMemory) -> bool:
    first, second = a.tensors(), b.tensors()
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


def test_there_and_back() -> None:
    kept = memory()
    again = SegmentMemory.from_tensors(kept.tensors())
    assert equal(again, kept) and again.length == 5 and again.batch == 3
    assert set(again.means) == set(kept.means) and again.means["DeEscalate@ffn_in#2"] == []
    for a, b in zip(again.means["PairNorm@block_out"], kept.means["PairNorm@block_out"], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert all(len(tensor) == 3 for tensor in kept.tensors().values())


def test_order_of_names_does_not_matter() -> None:
    kept = memory()
    for order in (str, lambda name: name[::-1]):  # as files sort them: call 10 before call 2
        shuffled = {name: kept.tensors()[name] for name in sorted(kept.tensors(), key=order)}
        assert equal(SegmentMemory.from_tensors(shuffled), kept)


def test_rows_and_joined() -> None:
    kept = memory()
    parts = [kept.rows(slice(0, 1)), kept.rows(slice(1, 3))]
    assert [part.batch for part in parts] == [1, 2]
    assert equal(SegmentMemory.joined(parts), kept)


def test_last_tokens_are_copies() -> None:
    before, X = torch.randn(2, 4, 3), torch.randn(2, 3, 3, requires_grad=True)
    both = torch.cat([before, X], 1).detach()
    for keep in (1, 3, 5, 7, 9):
        held = last_tokens(before, X, keep)
        assert torch.equal(held, both[:, -keep:]) and not held.requires_grad
        assert held.untyped_storage().nbytes() == held.nbytes
    assert torch.equal(last_tokens(None, X, 2), X[:, -2:])


def test_what_is_no_memory() -> None:
    with pytest.raises(UsageError, match="names must be those of tensors"):
        SegmentMemory.from_tensors({"read.1": torch.zeros(1, 1, 1)})
    with pytest.raises(UsageError, match="at least one"):
        SegmentMemory.joined([])
    with pytest.raises(UsageError, match="2 that hold different tensors"):
        SegmentMemory.joined([memory(), SegmentMemory(memory().read)])
    shorter = {name: tensor[:, :3] for name, tensor in memory().tensors().items()}
    with pytest.raises(ShapeError, match="equally many tokens; got 5, 3"):
        SegmentMemory.joined([memory(), SegmentMemory.from_tensors(shorter)])
    for rows in (1, [0, 2], torch.tensor([True, False, True])):
        with pytest.raises(UsageError, match=r"must be a slice, .* Give slice\(i, i \+ 1\)"):
            memory().rows(rows)
