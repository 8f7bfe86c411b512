"""Streams that leave the path from block to block: other tokens inside, old states, two streams in the same blocks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import HookError

N, D, DEPTH = 7, 16, 4
X = torch.randn(2, N, D, generator=torch.Generator().manual_seed(0)) + 0.3


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        q, k, v = self.qkv(y).chunk(3, -1)
        if memory is not None:
            k, v = self.qkv(memory).chunk(3, -1)[1:]
        return self.out((q @ k.mT / 4).softmax(-1) @ v)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = Attention()
        self.network = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        return x + self.network(x)


class Spelled(nn.Module):
    """A model that hands out its own stream: met[l] after block l."""

    def __init__(self, kind: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(DEPTH))
        self.met: dict[str, list[Tensor]] = {}

    def meet(self, x: Tensor, name: str = "main") -> Tensor:
        self.met.setdefault(name, []).append(x)
        return x


class Remembering(nn.Module):
    """Three learned tokens join the others inside of the block, and leave again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.memory = Block(), nn.Parameter(torch.randn(3, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.cat([self.memory.expand(len(x), -1, -1), x], 1))[:, 3:]


class Plain(Spelled):
    def forward(self, x: Tensor) -> Tensor:
        x = self.meet(x)
        for block in self.blocks:
            x = self.meet(block(x))
        return x


class Averaged(Spelled):
    """The sum of all older states is made after the latest one."""

    def forward(self, x: Tensor) -> Tensor:
        states = [self.meet(x)]
        for block in self.blocks:
            states.append(self.meet(block(x)))
            x = 0.7 * states[-1] + 0.1 * sum(states[:-1])
        return x


class Arms(Spelled):
    """The last block reads an early state beside the latest, by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        early = x = self.meet(x)
        for i, block in enumerate(self.blocks):
            x = self.join(torch.cat([x, early], -1)) if i == DEPTH - 1 else x
            x = self.meet(block(x))
            early = x if i == 0 else early
        return x


class Latents(Spelled):
    """Learned tokens read the input before every block."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.reads = nn.Parameter(torch.randn(5, D)), nn.ModuleList(Attention() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        z = self.meet(self.latents.expand(len(x), -1, -1))
        for read, block in zip(self.reads, self.blocks, strict=True):
            z = z + read(z, x)
            z = self.meet(block(z))
        return z


class Convolved(Spelled):
    """DeBERTa's: a convolution of the input is added after the first block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(D, D, 3, padding=1), nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.meet(x)
        for i, block in enumerate(self.blocks):
            x = self.meet(block(x))
            x = self.norm(x + torch.tanh(self.conv(first.mT).mT)) if i == 0 else x
        return x


class FirstValues(Spelled):
    """Pairs in a list; values of the first attention have a part in all others."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.ModuleList([WithValues(), Block().network]))

    def forward(self, x: Tensor) -> Tensor:
        x, first = self.meet(x), None
        for attend, network in self.blocks:
            y, values = attend(x, first)
            first = values if first is None else first
            x = x + y
            x = self.meet(x + network(x))
        return x


class WithValues(Attention):
    def forward(self, x: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mixed = v if first is None else (v + first) / 2
        return self.out((q @ k.mT / 4).softmax(-1) @ mixed), v


class Twice(Spelled):
    """One encoder for two inputs."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        ends = []
        for name, x in (("left", left), ("right", right)):
            x = self.meet(x, name)
            for block in self.blocks:
                x = self.meet(block(x), name)
            ends.append(x.mean(1))
        return ends[0] @ ends[1].T


class Joint(nn.Module):
    """One attention over two kinds of tokens, each with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = Block(), Block()

    def forward(self, text: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (part.attend.qkv(part.attend.norm(x)) for part, x in ((self.text, text), (self.image, image)))
        q, k, v = torch.cat([a, b], 1).chunk(3, -1)
        y = (q @ k.mT / 4).softmax(-1) @ v
        n = text.shape[1]
        text, image = text + self.text.attend.out(y[:, :n]), image + self.image.attend.out(y[:, n:])
        return text + self.text.network(text), image + self.image.network(image)


class SideBySide(Spelled):
    def __init__(self) -> None:
        super().__init__(Joint)

    def forward(self, text: Tensor, image: Tensor) -> Tensor:
        self.meet(text, "left"), self.meet(image, "right")
        for block in self.blocks:
            text, image = block(text, image)
            self.meet(text, "left"), self.meet(image, "right")
        return torch.cat([text, image], 1)


def similarity(X: Tensor) -> float:
    """|Pi_1 X|^2 / |X|^2, the mean over sequences."""
    X = X.detach().double()
    return float((X.mean(1).square().sum(-1) * X.shape[1] / X.square().sum((1, 2))).mean())


def true_states(model: Spelled, *inputs: Tensor) -> dict[str, list[float]]:
    model.met = {}
    with torch.no_grad():
        model(*inputs)
    return {name: [similarity(x) for x in states] for name, states in model.met.items()}


def made(kind: Any, *more: Any) -> Any:
    torch.manual_seed(1)
    return kind(*more).eval()


@pytest.mark.parametrize(
    ("kind", "more"),
    [(Plain, (Remembering,)), (Averaged, ()), (Arms, ()), (Latents, ()), (Convolved, ()), (FirstValues, ())],
)
def test_states_are_those_of_the_stream(kind: Any, more: tuple) -> None:
    model = made(kind, *more)
    true = true_states(model, X)["main"]
    found = ds.scan(model, X)
    assert found["t_sim"].tolist() == pytest.approx(true, abs=1e-6)
    again = ds.scan(model, X, blocks=found.blocks)
    assert again["t_sim"].tolist() == pytest.approx(true, abs=1e-6)


@pytest.mark.parametrize("kind", [Twice, SideBySide])
def test_two_streams_in_the_same_blocks_are_both_measured_and_not_changed(kind: Any) -> None:
    model, inputs = made(kind), (X, X[:, :5] * 2 - 0.1)
    true = true_states(model, *inputs)
    found = ds.scan(model, inputs)
    given = [scan["t_sim"].tolist() for scan in found.streams.values()]
    assert len(given) == 2
    for states in true.values():
        assert any(one == pytest.approx(states, abs=1e-6) for one in given)
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_out"), pytest.raises(HookError, match="of one stream"):
        model(*inputs)


def test_a_class_token_that_attends_by_itself_is_no_stream() -> None:
    class Late(Spelled):
        """Talking heads, which hide the matrix; then the class token alone reads."""

        def __init__(self) -> None:
            super().__init__(lambda: Talking(Block()))
            self.cls, self.last = nn.Parameter(torch.randn(1, D)), nn.ModuleList(Talking(Block()) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            x = self.meet(x)
            for block in self.blocks:
                x = self.meet(block(x))
            cls = self.cls.expand(len(x), 1, D)
            for block in self.last:
                cls = block(cls, x)
            return cls

    model = made(Late)
    assert ds.scan(model, X)["t_sim"].tolist() == pytest.approx(true_states(model, X)["main"], abs=1e-6)


class Talking(nn.Module):
    def __init__(self, inner: Block) -> None:
        super().__init__()
        self.inner, self.mix = inner, nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self.inner.attend.norm(x)
        y = y if memory is None else torch.cat([y, memory], 1)
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.inner.attend.qkv(y).chunk(3, -1))
        P = torch.einsum("bhij,hg->bgij", (q[:, :, : x.shape[1]] @ k.mT / 3).softmax(-1), self.mix)
        x = x + self.inner.attend.out((P @ v).transpose(1, 2).flatten(2))
        return x + self.inner.network(x)
