"""ablate of one stream among several, and of blocks that are no modules."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
from loops import over

D, HEADS, N = 16, 4, 7
torch.manual_seed(0)
X, Y = torch.randn(3, N, D), torch.randn(3, N + 2, D)
METRICS = ("relative_residual", "t_cos", "token_norm")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixed, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, X: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in self.mixed(self.norm(X)).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Pairs(nn.Module):
    """Blocks that are no modules. The same weights by hand, without parts: cut()."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        networks = (nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D)) for _ in range(depth))
        self.layers = nn.ModuleList(nn.ModuleList([Attention(), network]) for network in networks)
        self.norm = nn.LayerNorm(D)

    def forward(self, X: Tensor) -> Tensor:
        for attention, network in self.layers:  # type: ignore[misc]
            X = attention(X) + X
            X = network(X) + X
        return self.norm(X)

    def cut(self, X: Tensor, removed: tuple[str, ...]) -> list[Tensor]:
        """The states of the model without some parts, the first one too."""
        states = [X]
        for attention, network in self.layers:  # type: ignore[misc]
            X = attention(X) + (0 if "skips" in removed else X)
            if "ffn" not in removed:
                X = network(X) + (0 if "skips" in removed else X)
            states.append(X)
        return states


def test_blocks_that_are_no_modules_lose_their_parts() -> None:
    model = Pairs().eval()
    found = ds.ablate(model, X, parts=("skips", "ffn"))
    assert [row.removed for row in found.rows] == [(), ("skips",), ("ffn",), ("skips", "ffn")]
    for row in found.rows:
        with torch.no_grad():
            states = model.cut(X, row.removed)
        for name in METRICS:
            truth = torch.stack([getattr(ds.metrics, name)(state).mean() for state in states])
            torch.testing.assert_close(row.scan[name], truth.to(row.scan[name]), rtol=1e-4, atol=1e-5)
    again = ds.ablate(model, X, parts=("skips", "ffn"), blocks=found[()].scan.blocks)
    for row, other in zip(found.rows, again.rows, strict=True):
        torch.testing.assert_close(row.scan["t_cos"], other.scan["t_cos"])


@over("batch_first", [False], long=[True])
def test_an_encoder_beside_a_decoder_is_the_encoder_alone(batch_first: bool) -> None:
    model = nn.Transformer(D, HEADS, 3, 2, 32, batch_first=batch_first).eval()
    source, target = (X, Y) if batch_first else (X.transpose(0, 1), Y.transpose(0, 1))
    truth = ds.ablate(model.encoder, source)
    for chosen in ({}, {"stream": "encoder"}):
        found = ds.ablate(model, (source, target), **chosen)
        for row, own in zip(found.rows, truth.rows, strict=True):
            for name in METRICS:
                torch.testing.assert_close(row.scan[name], own.scan[name], rtol=1e-4, atol=1e-6)


def test_a_decoder_is_cut_and_the_encoder_is_left_whole() -> None:
    model = nn.Transformer(D, HEADS, 3, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        memory = model.encoder(X)
    found = ds.ablate(model, (X, Y), stream="decoder", parts=("skips", "ffn"))
    truth = ds.ablate(model.decoder, (Y, memory), parts=("skips", "ffn"))
    assert found[()].scan.stream == "decoder" and found[()].scan.depth == 2
    for row, own in zip(found.rows, truth.rows, strict=True):
        for name in METRICS:
            torch.testing.assert_close(row.scan[name], own.scan[name], rtol=1e-4, atol=1e-6)
