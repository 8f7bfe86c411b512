"""Streams with a narrow stream inside their branches, stages of other names, values shared by all blocks."""

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds

B, N, D = 2, 8, 16
X = torch.randn(B, N, D, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Self-attention of two heads; with `first`, half of its values are those of the first block."""

    def __init__(self, d: int = D) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        v = v if first is None else 0.5 * (v + first)
        return self.out(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)), v


class Bottleneck(nn.Module):
    """x + up(inner(down(x))): the inner stream has three sums, the outer one has one; attention reads x beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.read, self.attend = nn.Linear(D, 8), nn.Linear(8, D), nn.Linear(D, 8), Attention(8)
        self.networks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.down(x)
        inner = inner + self.attend(self.read(x))[0]
        for network in self.networks:
            inner = inner + network(inner).relu()
        return x + self.up(inner)


class Bottlenecks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Bottleneck() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        self.states = [x]
        for block in self.layer:
            self.states.append(x := block(x))
        return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.network = Attention(), nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)[0]
        return x + self.network(x)


class Encoder(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        self.states = [x]
        for block in self.layer:
            self.states.append(x := block(x))
        return x


class Merged(nn.Module):
    """One block of characters, which are merged in pairs; then three blocks of what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.merge, self.encoder = Encoder(1), nn.Linear(2 * D, D), Encoder(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.merge(self.characters(x).unflatten(1, (-1, 2)).flatten(2)))

    @property
    def states(self) -> list[Tensor]:
        return self.encoder.states


class SharedValues(nn.Module):
    """Pairs in a list; all attentions read the values of the first."""

    def __init__(self) -> None:
        super().__init__()
        pairs = ([Attention(), nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))] for _ in range(3))
        self.layers = nn.ModuleList(nn.ModuleList(pair) for pair in pairs)

    def forward(self, x: Tensor) -> Tensor:
        self.states, first = [x], None
        for attend, network in self.layers:
            branch, values = attend(x, first)
            first = values if first is None else first
            x = x + branch
            self.states.append(x := x + network(x))
        return x


@pytest.mark.parametrize(
    ("kind", "blocks"), [(Bottlenecks, "layer.*"), (Merged, "encoder.layer.*"), (SharedValues, "layers.*")]
)
def test_every_block_ends_at_the_outer_stream(kind: type[nn.Module], blocks: str) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    scan = ds.scan(model, X)
    model(X)
    true = torch.stack([(x.mean(1).square().sum(-1) * x.shape[1] / x.square().sum((1, 2))) for x in model.states])
    assert scan.blocks == blocks
    torch.testing.assert_close(scan["t_sim"], true.mean(-1).double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ds.scan(model, X, blocks=scan.blocks)["t_sim"], scan["t_sim"])


class Functions(nn.Module):
    """Blocks that are no modules: weights in a list, and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(4, D, D) / D**0.5 for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for q, k, v, w in self.weights:
            x = x + nn.functional.scaled_dot_product_attention(x @ q, x @ k, x @ v)
            x = x + (x @ w).relu()
        return x


def test_blocks_that_are_no_modules_can_be_passed_back() -> None:
    torch.manual_seed(0)
    model = Functions().eval()
    scan = ds.scan(model, X)
    assert (scan.depth, scan.blocks) == (3, "")
    torch.testing.assert_close(ds.scan(model, X, blocks=scan.blocks)["t_sim"], scan["t_sim"])


class Halved(nn.Module):
    """Attention of every second token: it has fewer queries than keys, and no skip goes round it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(self.q(x[:, ::2]), self.k(x), self.v(x))


def test_attention_that_merges_tokens_is_no_missing_block() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), Halved(), Block(), Block()).eval()
    scan = ds.scan(model, X)
    x, true = X, []
    for part in model:
        x = part(x)
        true.append((x.mean(1).square().sum(-1) * x.shape[1] / x.square().sum((1, 2))).mean().double())
    assert scan.block_names == ["0", "1", "3", "4"]
    torch.testing.assert_close(scan["t_sim"][1:], torch.stack([true[i] for i in (0, 1, 3, 4)]), rtol=1e-5, atol=1e-6)
