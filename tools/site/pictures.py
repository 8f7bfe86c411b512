"""The front page's picture and the four of docs/start/reading-a-scan.md, from real scans.

python tools/site/pictures.py [FOLDER] writes into docs/figures/start, and docs/demo.png beside it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes

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


def front() -> Any:
    """One curve for the preset of `make demo` as it is, one for it with the remedy; words beside the curves."""
    from matplotlib.figure import Figure

    model, inputs = resolve("classic", Sizes(depth=24))
    before = ds.scan(model, inputs, attention=False)["t_sim"]
    with ds.fix_(model, ds.remedies.DeEscalate(1.0)):
        after = ds.scan(model, inputs, attention=False)["t_sim"]
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(before, color="tab:red", linewidth=3)
    axes.plot(after, color="tab:blue", linewidth=3)
    axes.text(13, 0.88, "as it is: all tokens alike", color="tab:red", fontsize=15)
    axes.text(13, 0.06, "with a one-line fix", color="tab:blue", fontsize=15)
    axes.set_xlabel("block", fontsize=14)
    axes.set_ylabel("token similarity", fontsize=14)
    axes.set(xlim=(0, 24), ylim=(-0.03, 1.05), xticks=range(0, 25, 4))
    axes.tick_params(labelsize=13)
    axes.grid(alpha=0.3)
    return figure


def main(folder: Path) -> None:
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    front().savefig(folder.parents[1] / "demo.png", dpi=110)
    for name, scan in scans():
        figure = Figure(figsize=(12, 7), layout="constrained")
        scan.draw(figure)
        figure.savefig(folder / f"{name}.png", dpi=75)
        print(f"{name}: {scan.verdict}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HOME)
