"""The bounds: do they hold on random networks, is one layer cubic, and where does what is printed fail?

Pure attention "converges doubly exponentially to a rank-1 matrix" (Dong et al. 2021, theorems 2.2 and 2.3). Random
networks are run with attention alone and with skips; in every layer scores differ by at most 1.256. The differences
between tokens are computed separately from the tokens, so that 1e-60 is measured as exactly as 1e-3.

depthscope reproduce dong2021/bounds     about 20 s. Two claims are known not to hold: the printed bounds for several
heads and for skips use a triangle inequality, which |.|_{1,inf} does not have. Both break for two tokens, e_1 and -e_1,
and a value matrix that is far larger by rows than by columns. Our head_norms, attention_bound and skip_bound hold there
too.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, of_another, stated
from depthscope.experiments.progress import track
from depthscope.theory import attention_bound, head_norms, printed_skip_bound, rank_collapse_bound, skip_bound
from depthscope.theory.softmax_perturbation import PRECONDITION, score_residual, score_spread
from depthscope.theory.split_attention import SplitTokens, split_attention

SMALL = 1e-60  # a residual below which the next one would be no number


@dataclass(frozen=True)
class Config:
    """networks: that meet the precondition, of each kind. narrow, wide: widths at which the made networks are shown."""

    networks: int = 1000
    depth: int = 4
    heads: int = 4
    n: int = 20
    d: int = 16
    narrow: int = 1024
    wide: int = 1 << 17
    seed: int = 0


SMOKE = Config(networks=150)


@dataclass(frozen=True)
class Layer:
    """One layer of random heads; W_Q, W_K, W (H, d, d)."""

    W_Q: Tensor
    W_K: Tensor
    W: Tensor
    b_Q: Tensor

    @classmethod
    def drawn(cls, d: int, H: int, size: float, lopsided: float) -> "Layer":
        W_Q, W_K, W = (size * torch.randn(H, d, d, dtype=torch.float64) / d for _ in range(3))
        uneven = [(lopsided * torch.randn(H, *shape, dtype=torch.float64)).exp() for shape in ((d, 1), (1, d))]
        return cls(W_Q, W_K, W * uneven[0] * uneven[1], torch.randn(H, d, dtype=torch.float64))

    @property
    def scale(self) -> float:
        return self.W_Q.shape[-1] ** -0.5

    def after(self, X: SplitTokens) -> SplitTokens:
        one, none = (f(self.W.shape[-1], dtype=torch.float64) for f in (torch.eye, torch.zeros))
        return split_attention(X, self.W_Q, self.W_K, self.b_Q, self.W, one, offset=none, scale=self.scale)

    def norms(self) -> tuple[Tensor, Tensor]:
        return head_norms(self.W_Q @ self.W_K.mT, self.W, scale=self.scale)

    def beta(self) -> float:
        pairs = [head_norms(QK[None], W[None], scale=1.0) for QK, W in zip(self.W_Q @ self.W_K.mT, self.W, strict=True)]
        return max(float((a * b).sqrt()) for a, b in pairs)


def log_size(X: Tensor) -> float:
    """log10 |X|_{1,inf}."""
    return float((X.abs().sum(-2).amax().log10() + X.abs().sum(-1).amax().log10()) / 2)


def random_steps(cfg: Config, *, skips: bool) -> Iterator[list[tuple[Layer, SplitTokens, SplitTokens, float]]]:
    """Networks that meet the precondition: of every layer the weights, what it reads, what it leaves, and D."""
    while True:
        ranges = ((2, cfg.n), (2, cfg.d), (1, cfg.heads), (1, cfg.depth))
        n, d, H, L = (int(torch.randint(low, high + 1, ())) for low, high in ranges)
        size, lopsided, spread = (float(v) for v in torch.rand(3))
        X = torch.randn(1, d, dtype=torch.float64)
        tokens = SplitTokens.of(X + 10 ** (2.5 * spread - 2) * torch.randn(n, d, dtype=torch.float64))
        steps = []
        for _ in range(L):
            layer = Layer.drawn(d, H, 0.3 + 2.5 * size, lopsided)
            D = float(score_spread(score_residual(tokens.R, layer.W_Q, layer.W_K, scale=layer.scale)).max())
            out = layer.after(tokens)
            out = tokens.plus(out) if skips else out
            steps.append((layer, tokens, out, D))
            tokens = out
            if log_size(out.R) < math.log10(SMALL):
                break
        if max(D for *_, D in steps) <= PRECONDITION:
            yield steps


def run(cfg: Config) -> dict[str, Tensor]:
    """log10 of the residual before and after every layer, of the bounds, and of what the made networks reach."""
    rows: dict[str, list[list[float]]] = {"pure": [], "skips": []}
    for turn, name in enumerate(rows):
        drawn = random_steps(cfg, skips=name == "skips")
        for _ in track(range(cfg.networks), 2 * cfg.networks, done=turn * cfg.networks):
            for depth, (layer, before, after, D) in enumerate(next(drawn)):
                a, b = layer.norms()
                log_r, H = log_size(before.R), len(layer.W)
                d = layer.W.shape[-1]
                if name == "pure":
                    holds = attention_bound(10**log_r, a, b, D=D)
                    printed = rank_collapse_bound(10**log_r, 1, layer.beta(), d, heads=H)
                else:
                    holds = skip_bound(log_r, a, b, D=D)
                    printed = printed_skip_bound(10**log_r, 1, layer.beta(), d, heads=H)
                rows[name].append([depth, log_r, log_size(after.R), float(holds), float(printed)])
    numbers = {name: torch.tensor(value, dtype=torch.float64) for name, value in rows.items()}
    made = [made_network(d, skips) for d, skips in ((cfg.narrow, True), (cfg.wide, False))]
    return numbers | {"powers": powers(cfg), "made": torch.tensor(made, dtype=torch.float64)}


def powers(cfg: Config) -> Tensor:
    """Power with which the residual after 1, 2, 3 layers follows that of the input, near equal tokens."""
    layers = [Layer.drawn(cfg.d, cfg.heads, 1.0, 0.0) for _ in range(3)]
    R = torch.randn(cfg.n, cfg.d, dtype=torch.float64)
    ends = []
    for size in (1e-2, 1e-3):
        tokens, row = SplitTokens.of(size * R), []
        for layer in layers:
            tokens = layer.after(tokens)
            row.append(log_size(tokens.R))
        ends.append(torch.tensor(row, dtype=torch.float64))
    return ends[0] - ends[1]


def made_network(d: int, skips: bool, tau: float = 0.01) -> list[float]:
    """Found over printed, and found over ours: tokens e_1, -e_1, queries and keys see e_1 alone, with |W_QK|_1 s = tau.

    Then P - 1 q^T = tanh(tau) / 2 (1, -1; -1, 1), and SA(X) = +-tanh(tau) w, w the sum of the heads' first rows.
    """
    e_1 = torch.zeros(d, dtype=torch.float64)
    e_1[0] = 1
    wide = torch.ones(d, dtype=torch.float64)
    heads = [wide / (8 * math.sqrt(d) * math.tanh(tau))] if skips else [e_1, wide / math.sqrt(d)]
    SA = math.tanh(tau) * torch.stack(heads).sum(0)
    out = e_1 + SA if skips else SA
    a, b = tau * sum(float(w.abs().max()) for w in heads), tau * sum(float(w.abs().sum()) for w in heads)
    beta = max(tau * math.sqrt(float(w.abs().max()) * float(w.abs().sum())) for w in heads)
    log_r, found = log_size(torch.stack([e_1, -e_1])), log_size(torch.stack([out, -out]))
    if skips:
        printed, holds = printed_skip_bound(10**log_r, 1, beta, 1), skip_bound(log_r, a, b, D=2 * tau)
    else:
        printed = rank_collapse_bound(10**log_r, 1, beta, 1, heads=2)
        holds = attention_bound(10**log_r, a, b, D=2 * tau)
    return [10 ** (found - printed), 10 ** (found - holds)]


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    made: list[Claim] = []
    for name, label in (("pure", "pure attention"), ("skips", "with skips")):
        _, _, found, holds, printed = numbers[name].T
        for bound, which in ((holds, "the bound that holds"), (printed, "the printed one")):
            nearest, wrong = (float(10 ** (found - one).max()) for one in (bound, of_another(bound)))
            says = f"{label}: largest residual over {which}, all layers"
            made += stated(len(found), (says, nearest, 0, 1, wrong))  # the null: over that of another layer
    for depth, value in enumerate(numbers["powers"], 1):
        says, cube = f"power of the residual after {depth} layers", 3**depth
        made += stated(1, (says, value, 0.97 * cube, 1.03 * cube, 1))
    (skip_printed, skip_ours), (heads_printed, heads_ours) = numbers["made"].tolist()
    over = "residual over the printed bound"
    ours = "residual over the bound that holds"
    return [
        *made,
        *stated(1, (f"made network with skip: {ours}", skip_ours, 0, 1, skip_printed)),
        *stated(1, (f"made network of two heads: {ours}", heads_ours, 0, 1, heads_printed)),
        *stated(
            1,
            (f"made network with skip, width {cfg.narrow}: {over}", skip_printed, 0, 1),
            (f"made network of two heads, width {cfg.wide}: {over}", heads_printed, 0, 1),
            expected=False,
        ),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    rates, gaps, shown = figure.subplots(1, 3)
    depth, before, after, *_ = numbers["pure"].T
    for k in range(cfg.depth):
        these = depth == k
        rates.plot(before[these], after[these], ".", ms=3, label=f"layer {k + 1}")
    rates.axline((-2, -6), slope=3, color="0.4", lw=0.8, label="slope 3")
    rates.set(title="pure attention: one layer is cubic", xlabel="log10 residual before", ylabel="after")
    for index, (name, label) in enumerate((("pure", "pure attention"), ("skips", "with skips"))):
        _, _, found, holds, printed = numbers[name].T
        gaps.hist(holds - found, 40, histtype="step", color=f"C{index}", label=f"{label}, holds")
        gaps.hist(printed - found, 40, histtype="step", ls=":", color=f"C{index}", label=f"{label}, printed")
    gaps.axvline(0, color="0.4", lw=0.8)
    gaps.set(title="random networks: none passes a bound", xlabel="log10 of bound over residual", ylabel="layers")
    widths = [2**k for k in range(6, 21, 2)]
    for index, (skips, label) in enumerate(((True, "with skip"), (False, "two heads"))):
        ratios = [made_network(d, skips) for d in widths]
        shown.loglog(widths, [r[0] for r in ratios], color=f"C{index}", ls=":", label=f"{label}, over printed")
        shown.loglog(widths, [r[1] for r in ratios], color=f"C{index}", label=f"{label}, over what holds")
    shown.axhline(1, color="0.4", lw=0.8)
    shown.set(title="made networks: above 1, broken", xlabel="width d", ylabel="residual over bound")
