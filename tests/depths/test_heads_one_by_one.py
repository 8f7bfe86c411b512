"""Heads that are modules of their own, with values made after the softmax: attention and network are told apart."""

import copy

import torch
from small_families import WIDTH, WORDS, Network, ids, lively
from torch import Tensor, nn

import depthscope as ds

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, WIDTH // 4, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT * (WIDTH // 4) ** -0.5
        later = torch.ones(x.shape[1], x.shape[1]).tril() == 0
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ self.value(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.ModuleList(Head() for _ in range(4)), nn.Linear(WIDTH, WIDTH)
        self.norm, self.network = nn.LayerNorm(WIDTH), Network()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.out(torch.cat([head(y) for head in self.heads], -1))
        return x + self.network(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model: nn.Module, words: Tensor) -> Tensor:
    with torch.no_grad():
        flat = model(words)[:, :-1].flatten(0, 1), words[:, 1:].flatten()
    return nn.functional.cross_entropy(*flat).double()


def test_branches_and_their_prices() -> None:
    model, words = lively(Model()), ids()
    found = ds.depth(model, words, held_out=words, what=["prices", "parts"])
    assert found.prices is not None and found.notes == ()
    twin, seen = copy.deepcopy(model), []
    for block in twin.blocks:
        block.register_forward_pre_hook(lambda m, args: seen.append(args[0].double()))
        block.out.register_forward_hook(lambda m, args, out: seen.append(out.double()))
        block.network.register_forward_hook(lambda m, args, out: seen.append(out.double()))
    whole = loss_of(twin, words)
    for at in range(3):
        x, a, f = seen[3 * at : 3 * at + 3]
        for kind, branch, stream, name in ((0, a, x, "out"), (1, f, x + a, "network")):
            size = (branch.norm(dim=-1) / stream.norm(dim=-1)).mean()
            torch.testing.assert_close(found.plain.size[kind, at], size, **CLOSE)
            cosine = torch.cosine_similarity(branch, stream, dim=-1).mean()
            torch.testing.assert_close(found.plain.cosine[kind, at], cosine, **CLOSE)
            robbed = copy.deepcopy(model)
            getattr(robbed.blocks[at], name).register_forward_hook(lambda m, args, out: 0 * out)
            price = (found.prices.attention, found.prices.ffn)[kind][at]
            torch.testing.assert_close(price, loss_of(robbed, words) - whole, **CLOSE)
