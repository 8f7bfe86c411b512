"""The four pictures of docs/start/reading-a-scan.md, from real scans: python tools/site/pictures.py [FOLDER]"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import depthscope as ds

HOME = Path(__file__).parents[2] / "docs" / "figures" / "start"


class WithRegister(nn.Module):
    """A pre-norm encoder whose first token is far larger than all others, as sinks of trained models are."""

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, tokens: Tensor) -> Tensor:
        register = torch.zeros_like(tokens[:, :1]) + 600.0 * torch.eye(tokens.shape[-1])[0]
        return self.blocks(torch.cat([register, tokens], 1))


def encoder(depth: int, *, norm_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).eval()


def scans() -> Iterator[tuple[str, ds.Scan]]:
    """The name of a picture and its scan; weights and tokens by fixed seeds."""
    tokens = torch.randn(4, 32, 64, generator=torch.manual_seed(0))
    torch.manual_seed(0)
    yield "healthy", ds.scan(encoder(24, norm_first=True), tokens)
    yield "escalating", ds.scan(encoder(8), tokens)
    yield "collapsed", ds.scan(encoder(24), tokens)
    yield "massive", ds.scan(WithRegister(encoder(24, norm_first=True)), tokens)


def main(folder: Path) -> None:
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for name, scan in scans():
        figure = Figure(figsize=(12, 7), layout="constrained")
        scan.draw(figure)
        figure.savefig(folder / f"{name}.png", dpi=75)
        print(f"{name}: {scan.verdict}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HOME)
