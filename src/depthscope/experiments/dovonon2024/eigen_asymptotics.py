"""The theorems on smoothing and sharpening: what eigenvalues predict, and what thousands of layers do.

"oversmoothing occurs when the eigenvalue corresponding to the constant eigenvector of the attention matrix dominates"
(of Dovonon et al. 2024). A is drawn from five kinds of row-stochastic matrices, and the known eigenvalues of H from
four distributions. The verdict of ds.theory.layer_spectrum is compared with a simulation of 2,000 layers X -> X + A X
H.

depthscope reproduce dovonon2024/eigen_asymptotics     about 20 s. Three statements of the paper do not hold. If both
eigenvalues of the dominating pair are complex, which is not rare, the state ends with rank two. If one is complex, the
direction of the state keeps turning. And no layer is low-pass "for all x": a state along another eigenvector of A stays
there.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.claim import Claim, of_another, stated
from depthscope.experiments.progress import track
from depthscope.experiments.random import KINDS, random_attention
from depthscope.experiments.spectra import LAWS, check_even, cyclic_attention, random_H
from depthscope.theory import LayerSpectrum, asymptotics, layer_spectrum, never_smooths
from depthscope.theory import always_smooths as always

ATTENTIONS = (*KINDS, "cyclic")
EQUAL = 1e-4  # hfc/lfc below it: tokens are alike
ALIKE = 0.1  # t_sim above 0.99


@dataclass(frozen=True)
class Config:
    """`cases` outside the tie margin, shared by all kinds of A and laws of H; depths are looked at on the way."""

    cases: int = 1000
    n: int = 12
    d: int = 8
    depth: int = 2000
    depths: tuple[int, ...] = (12, 24, 48)
    tie: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_even(self.d)
        if not self.depths or not 0 < min(self.depths) <= max(self.depths) < self.depth:
            raise UsageError(f"depths must lie above 0 and below the depth {self.depth}; got {self.depths}.")


SMOKE = Config(cases=200)


def run(cfg: Config) -> dict[str, Tensor]:
    """For every case the theory's numbers, and what was found at the depths and in the end."""
    cells = [(kind, law) for kind in range(len(ATTENTIONS)) for law in range(len(LAWS))]
    drawn = [_cell(cfg, kind, law, -(-cfg.cases // len(cells))) for kind, law in track(cells, 2 * len(cells))]
    A, H, h, kind, law = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    X = torch.randn(len(A), cfg.n, cfg.d, dtype=A.dtype)
    a, vectors = torch.linalg.eig(A)
    theory = layer_spectrum(h, a, tie=cfg.tie)
    marks = (*cfg.depths, cfg.depth)
    found = asymptotics(X, A, H, depths=marks)
    alone = asymptotics(X, A, H, depths=(cfg.depth,), residual=False)
    constant, rest = found.exponents
    numbers = {
        "kind": kind,
        "law": law,
        "margin": theory.margin,
        "gap": theory.gap,
        "rank_gap": theory.rank_gap,
        "lambda_H": torch.view_as_real(theory.lambda_H),
        "lambda_A": torch.view_as_real(theory.lambda_A),
        "always": always(h),
        "never": never_smooths(h),
        "limit_angle": _limit_angle(theory, a, vectors),
        "start": found.log_hfc_lfc[:, 0],
        "log_hfc_lfc": found.log_hfc_lfc[:, list(marks)],
        "exponent_margin": constant - rest,
        "rank_one_distance": found.rank_one_distance,
        "turn": found.turn[:, -1],
        "margin_alone": layer_spectrum(h, a, residual=False).margin,
        "log_hfc_lfc_alone": alone.log_hfc_lfc[:, -1],
    }
    return numbers | {"kept_by_eigenvector": _from_eigenvectors(cfg, A, H, a, vectors, theory, kind)}


def _cell(cfg: Config, kind: int, law: int, wanted: int) -> tuple[Tensor, ...]:
    """A, H, eigenvalues of H, kind and law of so many cases outside the tie margin."""
    kept: list[tuple[Tensor, ...]] = []
    while sum(len(part[0]) for part in kept) < wanted:
        name = ATTENTIONS[kind]
        A = cyclic_attention(wanted, cfg.n) if name == "cyclic" else random_attention(name, wanted, cfg.n)
        H, h = random_H(LAWS[law], wanted, cfg.d)
        clear = layer_spectrum(h, torch.linalg.eigvals(A), tie=cfg.tie).signs != 0
        kept.append((A[clear], H[clear], h[clear]))
    parts = [torch.cat(part)[:wanted] for part in zip(*kept, strict=True)]
    return *parts, torch.full((wanted,), kind), torch.full((wanted,), law)


def _limit_angle(theory: LayerSpectrum, a: Tensor, vectors: Tensor) -> Tensor:
    """atan(|Pi_2 v| / |Pi_1 v|) of the dominating eigenvector v of A: where sharpening ends."""
    index = (a - theory.lambda_A.unsqueeze(-1)).abs().argmin(-1)
    v = vectors[torch.arange(len(a)), :, index]  # (cases, n)
    mean = v.mean(-1, keepdim=True)
    return torch.atan2((v - mean).norm(dim=-1), math.sqrt(v.shape[-1]) * mean.squeeze(-1).abs())


def _from_eigenvectors(
    cfg: Config, A: Tensor, H: Tensor, a: Tensor, vectors: Tensor, theory: LayerSpectrum, kind: Tensor
) -> Tensor:
    """hfc/lfc after the first depth over that of the start, X = v y^T, for smoothing layers with real eigenvalues."""
    chosen = (kind == ATTENTIONS.index("causal")) & (theory.signs == 1)
    second = a.real[chosen].argsort(-1, descending=True)[:, 1]
    v = vectors.real[chosen].gather(-1, second[:, None, None].expand(-1, cfg.n, 1))  # (smoothing, n, 1)
    X = v * torch.randn(len(v), 1, cfg.d, dtype=A.dtype)
    logs = asymptotics(X, A[chosen], H[chosen], depths=cfg.depths[:1]).log_hfc_lfc
    return (logs[:, -1] - logs[:, 0]).exp()


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    margin, law, turn = (numbers[name] for name in ("margin", "law", "turn"))
    last = numbers["log_hfc_lfc"][:, -1]
    smooth, sharp, ended = margin > 0, margin < 0, last < math.log(EQUAL)
    settled, clear = numbers["gap"] > cfg.tie, numbers["rank_gap"] > cfg.tie
    both = _complex(numbers, "lambda_H") & _complex(numbers, "lambda_A")
    distance = numbers["rank_one_distance"]
    off = (last.exp().atan() - numbers["limit_angle"]).abs()
    apart = numbers["log_hfc_lfc_alone"] > math.log(EQUAL)
    early = (numbers["log_hfc_lfc"][:, :-1] < math.log(ALIKE)).double()
    deep = f"depth {cfg.depths[-1]}"
    # the null: the same of the cases that it is not said of; for what is said of all, the margin of another case
    rows: list[tuple[str, Tensor, str, Tensor, float, float]] = [
        ("all lambda_H in [-1, 0): never smooths (cases that do)", ended, "sum", law == 0, 0, 0),
        ("all lambda_H > 0: always smooths (cases that do not)", ~ended, "sum", law == 1, 0, 0),
        ("lambda_H of largest modulus > 0: always smooths", ~ended, "sum", numbers["always"], 0, 0),
        ("that of largest |1 + lambda_H| in the disc over [-1, 0]: never", ended, "sum", numbers["never"], 0, 0),
        ("smoothing ends in rank one (largest distance)", distance[:, -1], "max", smooth, 0, 1e-4),
        ("sharpening too, where the rank gap is above the tie's", distance[:, -1], "max", sharp & clear, 0, 1e-4),
        (f"but not at {deep} (median distance)", distance[:, -2], "median", sharp, 0.05, 1),
        ("one real eigenvalue dominates: the direction settles (largest turn)", turn, "max", settled, 0, 1e-4),
        ("sharpening ends at the angle of its eigenvector (largest error)", off, "max", sharp & settled, 0, 1e-3),
        (f"t_sim > 0.99 at {deep}: share of smoothing layers", early[:, -1], "mean", smooth, 0.75, 1),
        ("the same, at that depth or before: share of sharpening layers", early.amax(1), "mean", sharp, 0, 0.05),
    ]
    another = of_another(margin)
    differ, by_chance = (((one > 0) != ended).sum() for one in (margin, another))
    rate, wrong = ((numbers["exponent_margin"] - one).abs().max() for one in (margin, another))
    made = stated(
        len(margin),
        ("the verdict is what the simulation does (cases that differ)", differ, 0, 0, by_chance),
        ("the constant part gains on the rest by the margin (largest error)", rate, 0, 0.01, wrong),
    )
    early_rate = (numbers["start"] - numbers["log_hfc_lfc"][:, -2]) / cfg.depths[-1]
    error, wrong = ((early_rate - one)[smooth].abs().median() for one in (margin, another))
    says = f"rate of smoothing up to {deep}: median error of the margin"
    made += stated(int(smooth.sum()), (says, error, 0, 0.05, wrong))
    alone, with_it = numbers["margin_alone"] > cfg.tie, (~ended).sum()
    made += stated(int(alone.sum()), ("without the residual every layer smooths", apart[alone].sum(), 0, 0, with_it))
    for says, values, how, these, low, high in rows:
        if bool(these.any()):
            value, null = (getattr(values[some], how)() if bool(some.any()) else math.nan for some in (these, ~these))
            made += stated(int(these.sum()), (says, value, low, high, null))
    settles, kept = (numbers["gap"] > 0).double(), numbers["kept_by_eigenvector"]
    known = [
        ("rank one also where both eigenvalues are complex (largest distance)", distance[both, -1], "max", 0, 1e-3),
        ("the direction settles in every case (share)", settles, "mean", 1, 1),
        ("smoothing layers are low-pass for all x (largest part of hfc/lfc that is kept)", kept, "max", 0, 0.5),
    ]
    return made + [
        Claim(says, float(getattr(values, how)()), low, high, len(values), expected=False)
        for says, values, how, low, high in known
        if len(values)
    ]


def _complex(numbers: dict[str, Tensor], name: str) -> Tensor:
    return numbers[name][:, 1].abs() > 1e-9


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    figure.set_size_inches(14, 4.2)
    left, middle, right = figure.subplots(1, 3)
    smooth = numbers["margin"] > 0
    for these, colour, word in [(smooth, "C3", "smooths"), (~smooth, "C0", "sharpens")]:
        x, y = numbers["margin"][these], numbers["exponent_margin"][these]
        left.plot(x, y, ".", ms=3, color=colour, label=f"verdict: {word}")
    low, high = float(numbers["margin"].clamp(min=-3).min()), float(numbers["margin"].clamp(max=3).max())
    left.axline((0, 0), slope=1, color="0.4", lw=0.8)
    left.set(
        xlabel="margin by eigenvalues, for each layer",
        ylabel=f"what the simulation shows, {cfg.depth:,} layers",
        title="constant part against the rest",
        xlim=(low - 0.1, high + 0.1),
        ylim=(low - 0.1, high + 0.1),
    )
    steps = (0, *cfg.depths)
    logs = torch.cat([numbers["start"][:, None], numbers["log_hfc_lfc"][:, :-1]], 1)
    for these, colour, word in [(smooth, "C3", "smooths"), (~smooth, "C0", "sharpens")]:
        bands = logs[these].clamp(-30, 30).quantile(torch.tensor([0.1, 0.5, 0.9], dtype=logs.dtype), dim=0).exp()
        middle.semilogy(steps, bands[1], "o-", ms=4, color=colour, label=f"{word}: median, 10 to 90 %")
        middle.fill_between(steps, bands[0], bands[2], color=colour, alpha=0.15, lw=0)
    middle.set(xlabel="layer", ylabel="hfc / lfc = sqrt(t_div / t_sim)", title="at the depths of real models")
    both = _complex(numbers, "lambda_H") & _complex(numbers, "lambda_A")
    sharp = [(~smooth & ~both, "C0", "sharpens"), (~smooth & both, "C2", "sharpens, both complex")]
    ends = torch.arange(len(cfg.depths) + 1)
    for these, colour, word in [(smooth, "C3", "smooths"), *sharp]:
        lines = numbers["rank_one_distance"][these].clamp(min=1e-17)
        for line in lines[:: len(lines) // 40 + 1]:
            right.semilogy(ends, line, color=colour, lw=0.5, alpha=0.4)
        right.semilogy([], [], color=colour, label=word)
    right.set_xticks(ends.tolist(), [f"{depth:,}" for depth in (*cfg.depths, cfg.depth)])
    right.set(xlabel="layer", ylabel="distance from rank one", title="rank collapse comes with both verdicts")
