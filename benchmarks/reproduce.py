"""Batched trials and the reference ViT, as ratios measured in one run: python benchmarks/reproduce.py   (a minute)"""

import torch
from _ratio import line, ratio, training_step
from torch import Tensor, nn

import depthscope as ds
from depthscope.experiments.yu2023.fig3 import Config, ratios_of_draws
from depthscope.models import Block, Design


@torch.no_grad()
def fig3_trials() -> None:
    """One block of figure 3: its trials at once, against a loop that draws W and computes Y for each trial.

    Two things make the difference: trials are batched, and of each W only the n x d part that X reaches is drawn. The
    second line gives the loop that part too.
    """
    cfg = Config()
    block = Block(Design(depth=1, d=cfg.d, h=cfg.h, q=cfg.q))
    X = torch.randn(cfg.n, cfg.d)
    P = block.attention.pattern(X)
    PX = P @ X  # (h, n, d), fixed over trials

    def loop() -> Tensor:
        found = []
        for _ in range(cfg.trials):
            W = torch.randn(cfg.h, cfg.d, cfg.d // cfg.h) * cfg.d**-0.5
            Y = X + (PX @ W).transpose(0, 1).flatten(1)
            xi_1, xi_2 = ds.metrics.xi(X, Y)
            found.append(xi_1 / xi_2)
        return torch.stack(found)

    def batched() -> Tensor:
        return ratios_of_draws(X, P, cfg.trials)

    times, seconds = ratio(loop, batched, 5)
    gap = abs(float(loop().mean() - batched().mean()))
    what = f"plain loop / batched, {cfg.trials} trials of figure 3 (one block)"
    line(what, times, "at least 5", f"batched {seconds:.2f} s, means differ by {gap:.3f}")
    times, _ = ratio(lambda: [ratios_of_draws(X, P, 1) for _ in range(cfg.trials)], batched, 5)
    line("loop that draws only what X reaches / batched", times, "")


def vit_step() -> None:
    """A training step of the ViT of Table 1 against nn.TransformerEncoder of the same sizes, in the same shell."""
    depth, images, labels = 12, torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shell = ds.models.vit("yu2023", depth=1)
            layer = nn.TransformerEncoderLayer(192, 8, 384, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

        def forward(self, images: Tensor) -> Tensor:
            return self.shell.head(self.shell.pool(self.encoder(self.shell.tokens(images))))

    peer = training_step(Peer(), images, labels)
    for words, bias in (("as in the paper", False), ("with the peer's biases", True)):
        times, seconds = ratio(training_step(ds.models.vit("yu2023", depth=depth, bias=bias), images, labels), peer, 15)
        line(f"ViT step, {words} / nn.TransformerEncoder", times, "most 1.0", f"peer {seconds:.2f} s")


if __name__ == "__main__":
    fig3_trials()
    vit_step()
