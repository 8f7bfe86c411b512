"""Where attention belongs: its axes in order (B, h, n, m), and whether it is over whole sequences, windows or others.

What is known of the tokens, (B, n, d) or (n, B, d) or (B, H, W, d), tells which axis of the weights is the batch.
"""

import math
from dataclasses import replace

from torch import Tensor

from depthscope.traces.attention import AttentionSeen

COVERED = 0.5  # windows hold at least this share of the tokens: a class token may be left out


def placed(
    seen: AttentionSeen, tokens: Tensor | None, *, reads_memory: bool = False, batch_first: bool = False
) -> AttentionSeen | None:
    """The attention with axes (B, h, n, .) and of its kind; None where it does not fit the tokens.

    reads_memory: since the last attention a matrix has read tokens from before the block, as keys of cross-attention.
    batch_first: attention that would make the first axis the tokens is not believed.
    """
    if tokens is None or seen.is_of_one(tokens):
        return None
    n, m = seen.queries, seen.keys
    if n == m and not reads_memory:
        batch = seen.batch_for(tokens)
        if batch is not None and not (batch_first and batch != tokens.shape[0]):
            return seen.folded(batch)
    sizes = list(tokens.shape[:-1])
    if n == m and len(sizes) > 2 and n == math.prod(sizes[1:]):
        order = _whole(seen.front, sizes[0])
        return None if order is None else _ordered(seen, *order)
    if n in sizes[batch_first:]:
        sizes.remove(n)
        order = _whole(seen.front, math.prod(sizes))
        other = reads_memory or m < n
        if order is None or (m != n and not other):
            return None
        kind = "cross" if other else seen.kind
        return replace(_ordered(seen, *order), kind=kind)
    if n == m and math.prod(tokens.shape[:-1]) > n > 1 and seen.kind == "self":
        order = _windows(seen.front, tokens, n)
        return None if order is None else replace(_ordered(seen, *order), kind="window")
    return None


Order = tuple[list[int], int]  # axes of the front, those of the batch first, and how many sequences these are


def _whole(front: tuple[int, ...], batch: int) -> Order | None:
    """The axes of the front with the batch first: where one is as long as the batch, the first such."""
    axes = list(range(len(front)))
    if batch in front:
        axes.remove(front.index(batch))
        return [front.index(batch), *axes], batch
    if not front:
        return ([], 1) if batch == 1 else None
    if len(front) == 1 and front[0] % batch == 0:  # heads folded into the batch
        return axes, batch
    return (axes, 1) if batch == 1 else None


def _windows(front: tuple[int, ...], tokens: Tensor, n: int) -> Order | None:
    """The axes with the windows of all sequences first: those that hold all tokens together, padding included."""
    every, batch = math.prod(tokens.shape[:-1]), tokens.shape[0]
    axes = list(range(len(front)))
    if len(front) == 1:  # (windows x heads, n, n)
        count = every // n
        fits = every % n == 0 and front[0] % count == 0
        return (axes, count) if fits and count >= 2 * batch else None
    leading = [front[0]] if len(front) == 2 else [math.prod(front[:2]), front[0] * front[2]]
    orders = [axes] if len(front) == 2 else [axes, [0, 2, 1, *axes[3:]]]
    fitting = [
        (abs(count * n - every), order, count)
        for count, order in zip(leading, orders, strict=True)
        if count % batch == 0 and count >= 2 * batch and count * n >= COVERED * every
    ]
    if not fitting:
        return None
    _, order, count = min(fitting, key=lambda one: one[0])
    return order, count


def _ordered(seen: AttentionSeen, order: list[int], batch: int) -> AttentionSeen:
    """Axes of the front in another order, folded to (B, h)."""
    ndim = len(seen.front)

    def fold(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x = x.permute(*order, ndim, ndim + 1)
        return x.reshape(batch, -1, *x.shape[-2:])

    bias = seen.bias
    if bias is not None:
        bias = fold(bias.expand(*seen.front, *bias.shape[-2:]))
    return replace(seen, P=fold(seen.P), q=fold(seen.q), k=fold(seen.k), bias=bias)


def is_over_memory(seen: AttentionSeen, tokens: Tensor) -> bool:
    """Whether all tokens look at themselves and at more: a memory of earlier ones."""
    return seen.kind == "self" and seen.keys > seen.queries and seen.queries in tokens.shape[:-1]


def is_plain(seen: AttentionSeen, tokens: Tensor) -> bool:
    """Whether a softmax over the last axis, (B, h, n, n) or (B h, n, n), can be nothing else, whoever uses it."""
    return seen.batch_for(tokens) is not None and (len(seen.front) == 1 or seen.front[1] != seen.queries)


def is_square(result: object, tokens: Tensor) -> bool:
    """Whether a tensor may be scores of all tokens: two of its axes are as long as one of the tokens'."""
    if not isinstance(result, Tensor) or result.ndim < 3:
        return False
    sizes = list(result.shape)
    return any(n > 1 and sizes.count(n) > 1 for n in tokens.shape[:-1])
