"""Section 2.3: do feed-forward network and layer norms matter? Not near t_sim = 1; at low similarity the FFN does.

"no discernible reason is seen to expect any impact on TSE from the usual element-wise activation functions such as
ReLU" (Yu & Zhang 2023). But ReLU maps orthogonal tokens to tokens of cosine 1/pi: how much that counts depends on the
gain of the network.

depthscope reproduce yu2023/section_2_3     about 20 s on two cores
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.chains import ChainSizes
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.metrics import xi
from depthscope.models.block import Block
from depthscope.models.trials import draw_trials, run_ffn

GAINS = {"torch_default": "torch default FFN", "xavier": "Xavier FFN", "paper_literal_he": "He FFN"}
ACTIVATIONS = ("relu", "gelu")


@dataclass(frozen=True)
class Config(ChainSizes):
    """Tokens of prescribed similarity in the sizes of section 2.4, each trial with its own weights."""

    trials: int = 150
    similarities: tuple[float, ...] = (0.016, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999)

    def __post_init__(self) -> None:
        if not all(0 < t < 1 for t in self.similarities) or max(self.similarities) < 0.99:
            raise UsageError(
                f"yu2023/section_2_3: similarities must lie in (0, 1) and reach 0.99; got {self.similarities}."
            )


SMOKE = Config(d=256, q=512, trials=100)


def tokens(t: Tensor, trials: int, n: int, d: int) -> Tensor:
    """X (trials, similarities, n, d) with t_sim(X) = t exactly."""
    Q = torch.randn(trials, 1, n, d, dtype=torch.float64)
    Q = Q - Q.mean(-2, keepdim=True)
    v = torch.randn(trials, 1, 1, d, dtype=torch.float64)
    unit = [part / part.square().sum((-2, -1), keepdim=True).sqrt() for part in (v.expand(-1, -1, n, -1), Q)]
    t = t.view(1, -1, 1, 1)
    return ((t.sqrt() * unit[0] + (1 - t).sqrt() * unit[1]) * (n * d) ** 0.5).float()


@torch.no_grad()
def run(cfg: Config) -> dict[str, Tensor]:
    """Mean xi_1 / xi_2 of one step over similarity: FFN (gains, activations, similarities), norm (similarities,)."""
    t = torch.tensor(cfg.similarities, dtype=torch.float64)
    X = tokens(t, cfg.trials, cfg.n, cfg.d)
    Y_2 = torch.nn.functional.layer_norm(X, (cfg.d,))
    ffn = []
    for weights in track(GAINS, len(GAINS)):
        row = []
        for activation in ACTIVATIONS:
            block = Block(cfg.design(1, weights=weights, activation=activation))
            Y_3 = Y_2 + run_ffn(block, draw_trials(block, cfg.trials), Y_2)
            row.append(ratio(Y_2, Y_3))
        ffn.append(torch.stack(row))
    return {"t": t, "ffn": torch.stack(ffn), "norm": ratio(X, Y_2)}


def ratio(X: Tensor, Y: Tensor) -> Tensor:
    """xi_1 / xi_2, mean over trials."""
    xi_1, xi_2 = xi(X, Y)
    return (xi_1 / xi_2).mean(0)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    ffn, norm, near = numbers["ffn"] - 1, numbers["norm"] - 1, numbers["t"] >= 0.99
    low = float(numbers["t"][0])
    size, far = "(largest |xi_1/xi_2 - 1|)", ffn[..., 0].abs().min()  # the null: what the least FFN does at low t_sim
    made = [
        (f"layer norms do not matter at any similarity {size}", norm.abs().max(), 0.0, 0.03, far),
        (f"FFN does not matter for t_sim >= 0.99 {size}", ffn[..., near].abs().max(), 0.0, 0.05, far),
    ]
    known = [
        (f"{label} does not matter at t_sim = {low:g}, {activation} (|xi_1/xi_2 - 1|)", ffn[i, j, 0].abs(), 0.0, 0.03)
        for i, label in enumerate(GAINS.values())
        for j, activation in enumerate(ACTIVATIONS)
    ]
    return stated(cfg.trials, *made) + stated(cfg.trials, *known, expected=False)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for i, label in enumerate(GAINS.values()):
        for j, (activation, style) in enumerate(zip(ACTIVATIONS, ("-", "--"), strict=True)):
            left.plot(
                numbers["t"], numbers["ffn"][i, j], style, color=f"C{i}", marker=".", label=f"{label}, {activation}"
            )
    right.plot(numbers["t"], numbers["norm"], marker=".")
    left.set_yscale("log")
    left.set(title="feed-forward step", xlabel="t_sim of X, before the norm", ylabel=r"$\xi_1/\xi_2$")
    right.set(title="layer norm", xlabel="t_sim of X", ylim=(0.8, 1.2))
