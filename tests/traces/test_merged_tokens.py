"""Tokens that are merged or pruned inside of a block: its network stays its own."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
from loops import over

WIDTH = 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))


class Pruned(nn.Module):
    """Entries of a list that nobody calls; half of the tokens are dropped between attention and network of block 3."""

    def __init__(self) -> None:
        super().__init__()
        parts = [(nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), network()) for _ in range(4)]
        self.layers, self.states = nn.ModuleList(nn.ModuleList(one) for one in parts), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.states = [x]
        for i, (norm, attention, norm_2, branch) in enumerate(self.layers):
            x = attention(norm(x)) + x
            x = x[:, ::2] if i == 2 else x
            x = branch(norm_2(x)) + x
            self.states.append(x)
        return x


class Half(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(self.norm(x))


class Pooled(nn.Module):
    """A flat list of attentions and networks; tokens are averaged in pairs after the first two attentions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Half(part) for _ in range(4) for part in (Attention(), network()))
        self.states: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.states = [x]
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = F.avg_pool1d(x.mT, 2).mT if i in (0, 2) else x
            self.states += [x] if i % 2 else []
        return x


@over("make", [Pruned, Pooled])
def test_a_block_is_measured_after_its_network(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(3, 64, WIDTH)
    scan = ds.scan(model, x)
    with torch.no_grad():
        model(x)
    truth = torch.stack([ds.metrics.t_sim(state).mean() for state in model.states])
    torch.testing.assert_close(scan["t_sim"], truth, rtol=1e-6, atol=0)


class Product(nn.Module):
    """x W, as an operator."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inside, outside) * inside**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@over("matrix", [nn.Linear, Product])
def test_a_network_in_the_branch_of_attention_is_told_however_it_is_written(matrix: type[nn.Module]) -> None:
    """Then each entry is a block: attention with its network, and a network."""
    entries: list[nn.Module] = []
    for _ in range(4):
        attention = Attention()
        attention.out = nn.Sequential(matrix(WIDTH, 64), nn.GELU(), matrix(64, WIDTH))
        entries += [Half(attention), Half(network())]
    assert ds.scan(nn.Sequential(*entries).eval(), torch.randn(3, 10, WIDTH)).depth == 8


def test_padding_at_the_end_is_padding_under_windows_with_a_global_token() -> None:
    class Windows(Attention):
        def forward(self, x: Tensor) -> Tensor:
            x, keep = x[..., :WIDTH], x[0, :, WIDTH] > 0
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            places = torch.arange(len(keep))
            near = ((places - places[:, None]).abs() <= 2) | (places == 0) | (places[:, None] == 0)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=near & keep)
            return self.out(mixed.transpose(1, 2).flatten(2))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, WIDTH)
            self.layers = nn.ModuleList(Windows() for _ in range(3))

        def forward(self, ids: Tensor) -> Tensor:
            x, keep = self.embedding(ids), ids.ne(0).float()[..., None]
            for layer in self.layers:
                x = x + layer(torch.cat([x, keep], -1))
            return x

    torch.manual_seed(0)
    model, ids = Model().eval(), torch.randint(1, 50, (1, 12))
    ids[0, 8:] = 0
    scan = ds.scan(model, ids)
    with torch.no_grad():
        last = ds.metrics.t_sim(model(ids)[:, :8]).mean()
    assert any("padding was found by looking at attention" in note for note in scan.notes)
    torch.testing.assert_close(scan["t_sim"][-1], last, rtol=1e-6, atol=0)
