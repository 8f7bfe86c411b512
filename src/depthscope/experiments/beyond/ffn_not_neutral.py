"""Is the feed-forward network neutral, as Yu & Zhang 2023 assume? Not while tokens differ; yes once they are alike.

A ReLU network turns tokens of cosine 0 into tokens of cosine kappa(0) = 1/pi, so the network alone makes tokens alike.
Near collapse kappa'(1) = 1, and the network changes similarity no more. In post-norm blocks with and without attention,
the growth of log(t_sim / t_div) by the network and by attention is measured, and forecast from two numbers.

depthscope reproduce beyond/ffn_not_neutral     about 15 s on two cores: 4 networks, attention on and off, 16 blocks.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthscope.experiments.chains import log_odds
from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.progress import track
from depthscope.metrics import t_sim
from depthscope.models.design import Design
from depthscope.models.trials import chain
from depthscope.theory.two_numbers import attended, joined, network_gain, networked, normed, tokens_alike

OFF = 1e-6  # alpha of a block without attention


class Network(NamedTuple):
    """A network by the law of its weights, hidden_variance = d Var(W_1) and s_2 = q Var(W_2)."""

    weights: str
    activation: str
    hidden_variance: float
    s_2: float

    @property
    def k(self) -> float:
        return network_gain(self.activation, hidden_variance=self.hidden_variance, s_2=self.s_2)

    def s_A(self, h: int) -> float:
        """d Var(W) of its law: He's network comes with the paper's printed h / d, the others with 1 / d."""
        return float(h) if self.weights == "paper_literal_he" else 1.0

    @property
    def score_variance(self) -> float:
        """d Var(W_q) d Var(W_k) of its law."""
        return 1.0 if self.weights == "xavier" else 1 / 9


NETWORKS = {
    "torch default, ReLU": Network("unit_gain", "relu", 1 / 3, 1 / 3),
    "Xavier, ReLU": Network("xavier", "relu", 2 / 5, 8 / 5),
    "He, ReLU": Network("paper_literal_he", "relu", 2.0, 1.0),
    "Xavier, GELU": Network("xavier", "gelu", 2 / 5, 8 / 5),
}


@dataclass(frozen=True)
class Config:
    """`trials` models of `depth` blocks for each network, with attention of alpha^2 d Var(W) = 1 and with none."""

    trials: int = 12
    depth: int = 16
    n: int = 64
    d: int = 256
    h: int = 8
    seed: int = 0


SMOKE = Config(trials=6, depth=10, n=32, d=128)


def run(cfg: Config) -> dict[str, Tensor]:
    """Growth of log odds at attention and at the network, (networks, [with, without attention], depth, 2) each.

    `measured` is a mean over models, `forecast` by two numbers; `t_sim` and `t_sim_forecast` (networks, 2, depth + 1).
    """
    rows: dict[str, list[Tensor]] = {name: [] for name in ("measured", "forecast", "t_sim", "t_sim_forecast")}
    for network in track(NETWORKS.values(), len(NETWORKS)):
        for alpha in (network.s_A(cfg.h) ** -0.5, OFF):
            growth, curve = _measured(cfg, network, alpha)
            expected, expected_curve = _forecast(cfg, network, alpha)
            for name, value in zip(rows, (growth, expected, curve, expected_curve), strict=True):
                rows[name].append(value)
    return {name: torch.stack(parts).unflatten(0, (len(NETWORKS), 2)) for name, parts in rows.items()}


def _measured(cfg: Config, network: Network, alpha: float) -> tuple[Tensor, Tensor]:
    design = Design(cfg.depth, cfg.d, cfg.h, alpha=alpha, weights=network.weights, activation=network.activation)
    X = torch.randn(cfg.trials, cfg.n, cfg.d)
    growth, curve = [], [t_sim(X).mean()]
    for states in chain(design, X):
        before, between, after = (log_odds(states[letter]) for letter in ("X", "Y_2", "Y_4"))
        growth.append(torch.stack([between - before, after - between]).mean(-1))
        curve.append(t_sim(states["Y_4"]).mean())
    return torch.stack(growth), torch.stack(curve)


def _forecast(cfg: Config, network: Network, alpha: float) -> tuple[Tensor, Tensor]:
    x = tokens_alike(1 / cfg.n, cfg.n)
    odds, curve = [x.t_sim(cfg.n) / x.t_div(cfg.n)], [x.t_sim(cfg.n)]
    for _ in range(cfg.depth):
        A = attended(x, n=cfg.n, s_A=network.s_A(cfg.h), score_variance=network.score_variance)
        y = normed(joined(x, A, weight=alpha))
        F = networked(y, k=network.k, activation=network.activation, hidden_variance=network.hidden_variance)
        x = normed(joined(y, F))
        odds += [state.t_sim(cfg.n) / state.t_div(cfg.n) for state in (y, x)]
        curve.append(x.t_sim(cfg.n))
    steps = torch.tensor(odds, dtype=torch.float64).log().diff()
    return steps.unflatten(0, (-1, 2)), torch.tensor(curve, dtype=torch.float64)


def share(growth: Tensor) -> Tensor:
    """The network's part of all growth of log odds, (..., depth, 2) -> (...)."""
    return growth[..., 1].sum(-1) / growth.sum((-2, -1))


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    measured, forecast = numbers["measured"], numbers["forecast"]
    t_sim, expected_t_sim = numbers["t_sim"], numbers["t_sim_forecast"]
    off, crossed = ((t_sim - one).abs().mean(-1) for one in (expected_t_sim, expected_t_sim.flip(1)))
    early, late = slice(0, 4), slice(-2, None)
    rows: list[Row] = []
    for i, name in enumerate(NETWORKS):
        found, expected = share(measured[i, 0, early]), share(forecast[i, 0, early])
        first, last = measured[i, 0, 0, 1], measured[i, 0, late, 1].mean()
        part = f"{name}: network's share of the growth in blocks 1 to 4, minus forecast"
        rows += [  # the null: a neutral network; the growth of block 1; the forecast with the other attention
            (part, found - expected, -0.06, 0.06, -expected),
            (f"{name}: growth a block by the network near the end", last, -0.06, 0.06, first),
            (f"{name}: error of forecast t_sim, with attention", off[i, 0], 0.0, 0.04, crossed[i, 0]),
            (f"{name}: error of forecast t_sim, network alone", off[i, 1], 0.0, 0.04, crossed[i, 1]),
        ]
    names = list(NETWORKS)
    xavier, he = names.index("Xavier, ReLU"), names.index("He, ReLU")
    rows += [
        ("Xavier, ReLU: the network's share in blocks 1 to 4", share(measured[xavier, 0, early]), 0.15, 0.6, 0.0),
        ("He, ReLU: the network's share in blocks 1 to 4", share(measured[he, 0, early]), 0.3, 0.8, 0.0),
        ("He, ReLU: t_sim at the end without any attention", t_sim[he, 1, -1], 0.5, 1.0, t_sim[he, 1, 0]),
    ]
    neutral = ("the FFN is neutral: Xavier ReLU's growth in block 1", measured[xavier, 0, 0, 1], -0.05, 0.05)
    return stated(cfg.trials, *rows) + stated(cfg.trials, neutral, expected=False)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    blocks = range(1, cfg.depth + 1)
    for i, name in enumerate(NETWORKS):
        line = left.plot(blocks, numbers["measured"][i, 0, :, 1], marker=".", lw=0, label=name)[0]
        left.plot(blocks, numbers["forecast"][i, 0, :, 1], color=line.get_color(), lw=1)
        right.plot(numbers["t_sim"][i, 1], color=line.get_color(), marker=".", lw=0, label=name)
        right.plot(numbers["t_sim_forecast"][i, 1], color=line.get_color(), lw=1)
    left.axhline(0, color="k", lw=0.8)
    left.set(title="growth of log odds by the network\nbeside attention; lines: two numbers", xlabel="block")
    right.set(title="$t_{sim}$ without attention", xlabel="block", ylim=(0, 1))
