"""Models that make their own masks of padding, in several spellings, and sequences with padding on either side."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

D, HEADS, N, PAD = 16, 2, 10, 0
LENGTHS = (10, 7, 4)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


SPELLINGS = {
    "sdpa": lambda q, k, v, seen: F.scaled_dot_product_attention(q, k, v, seen).nan_to_num(0.0),
    "sdpa, added": lambda q, k, v, seen: F.scaled_dot_product_attention(
        q, k, v, torch.zeros(seen.shape).to(q).masked_fill(~seen, torch.finfo(q.dtype).min)
    ),
    "filled": lambda q, k, v, seen: scores(q, k).masked_fill(~seen, -1e9).softmax(-1) @ v,
    "the smallest": lambda q, k, v, seen: scores(q, k).masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1) @ v,
    "infinity": lambda q, k, v, seen: (
        torch.softmax(scores(q, k).masked_fill(~seen, -torch.inf), -1).nan_to_num(0.0) @ v
    ),
}
SEEN = {  # what queries see, of who is a token (B, n)
    "keys": lambda tokens: tokens[:, None, None, :].expand(-1, 1, tokens.shape[1], -1),
    "keys and queries": lambda tokens: tokens[:, None, None, :] & tokens[:, None, :, None],
    "or itself": lambda tokens: tokens[:, None, None, :] & tokens[:, None, :, None] | torch.eye(tokens.shape[1]).bool(),
}


class Block(nn.Module):
    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ffn = nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))
        self.spelling = spelling

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(SPELLINGS[self.spelling](q, k, v, seen).transpose(1, 2).flatten(2))
        return x + self.ffn(self.norm_2(x))


class PadsItself(nn.Module):
    """Ids in, tokens out; PAD is padding."""

    def __init__(self, spelling: str = "sdpa", seen: str = "keys", causal: bool = False, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(50, D), nn.ModuleList(Block(spelling) for _ in range(depth))
        self.seen, self.causal = seen, causal

    def forward(self, ids: Tensor) -> Tensor:
        x, seen = self.embed(ids), SEEN[self.seen](ids.ne(PAD))
        seen = seen & torch.ones(x.shape[1], x.shape[1]).tril().bool() if self.causal else seen
        for block in self.blocks:
            x = block(x, seen)
        return x


def built(*how: object, **named: object) -> PadsItself:
    torch.manual_seed(3)
    return PadsItself(*how, **named).double().eval()  # type: ignore[arg-type]


def padded_ids(side: str) -> Tensor:
    """(3, N), of which LENGTHS are tokens."""
    ids = torch.randint(1, 50, (len(LENGTHS), N), generator=torch.Generator().manual_seed(5))
    for row, place in zip(ids, places(side), strict=True):
        row[[i for i in range(N) if i not in range(N)[place]]] = PAD
    return ids


def places(side: str) -> list[slice]:
    """Where the tokens of each sequence are."""
    return [slice(0, n) if side == "right" else slice(N - n, N) for n in LENGTHS]


def similarity(X: Tensor) -> float:
    """|mean token|^2 n / |X|^2 of one sequence (n, d): the share of the common part."""
    X = X.detach().double()
    return float(len(X) * X.mean(0).square().sum() / X.square().sum())
