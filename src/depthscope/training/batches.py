"""Seeds and shares: what decides which part of the data a step and a process take."""

from torch import Tensor


def seeded(*numbers: int) -> int:
    """One seed from several numbers; different numbers give different seeds for all we can tell."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number + 1) * 6_364_136_223_846_793_005 % 2**63
    return mixed


def rows_of(count: int, index: int, parts: int) -> slice:
    """The rows of part number `index` of a batch of `count` cut in `parts`, which need not be equal."""
    return slice(count * index // parts, count * (index + 1) // parts)


def share(inputs: Tensor, targets: Tensor, index: int, parts: int) -> tuple[Tensor, Tensor, float]:
    """Part number `index` of a batch cut in `parts`, and how much its sums weigh.

    A part without rows is one row of weight 0: every process must take part when gradients are exchanged.
    """
    mine = rows_of(len(targets), index, parts)
    if mine.start == mine.stop:
        return inputs[:1], targets[:1], 0.0
    return inputs[mine], targets[mine], 1.0
