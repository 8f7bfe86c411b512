"""Numbers of attentions that belong together: heads that are computed one by one, sequences that are."""

from dataclasses import replace
from functools import reduce

from depthscope.scans.attention_reader import AttentionNumbers
from depthscope.scans.running import merged
from depthscope.traces.log import Add, Attention


def of_sequences(parts: list[AttentionNumbers]) -> AttentionNumbers:
    """One attention, of which every part had other sequences."""
    values = {name: [row for part in parts for row in part.values[name]] for name in parts[0].values}
    every = sum(part.sequences for part in parts)
    return replace(_worst(parts), values=values, sequences=every)


def heads_one_by_one(inside: list[Attention], adds: list[Add]) -> list[Attention]:
    """Attentions of one head each that follow each other before anything is added to the stream: heads of one."""
    groups: list[list[Attention]] = []
    for attention in inside:
        last = groups[-1][-1] if groups else None
        if last is not None and _go_together(last, attention, adds):
            groups[-1].append(attention)
        else:
            groups.append([attention])
    return [group[0] if len(group) == 1 else _as_one(group) for group in groups]


def _go_together(one: Attention, other: Attention, adds: list[Add]) -> bool:
    same = (one.kind, one.tokens, one.sink) == (other.kind, other.tokens, other.sink)
    alone = all(a.numbers is not None and a.numbers.heads == 1 for a in (one, other))
    return same and alone and not any(one.order < add.order < other.order for add in adds)


def _as_one(group: list[Attention]) -> Attention:
    parts: list[AttentionNumbers] = [attention.numbers for attention in group]
    values = {
        name: [[value for row in rows for value in row] for rows in zip(*(p.values[name] for p in parts), strict=True)]
        for name in parts[0].values
    }
    return replace(group[0], numbers=replace(_worst(parts), values=values))


def _worst(parts: list[AttentionNumbers]) -> AttentionNumbers:
    """What holds of all parts: the largest errors, and a direction only where all agree."""
    ways = {part.causal for part in parts}
    return replace(
        parts[0],
        residuals=reduce(lambda one, other: merged(one, other, max), (part.residuals for part in parts)),
        causal=False if False in ways else ways.pop() if len(ways) == 1 else None,
        leak=max(part.leak for part in parts),
        sampled=max(part.sampled for part in parts),
        without_tokens=any(part.without_tokens for part in parts),
    )
