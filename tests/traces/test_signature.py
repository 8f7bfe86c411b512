"""Calls of one kind have one signature, whatever their numbers; calls that may mix tokens otherwise have another."""

import torch
from torch import Tensor, nn

from depthscope.traces.signature import closes, signature_of, uniform
from loops import over

MODEL = nn.Linear(4, 4)
NUMBERS = {
    "numbers": torch.tensor([[0.5, 2.0]]),
    "zeros": torch.zeros(1, 2),
    "ones": torch.ones(1, 2),
    "no number": torch.full((1, 2), torch.nan),
    "none at all": torch.zeros(0, 2),
    "infinity": torch.full((1, 2), -torch.inf),
}


@over("name", NUMBERS)
def test_numbers_are_no_switches(name: str) -> None:
    assert uniform(NUMBERS[name]) is None and uniform(NUMBERS[name].to(torch.complex64)) is None
    assert signature_of(MODEL, (NUMBERS[name],), {}) == signature_of(MODEL, (NUMBERS["numbers"],), {})


def test_flags_and_kinds_are() -> None:
    kinds = [torch.zeros(2, 3).long(), torch.ones(2, 3).long(), torch.ones(2, 3).bool(), torch.tensor([[0, 1]])]
    assert [uniform(kind) for kind in kinds] == [0, 1, 1, None]
    assert len({signature_of(MODEL, (kind,), {}) for kind in kinds}) == 4
    assert uniform(torch.zeros(0, 2).long()) is None and uniform(torch.zeros(2, 2, device="meta").long()) is None


def test_masks_of_other_senses_close_otherwise() -> None:
    later = torch.ones(5, 5).triu(1)
    infinite = torch.full((5, 5), torch.inf)
    masks: list[Tensor] = [later, -later, 0 * later, later - 1, 1 - later, 9 * later, infinite, -infinite]
    assert len({closes(mask) for mask in masks}) == len(masks)
    assert closes(later) == closes(1.5 * later)  # coarsely: sign and power of two
