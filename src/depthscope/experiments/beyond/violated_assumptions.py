"""What if the assumptions of the analysis fail? Attention steps with other kinds of weights and attention matrices.

Yu & Zhang 2023 assume that W is Gaussian and independent in every layer, and that P has a large spectral gap. We take
steps X -> LN(X + P X W) from tokens of t_sim = 0.99. Under these assumptions a step multiplies the odds t_sim / t_div
by 1 + d Var(W) = 2, which adds log 2 to the log odds. Each case breaks one assumption. For each we also test tau = 0.5,
which is enough for gains up to 4. It is enough in all cases but one, which is known to differ: if all layers have the
same W, the mean token turns into W's leading direction, and the gain there comes near 4.

depthscope reproduce beyond/violated_assumptions     about 10 s: 12 cases, 8 layers, 24 trials.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from depthscope.experiments.chains import log_odds
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.experiments.random import alike_tokens
from depthscope.metrics import t_sim
from depthscope.remedies.de_escalate import DeEscalate

TAU, START = 0.5, 0.99


def _gaussian(trials: int, d: int) -> Tensor:
    return torch.randn(trials, d, d, dtype=torch.float64) / d**0.5


def _heavy(trials: int, d: int) -> Tensor:
    """Student's t with 4 degrees of freedom, variance 2, brought to 1 / d."""
    return torch.distributions.StudentT(torch.tensor(4.0).double()).sample((trials, d, d)) / (2 * d) ** 0.5


def _sparse(trials: int, d: int) -> Tensor:
    return _gaussian(trials, d) * (torch.rand(trials, d, d) < 0.1) / 0.1**0.5


def _low_rank(trials: int, d: int) -> Tensor:
    """Rank d / 8, entries of variance 1 / d."""
    return _gaussian(trials, d)[..., : d // 8] @ _gaussian(trials, d)[..., : d // 8, :] * 8**0.5


def _symmetric(trials: int, d: int) -> Tensor:
    W = _gaussian(trials, d)
    return (W + W.mT) / 2**0.5


LAWS: dict[str, Callable[[int, int], Tensor]] = {
    "Gaussian": _gaussian,
    "uniform": lambda trials, d: (2 * torch.rand(trials, d, d, dtype=torch.float64) - 1) * (3 / d) ** 0.5,
    "heavy tails": _heavy,
    "one in ten not zero": _sparse,
    "orthogonal": lambda trials, d: torch.linalg.qr(_gaussian(trials, d)).Q,
    "rank d / 8": _low_rank,
    "symmetric": _symmetric,
    "one W for all layers": _gaussian,
    "W = -I / 2": lambda trials, d: -torch.eye(d, dtype=torch.float64).expand(trials, d, d) / 2,
}
ALIKE = ("uniform", "heavy tails", "one in ten not zero", "orthogonal", "rank d / 8", "symmetric")
ATTENTIONS = ("causal", "window of 3", "P = I")
CASES = (*LAWS, *ATTENTIONS)


@dataclass(frozen=True)
class Config:
    """`trials` chains of `depth` attention steps for each case, with tau and without."""

    trials: int = 24
    depth: int = 8
    n: int = 32
    d: int = 128
    seed: int = 0


SMOKE = Config(trials=6, depth=6, n=16, d=64)


def run(cfg: Config) -> dict[str, Tensor]:
    """Growth of log odds in a layer without tau, (cases,), and t_sim at the end without and with it, (2, cases)."""
    growth, end = [], []
    for case in track(CASES, len(CASES)):
        X = alike_tokens(START, cfg.trials, cfg.n, cfg.d)
        plain, mended = _chain(cfg, case, X, 0.0), _chain(cfg, case, X, TAU)
        growth.append((log_odds(plain) - log_odds(X)).mean() / cfg.depth)
        end.append(torch.stack([t_sim(plain).mean(), t_sim(mended).mean()]))
    return {"growth": torch.stack(growth), "t_sim": torch.stack(end, -1)}


def _chain(cfg: Config, case: str, X: Tensor, tau: float) -> Tensor:
    draw_weights = LAWS.get(case, _gaussian)
    first, remedy = draw_weights(cfg.trials, cfg.d), DeEscalate(tau)
    for _ in range(cfg.depth):
        W = first if case == "one W for all layers" else draw_weights(cfg.trials, cfg.d)
        X = remedy(layer_norm(X + _attention(case, X) @ X @ W, X.shape[-1:]))
    return X


def _attention(case: str, X: Tensor) -> Tensor:
    """P (trials, n, n): softmax of random scores of the tokens, under a mask; the identity where nothing is mixed."""
    trials, n, d = X.shape
    place = torch.arange(n)
    ago = place.unsqueeze(1) - place
    barred = {"causal": ago < 0, "window of 3": ago.abs() > 1, "P = I": ago != 0}.get(case, torch.zeros(n, n).bool())
    scores = (X @ _gaussian(trials, d)) @ (X @ _gaussian(trials, d)).mT / d**0.5
    return scores.masked_fill(barred, -torch.inf).softmax(-1)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    share = dict(zip(CASES, (numbers["growth"] / math.log(2)).tolist(), strict=True))
    mended = dict(zip(CASES, numbers["t_sim"][1].tolist(), strict=True))
    off = max(abs(share[case] - 1) for case in ALIKE)
    held = max(mended[case] for case in CASES if case != "P = I")
    over = "growth of log odds over log 2"
    return [
        *stated(
            cfg.trials,
            (f"Gaussian: {over}", share["Gaussian"], 0.8, 1.2, 0.0),
            (f"other laws of equal variance: largest difference of {over} from 1", off, 0.0, 0.25, 1.0),
            (f"one W for all layers: {over}", share["one W for all layers"], 1.1, 2.0, share["Gaussian"]),
            (f"W = -I / 2, tokens come apart: {over}", share["W = -I / 2"], -4.0, -0.1, share["Gaussian"]),
            (f"window of 3, no spectral gap: {over}", share["window of 3"], -0.1, 0.5, share["Gaussian"]),
            (f"P = I, nothing is mixed: {over}", share["P = I"], -0.1, 0.1, share["Gaussian"]),
        ),
        *stated(
            cfg.trials,
            (f"tau {TAU:g} holds them all (largest t_sim where tokens are mixed)", held, 0.0, 0.9),
            expected=False,
        ),
        *reported(
            cfg.trials,
            *((f"{case}: {over}", value) for case, value in share.items()),
            *((f"{case}: t_sim with tau {TAU:g}", value) for case, value in mended.items()),
        ),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    growth, end = figure.subplots(1, 2, sharey=True)
    growth.barh(CASES, (numbers["growth"] / math.log(2)).tolist())
    growth.axvline(1, color="0.4", lw=0.8)
    growth.set(title="growth of log odds in a layer / log 2")
    end.barh(CASES, numbers["t_sim"][1].tolist())
    end.set(title=rf"t_sim with $\tau$ = {TAU:g}, from {START:g}", xlim=(0, 1))
