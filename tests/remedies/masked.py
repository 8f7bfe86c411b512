"""A small pre-norm model whose attention is masked in many spellings."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N, D, HEADS = 9, 16, 2
TRIL = torch.ones(N, N, dtype=torch.bool).tril()
ALIBI = -0.5 * (torch.arange(N)[:, None] - torch.arange(N)).abs().float()


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def closed(seen: Tensor, value: float, like: Tensor) -> Tensor:
    return torch.where(seen, 0.0, value).to(like)


def by_exp(s: Tensor, seen: Tensor, all_: bool) -> Tensor:
    e = (s - s.detach().amax(-1, keepdim=True)).exp()
    kept = e * seen
    return kept / (e if all_ else kept).sum(-1, keepdim=True)


# spelling: (q, k, v, seen (n, n), value) -> what attention gives
SPELLINGS: dict[str, Callable[..., Tensor]] = {
    "added": lambda q, k, v, seen, c: (scores(q, k) + closed(seen, c, q)).softmax(-1) @ v,
    "added in place": lambda q, k, v, seen, c: F.softmax(scores(q, k).add_(closed(seen, c, q)), -1) @ v,
    "filled": lambda q, k, v, seen, c: torch.softmax(scores(q, k).masked_fill(~seen, c), -1) @ v,
    "where": lambda q, k, v, seen, c: torch.where(seen, scores(q, k), torch.tensor(c).to(q)).softmax(-1) @ v,
    "sdpa": lambda q, k, v, seen, c: F.scaled_dot_product_attention(q, k, v, closed(seen, c, q)),
    "alibi": lambda q, k, v, seen, c: (scores(q, k) + ALIBI + closed(seen, c, q)).softmax(-1) @ v,
}
AFTER: dict[str, Callable[..., Tensor]] = {  # the softmax
    "product": lambda q, k, v, seen, c: (scores(q, k).softmax(-1) * seen) @ v,
    "tril": lambda q, k, v, seen, c: scores(q, k).softmax(-1).tril() @ v,
    "product, again one": lambda q, k, v, seen, c: _one(scores(q, k).softmax(-1) * seen) @ v,
    "where": lambda q, k, v, seen, c: torch.where(seen, scores(q, k).softmax(-1), 0.0) @ v,
    "filled": lambda q, k, v, seen, c: scores(q, k).softmax(-1).masked_fill_(~seen, 0.0) @ v,
    "einsum": lambda q, k, v, seen, c: torch.einsum("bhij,bhjd->bhid", scores(q, k).softmax(-1) * seen, v),
    "exp": lambda q, k, v, seen, c: by_exp(scores(q, k), seen, False) @ v,
    "exp over all": lambda q, k, v, seen, c: by_exp(scores(q, k), seen, True) @ v,
}


def _one(P: Tensor) -> Tensor:
    return P / P.sum(-1, keepdim=True)


class Block(nn.Module):
    def __init__(self, spelling: Callable[..., Tensor], seen: Tensor, value: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ffn = nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))
        self.spelling, self.seen, self.value = spelling, seen, value

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.spelling(q, k, v, self.seen, self.value).transpose(1, 2).flatten(2))
        return x + self.ffn(self.norm_2(x))


class Model(nn.Module):
    def __init__(
        self, spelling: Callable[..., Tensor], seen: Tensor = TRIL, value: float = -1e4, depth: int = 2
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(spelling, seen, value) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@torch.no_grad()
def past_moves(model: nn.Module, x: Tensor, j: int, *args, **kwargs) -> float:
    """How far tokens before j move when token j is another."""
    other = x.clone()
    other[:, j] = other[:, j].flip(-1) + 1.0
    a, b = (model(y, *args, **kwargs) for y in (x, other))
    return float((a - b)[:, :j].abs().max())
