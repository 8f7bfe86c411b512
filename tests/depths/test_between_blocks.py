"""Models that do more than call one block after another; the truth is the model with a block that gives back its input."""

import copy

import torch
from small_families import WIDTH, WORDS, Attention, Network, ids, lively
from torch import Tensor, nn

import depthscope as ds
from loops import over

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.network = Attention(), Network()

    def forward(self, x: Tensor, shared: dict) -> Tensor:
        x = x + self.attention(x)
        return x + self.network(x)


class WritesIntoItsInput(Block):
    def forward(self, x: Tensor, shared: dict) -> Tensor:
        x += self.attention(x)
        x += self.network(x)
        return x


class ReadsTheFirst(Block):
    """What the first block that runs has written is added to the branch of all others."""

    def forward(self, x: Tensor, shared: dict) -> Tensor:
        wrote = self.attention(x)
        x = x + wrote + shared.setdefault("first", wrote)
        return x + self.network(x)


class Model(nn.Module):
    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def between(self, x: Tensor, at: int, past: list[Tensor]) -> Tensor:
        return x

    def said(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))

    def forward(self, words: Tensor) -> Tensor:
        x, shared, past = self.words(words) + self.places(torch.arange(words.shape[1])), {}, []
        for at, block in enumerate(self.blocks):
            x = block(self.between(x, at, past), shared)
            past.append(x)
        return self.said(x)


class ScaledBetween(Model):
    def between(self, x: Tensor, at: int, past: list[Tensor]) -> Tensor:
        return (1.0, 2.0, 0.5, 1.5)[at] * x


class LongSkips(Model):
    def between(self, x: Tensor, at: int, past: list[Tensor]) -> Tensor:
        return x if at < 2 else x + 0.5 * past[3 - at]


class CappedInPlace(Model):
    def said(self, x: Tensor) -> Tensor:
        return super().said(x).div_(3).tanh_().mul_(3)


class TiedHead(Model):
    def said(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.norm(x), self.words.weight)


MODELS = {
    "plain": Model,
    "writes into its input": lambda: Model(WritesIntoItsInput),
    "reads the first block": lambda: Model(ReadsTheFirst),
    "scaled between": ScaledBetween,
    "long skips": LongSkips,
    "capped in place": CappedInPlace,
    "tied head": TiedHead,
}


def loss_of(model: nn.Module, words: Tensor) -> Tensor:
    with torch.no_grad():
        logits = model(words)
    flat = logits[:, :-1].flatten(0, 1), words[:, 1:].flatten()
    return nn.functional.cross_entropy(*flat, reduction="none").double()


def idle(model: Model, *gone: int) -> Model:
    """A copy in which blocks give back what they are given."""
    twin = copy.deepcopy(model)
    for at in gone:
        twin.blocks[at].forward = lambda x, shared: x
    return twin


def seen(model: Model, words: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What every block is given and gives."""
    given, gave = [], []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda m, args: given.append(args[0].detach().clone().double()))
        block.register_forward_hook(lambda m, args, out: gave.append(out.detach().clone().double()))
    with torch.no_grad():
        model(words)
    return given, gave


@over("kind", MODELS)
def test_everything_is_that_of_the_model_with_idle_blocks(kind: str) -> None:
    model, words = lively(MODELS[kind]()), ids()
    found = ds.depth(model, words, held_out=words, drops=2)
    assert found.prices is not None and found.lens is not None
    whole = loss_of(model, words).mean()
    given, gave = seen(copy.deepcopy(model), words)
    for at in range(4):
        price = loss_of(idle(model, at), words).mean() - whole
        torch.testing.assert_close(found.prices.skip[at], price, **CLOSE)
        influence = 1 - torch.cosine_similarity(given[at], gave[at], dim=-1).mean()
        torch.testing.assert_close(found.plain.influence[at], influence, **CLOSE)
        there, here = seen(idle(model, at), words)
        for m in range(at + 1, 4):
            c, other = gave[m] - given[m], here[m] - there[m]
            effect = ((c - other).norm(dim=-1) / c.norm(dim=-1)).mean()
            torch.testing.assert_close(found.prices.effect[at, m], effect, rtol=1e-5, atol=1e-5)
    for curve in found.curves:
        for gone, loss in zip(curve.choices, curve.losses[1:], strict=True):
            truth = float(loss_of(idle(model, *(block - 1 for block in gone)), words).mean())
            torch.testing.assert_close(loss, truth, **CLOSE)
    for at in range(5):
        truth = loss_of(idle(model, *range(at, 4)), words).mean()
        torch.testing.assert_close(found.lens.loss[at], truth, rtol=1e-5, atol=1e-5)
