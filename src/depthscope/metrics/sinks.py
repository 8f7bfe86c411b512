"""How much attention the first token draws to itself, and how much it would draw by chance."""

import torch
from torch import Tensor

from depthscope.metrics.pattern import Pattern, pattern_of
from depthscope.registry import metric

NOTHING = 1e-9  # a weight below this is none


def sink_of(pattern: Pattern) -> tuple[Tensor, Tensor]:
    """sink_mass and sink_chance for each head of a part, (size,) each, from what every token receives, 1^T P."""
    if pattern.m > pattern.n and _sees_the_past(pattern):
        return _after_memory(pattern)
    count = pattern.count().double().squeeze(-1)
    query = torch.zeros(pattern.size, dtype=torch.long, device=pattern.device)
    if pattern.mask is not None:
        query = pattern.mask.int().argmax(-1)  # the first token that is no padding
    square = pattern.n == pattern.m
    key = query if square else torch.zeros_like(query)
    received = pattern.received.gather(-1, key[:, None]).squeeze(-1)
    mass = (received - _corner(pattern, query, key)).clamp_min(0.0) / (count - 1)
    if square and (pattern.is_triangular() or _nothing_after(pattern)):
        harmonic = (1 / torch.arange(1, pattern.n + 1, dtype=torch.float64, device=pattern.device)).cumsum(0)
        return mass, (harmonic[count.long() - 1] - 1) / (count - 1)
    return mass, 1 / (count if square else torch.full_like(count, pattern.m))


def _nothing_after(pattern: Pattern) -> bool:
    """Whether a mask of finite numbers closes the future: weights there are no more than rounding."""
    later = ((P[:, 0, cut.start + 1 :], P, cut.start + 1) for cut, P in pattern.blocks())  # most show it in one row
    return all(_is_nothing(row) and _is_nothing(P.triu(start)) for row, P, start in later)


def _is_nothing(weights: Tensor) -> bool:
    return weights.numel() == 0 or float(weights.max()) < NOTHING


def _sees_the_past(pattern: Pattern) -> bool:
    """Whether P (n, m) is the last n rows of a causal matrix: query t sees no key after M + t, M = m - n."""
    M = pattern.m - pattern.n
    return not any(bool(P.triu(cut.start + M + 1).any()) for cut, P in pattern.blocks())


def _after_memory(pattern: Pattern) -> tuple[Tensor, Tensor]:
    """The same where the first key lies in a memory before the queries, which are all later than it."""
    keep = torch.ones(pattern.size, pattern.n, dtype=torch.bool, device=pattern.device)
    keep = keep if pattern.mask is None else pattern.mask
    t, count = keep.cumsum(-1), keep.sum(-1)
    chance = torch.where(keep, 1 / (pattern.m - pattern.n + t).double(), 0.0).sum(-1) / count
    return pattern.received[:, 0] / count, chance


def _corner(pattern: Pattern, query: Tensor, key: Tensor) -> Tensor:
    """P at one query and one key of each head, (size,); rows after the last of these queries are never made."""
    head, last = torch.arange(pattern.size, device=pattern.device), int(query.max())
    corner = torch.zeros(pattern.size, dtype=torch.float64, device=pattern.device)
    for cut, P in pattern.blocks():
        row = (query - cut.start).clamp(0, P.shape[-2] - 1)
        here = (cut.start <= query) & (query < cut.stop)
        corner = torch.where(here, P[head, row, key].double(), corner)
        if last < cut.stop:
            break
    return corner


@metric(
    "attention",
    takes=("P",),
    parts=("sink_mass", "sink_chance"),
    bounds=(0, 1),
    invariant=("padding",),
    formula=sink_of,
)
def attention_sink(P: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention that later tokens give to the first one, and what it would get if all were looked at alike.

    sink_mass = (1 / (n-1)) sum_{t>=2} P_t1,    sink_chance = (1 / (n-1)) sum_{t>=2} 1/t

    P (..., h, n, m) -> two tensors (..., h), in [0, 1]; sink_chance is 1/m where P is not causal. The first token is
    the first that is no padding. Where P is causal with M = m - n keys of earlier tokens in front, the first is among
    these and the means are over all queries, sink_chance = (1 / n) sum_t 1/(M + t).
    A head is a sink when its mass is far above chance: above 0.3 in Gu et al. 2024.

    Examples:
        >>> P = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])  # (n, n), rows sum to 1
        >>> tuple(round(float(value), 3) for value in ds.metrics.attention_sink(P))
        (0.25, 0.333)
    """
    pattern, batch = pattern_of(P, mask=mask, where="attention_sink")
    pairs = [sink_of(part) for part in pattern.pieces()]
    mass, chance = (torch.cat(column).reshape(batch) for column in zip(*pairs, strict=True))
    return mass, chance
