"""What paths of one length know, of a trained post-norm Tagger without feed-forward networks (Dong et al. 2021).

Two ways. As the paper does it (section 4): a few paths, drawn, each run as a network of its own. Exactly: all paths of
a length, with attention and norms as they are in the whole model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.models.block import SelfAttention
from depthscope.models.tagger import Tagger
from depthscope.theory.paths import Path, attend


def heads(attention: SelfAttention) -> tuple[Tensor, Tensor]:
    """W_V (h, d, d/h) and W_O (h, d/h, d) of every head."""
    W_O = attention.W_O
    assert W_O is not None
    W_V = attention.W.weight.T.unflatten(-1, (attention.h, -1)).transpose(0, 1)
    return W_V, W_O.weight.T.unflatten(0, (attention.h, -1))


def norm(X: Tensor) -> Tensor:
    """LN(X) without its scale and shift."""
    return F.layer_norm(X, X.shape[-1:])


def draw_path(depth: int, h: int, length: int, chance: torch.Generator) -> Path:
    """A path of a length, uniform among all: which blocks it goes through, and by which head of each."""
    path: list[int | None] = [None] * depth
    for block in torch.randperm(depth, generator=chance)[:length].tolist():
        path[block] = int(torch.randint(h, (), generator=chance))
    return tuple(path)


@torch.no_grad()
def alone(model: Tagger, X: Tensor, path: Path) -> Tensor:
    """The tokens at the end of one path, run as a network of its own: X <- LN(P_h(X) X W_h), or X where it skips.

    X (B, n, d) -> (B, n, d). Its attention is that of its own tokens, not of the whole model's.
    """
    for block, head in zip(model.transformer, path, strict=True):
        if head is not None:
            W_V, W_O = heads(block.attention)
            mine = slice(head, head + 1)
            X = norm(attend(_pattern(block.attention, X, head), W_V[mine], W_O[mine], X))
    return X


def _pattern(attention: SelfAttention, X: Tensor, head: int) -> Tensor:
    """P (B, 1, n, n) of one head; the others are not computed."""
    width = X.shape[-1] // attention.h
    rows = slice(head * width, (head + 1) * width)
    q, k = (F.linear(X, W.weight[rows]) for W in (attention.W_q, attention.W_k))
    return (q @ k.transpose(-1, -2) * width**-0.5).softmax(-1).unsqueeze(1)


@torch.no_grad()
def drawn_hits(
    model: Tagger, inputs: Tensor, labels: Tensor, length: int, counts: tuple[int, ...], seed: int
) -> Tensor:
    """The accuracy of the first counts[i] drawn paths of a length: their tokens are summed, normed, classified."""
    chance, X = torch.Generator().manual_seed(seed), model.tokens(inputs)
    depth, h = len(model.transformer), model.transformer.design.h
    total, found = torch.zeros_like(X), {}
    for done in range(1, max(counts) + 1):
        total += alone(model, X, draw_path(depth, h, length, chance))
        if done in counts:
            found[done] = (model.head(norm(total)).argmax(-1) == labels).double().mean()
    return torch.stack([found[count] for count in counts])


@torch.no_grad()
def by_length(model: Tagger, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """(parts (L + 1, B, n, d), rest (B, n, d)): exactly what all paths of each length add to the model's last state.

    Attention P and the deviation that each norm divides by are those of the whole model; then a block is linear but for
    the shift of its norms. parts[k] is the sum over all paths through k heads, rest is what the shifts become on their
    way, which no token of the input goes into: parts.sum(0) + rest = the last state.
    """
    X = model.tokens(inputs)
    depth = len(model.transformer)
    parts = torch.cat([X.unsqueeze(0), X.new_zeros(depth + 1, *X.shape)])  # the last row is the rest
    for block in model.transformer:
        states = block.steps(X)
        given = attend(block.attention.pattern(X), *heads(block.attention), parts)
        given[1:-1], given[0] = given[:-2].clone(), 0.0  # one head longer; the rest stays the rest
        parts = parts + given
        for name, norm_of in (("Y_1", block.wiring.norm_1), ("Y_3", block.wiring.norm_2)):
            parts = _as_seen(norm_of, states[name], parts)
        X = states["Y_4"]
    return parts[:-1], parts[-1]


def _as_seen(norm_of: torch.nn.LayerNorm, seen: Tensor, parts: Tensor) -> Tensor:
    """A norm with the deviations that it had at `seen`: linear in the parts, its shift goes to the last of them."""
    r = (seen.var(-1, correction=0, keepdim=True) + norm_of.eps).rsqrt()
    parts = (parts - parts.mean(-1, keepdim=True)) * r * norm_of.weight
    parts[-1] += norm_of.bias
    return parts


@torch.no_grad()
def exactly(model: Tagger, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """By length 0 ... L: accuracies of all paths of that length "alone", of all "up_to" it, of all "without" it.

    And "size": the norm of what they add, over that of the last state; beyond 1 they cancel each other. The last of
    up_to is the whole model.
    """
    parts, rest = by_length(model, inputs)
    whole = parts.sum(0) + rest
    shown = {"alone": parts + rest, "up_to": parts.cumsum(0) + rest, "without": whole - parts}
    hits = {name: (model.head(X).argmax(-1) == labels).double().mean((-2, -1)) for name, X in shown.items()}
    return hits | {"size": parts.double().flatten(1).norm(dim=-1) / whole.double().norm()}
