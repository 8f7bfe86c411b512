"""Which keys attention never looks at: padding, whoever made its mask and whatever it is called.

A key is unseen when no query of its sequence gives it any weight. A mask closes the same keys in every head, so heads
that disagree do not show padding but attention that is sparse by content, and so does a mask of the best keys
(DeepSeek-V3.2), which opens and closes a key by turns, otherwise in every sequence (sparse_by_content). Queries that
are padding themselves may have nothing left to see, and then weigh all keys alike: they are not asked.

A causal query sees itself, so that the last key of a causal sequence is seen by the last query, and is no padding.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.traces.attention import AttentionSeen, within_reach
from depthscope.traces.identity import Known

NO_WEIGHT = 1e-30  # what a softmax leaves of a score that a mask has closed


@dataclass(frozen=True, eq=False)
class KeysUnseen:
    """What one self-attention leaves unseen, (front, .., n): sequences or sequences times heads, perhaps 1 for all."""

    order: int
    unseen: Tensor

    def by_sequence(self, batch: int, n: int) -> Tensor | None:
        """(B, n), True for unseen keys; None where this attention works on other tokens."""
        found = self.unseen
        if found.shape[-1] != n or (found.shape[0] != 1 and found.shape[0] % batch):
            return None
        found = found.reshape(1 if found.shape[0] == 1 else batch, -1, n)
        alike = bool((found == found[:, :1]).all())
        found = found[:, 0] if alike else torch.zeros_like(found[:, 0])
        found = found & ~found.all(-1, keepdim=True)  # a sequence of padding alone tells nothing
        return found.expand(batch, n)


@dataclass
class KeysMet:
    """The self-attentions of one pass, in order. A mask that many blocks share is read once."""

    found: list[KeysUnseen] = field(default_factory=list)
    _none: dict[Any, Tensor] = field(default_factory=dict)  # unseen, by the number of keys
    _masks: Known[tuple[int, Tensor]] = field(default_factory=Known)  # axes of the queries, unseen

    def add(self, order: int, seen: AttentionSeen) -> None:
        """Read off what an attention that just ran leaves unseen; nothing is told by cross-attention."""
        if seen.queries != seen.keys or seen.keys < 2:
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            unseen = self._without_mask(seen) if seen.P is None else _clean(*_of_pattern(seen.P))
            if unseen is None:
                unseen = self._by_mask(seen)
        self.found.append(KeysUnseen(order, unseen))

    def _without_mask(self, seen: AttentionSeen) -> Tensor | None:
        """Nothing, (1, 1, n), where scaled_dot_product_attention has no mask or bias; None where it has one."""
        if seen.bias is not None and seen.q is not None and not seen.causal:
            return None
        device = None if seen.q is None else seen.q.device
        if (seen.keys, device) not in self._none:
            self._none[seen.keys, device] = torch.zeros(1, 1, seen.keys, dtype=torch.bool, device=device)
        return self._none[seen.keys, device]

    def _by_mask(self, seen: AttentionSeen) -> Tensor:
        shape, known = (seen.q.ndim, seen.keys), self._masks.find(seen.bias)  # type: ignore[union-attr]
        if known is not None and known[0] == shape:
            return known[1]
        unseen = _clean(*_of_mask(seen))
        self._masks.add(seen.bias, (shape, unseen))  # type: ignore[arg-type]
        return unseen


def _clean(may_see: Tensor, unseen: Tensor) -> Tensor:
    """Unseen keys; none where they are unseen because others were chosen."""
    chosen = bool(unseen.any()) and sparse_by_content(may_see, unseen)
    return torch.zeros_like(unseen) if chosen else unseen


def agreed(found: list[KeysUnseen], batch: int, n: int) -> Tensor | None:
    """(B, n), True for keys that every one of these attentions leaves unseen, where they agree; None if there is none.

    Attentions that leave different keys unseen choose by content: then all keys count as seen.
    """
    different = {id(one.unseen): one for one in found}  # blocks with one mask have one tensor
    each = [unseen for one in different.values() if (unseen := one.by_sequence(batch, n)) is not None]
    if not each:
        return None
    alike = all(torch.equal(unseen, each[0]) for unseen in each[1:])
    return each[0] if alike else torch.zeros_like(each[0])


def sparse_by_content(may_see: Tensor, unseen: Tensor) -> bool:
    """Whether keys are unseen because others were chosen; may_see (.., n or 1, n), unseen (.., n).

    Windows, causal masks and padding let a key be seen by queries in a row, and positions alone the same keys in every
    sequence. A choice does neither. Queries that are padding are not asked: each repeats what the one before it sees.
    Nor are those that see everything (a global token). One sequence alone with its unseen keys in one run at an end is
    more likely padded.
    """
    n = may_see.shape[-1]
    if may_see.shape[-2] != n:
        return False
    seen, hidden = may_see.reshape(-1, n, n), unseen.expand(may_see.shape[:-1]).reshape(-1, n)
    passed = hidden | (seen | hidden.unsqueeze(1)).all(-1)
    last_real = torch.where(passed, 0, torch.arange(n, device=seen.device)).cummax(-1).values
    last_real = last_real.maximum((~passed).int().argmax(-1, keepdim=True))  # before the first, it is the first
    rows = seen.gather(1, last_real.unsqueeze(-1).expand_as(seen))
    begins = rows[:, 1:] & ~rows[:, :-1]
    in_turns = bool((begins.sum(1) + rows[:, 0] > 1).any())
    real = ~(hidden | hidden[:1])
    both = real.unsqueeze(-1) & real.unsqueeze(-2)
    differs = bool(((seen != seen[:1]) & both).any())
    at_an_end = bool(((hidden[:, 1:] != hidden[:, :-1]).sum(-1) <= 1).all())
    return in_turns and (differs or (len(seen) == 1 and not at_an_end))


def _of_mask(seen: AttentionSeen) -> tuple[Tensor, Tensor]:
    """By the mask or bias of scaled_dot_product_attention."""
    bias, n = seen.bias, seen.keys
    assert bias is not None and seen.q is not None
    while bias.ndim < seen.q.ndim:
        bias = bias.unsqueeze(0)
    may_see = (bias if bias.dtype == torch.bool else within_reach(bias)).expand(*bias.shape[:-1], n)
    return may_see, _unseen(may_see, may_see.all(-1))


def _of_pattern(P: Tensor) -> tuple[Tensor, Tensor]:
    """By the weights P (.., n, n) themselves."""
    most = P.amax(-2)
    if bool(most.isnan().any()):  # of queries that see nothing
        P = P.nan_to_num(0.0)
        most = P.amax(-2)
    alike = P.amax(-1) == P.amin(-1)
    alone = P.diagonal(dim1=-2, dim2=-1) >= 1.0
    if not bool((alike | alone).any()):
        return P > NO_WEIGHT, most <= NO_WEIGHT
    return P > NO_WEIGHT, _unseen(P > NO_WEIGHT, alike)


def _unseen(may_see: Tensor, blind: Tensor) -> Tensor:
    """Keys (.., n) that no query sees but, perhaps, their own, which sees nothing else; may_see (.., n or 1, n).

    blind (.., n or 1): queries that see all keys alike. Where they are the ones that nobody else sees, they are padding
    that has nothing left to see. The last query of a causal sequence sees all keys too.
    """
    unseen, n = ~may_see.any(-2), may_see.shape[-1]
    if may_see.shape[-2] != n:
        return unseen
    itself = may_see.diagonal(dim1=-2, dim2=-1)
    alone = itself & (may_see.sum(-1) == 1) & (may_see.sum(-2) == 1)
    unseen = unseen | (alone & ~alone.all(-1, keepdim=True))
    if not bool(blind.any()):
        return unseen
    before = may_see[..., -2, :]  # what the last query but one sees
    looks_ahead = before[..., -1] | ((before == may_see[..., 0, :]).all(-1) & (n > 2))
    blind = blind.clone()
    blind[..., -1] &= looks_ahead
    by_others = ~(may_see & ~blind.unsqueeze(-1)).any(-2)
    some = blind.any(-1, keepdim=True) & ~blind.all(-1, keepdim=True)
    fits = some & (by_others == blind).all(-1, keepdim=True)
    return torch.where(fits, by_others, unseen)
