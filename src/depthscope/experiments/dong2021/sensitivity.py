"""What sets the speed of rank collapse: the formula of attention, sparse masks, sizes, norms, skips, the FFN's gain.

Dong et al. leave open how far the collapse of attention alone depends on architecture (width, heads, other formulas,
sparse attention as in BigBird or Linformer). We take one chain of random layers X <- SA(X), normalise tokens in between
as in every Transformer, and change one thing at a time. We measure the relative residual |res(X)| / |X| (composite
norm) after every layer. The rate is doubly exponential only if P is computed from the tokens; if P is drawn at random,
each layer divides the residual by a constant. A norm hides the gain of an FFN. Without norms a large gain keeps scores
large, and delays the collapse.

depthscope reproduce dong2021/sensitivity     about 25 s on two cores.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.metrics import relative_residual
from depthscope.models.design import shelves
from depthscope.registry import lookup


@dataclass(frozen=True)
class Config:
    LEAST = {"n": 12, "depth": 6}
    trials: int = 8
    n: int = 64
    d: int = 128
    h: int = 4
    depth: int = 16
    seed: int = 0


SMOKE = Config(trials=4, n=32, d=64, depth=12)

COLLAPSED = 1e-3
MASKS = ("causal", "window", "window + global")


@dataclass(frozen=True)
class Layer:
    """One kind of layer. mask (n, n) -> True where a token may look; hidden: how many random keys stand for all n
    (Linformer), 0 for none; ffn: the gain of a ReLU network after attention, He's is 1, 0 is none."""

    formula: str = "softmax"
    scores: float = 1.0
    d: int = 0  # 4: four times the config's, -4: a quarter of it, 0: the config's
    h: int = 0  # 0: the config's
    mask: Callable[[int], Tensor] | None = None
    hidden: int = 0
    norm: bool = True
    ffn: float = 0.0
    skip: bool = False


def window(n: int, reach: int = 1) -> Tensor:
    """Every token sees its neighbours within reach."""
    place = torch.arange(n)
    return (place[:, None] - place).abs() <= reach


def window_and_two(n: int) -> Tensor:
    """The same, and two tokens that see all and are seen by all (BigBird's global tokens)."""
    far = torch.arange(n) < 2
    return window(n) | far | far[:, None]


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


KINDS = {
    "softmax": Layer(),
    "uniform": Layer("uniform"),
    "sigmoid": Layer("sigmoid"),
    "gaussian": Layer("gaussian"),
    "sinkhorn": Layer("sinkhorn"),
    "drawn P": Layer("drawn"),
    "scores x 4": Layer(scores=4.0),
    "scores x 16": Layer(scores=16.0),
    "width / 4": Layer(d=-4),
    "width x 4": Layer(d=4),
    "1 head": Layer(h=1),
    "16 heads": Layer(h=16),
    "causal": Layer(mask=causal),
    "window": Layer(mask=window),
    "window + global": Layer(mask=window_and_two),
    "linformer": Layer(hidden=8),
    "no norm": Layer(norm=False),
    "FFN gain 1": Layer(ffn=1.0),
    "FFN gain 1, no norm": Layer(ffn=1.0, norm=False),
    "FFN gain 16, no norm": Layer(ffn=16.0, norm=False),
    "skip": Layer(skip=True),
    "skip, FFN": Layer(skip=True, ffn=1.0),
}


def run(cfg: Config) -> dict[str, Tensor]:
    """residual (kinds, trials, depth + 1)."""
    shelves()
    curves = [chain(kind, cfg) for kind in track(KINDS.values(), len(KINDS))]
    return {"residual": torch.stack(curves)}


def chain(kind: Layer, cfg: Config) -> Tensor:
    """Relative residual of tokens that start independent, (trials, depth + 1)."""
    d = cfg.d * kind.d if kind.d > 0 else cfg.d // -kind.d if kind.d else cfg.d
    kind = replace(kind, d=d, h=kind.h or cfg.h)
    X = torch.randn(cfg.trials, cfg.n, d, dtype=torch.float64)
    curve = [relative_residual(X)]
    for _ in range(cfg.depth):
        X = layer(kind, X)
        curve.append(relative_residual(X))
    return torch.stack(curve, 1)


def layer(kind: Layer, X: Tensor) -> Tensor:
    """X (trials, n, d) through one layer with matrices of its own for every trial, entries of variance 1/d."""
    d = X.shape[-1]

    def drawn(rows: int, columns: int) -> Tensor:
        return torch.randn(len(X), rows, columns, dtype=X.dtype) * rows**-0.5

    def split(Y: Tensor) -> Tensor:
        return Y.unflatten(-1, (kind.h, -1)).transpose(-2, -3)  # (trials, h, n, d / h)

    q, k, v = (split(X @ drawn(d, d)) for _ in range(3))
    if kind.hidden:  # a few random sums of keys and values in the place of all
        E = drawn(X.shape[1], kind.hidden).mT.unsqueeze(1)
        k, v = E @ k, E @ v
    Y = (pattern(kind, q, k) @ v).transpose(-2, -3).flatten(-2) @ drawn(d, d)
    Y = _normed(X + Y if kind.skip else Y, kind)
    if kind.ffn:
        Z = (Y @ drawn(d, 2 * d)).relu() @ drawn(2 * d, d) * (2 * kind.ffn) ** 0.5
        Y = _normed(Y + Z if kind.skip else Z, kind)
    return Y


def pattern(kind: Layer, q: Tensor, k: Tensor) -> Tensor:
    """P (trials, h, n, keys); drawn: scores that do not depend on the tokens, as in a graph network."""
    if kind.formula == "drawn":
        return torch.randn(*q.shape[:-1], k.shape[-2], dtype=q.dtype).softmax(-1)
    logits = lookup("attention", kind.formula)(q * kind.scores, k)
    return (logits if kind.mask is None else logits.masked_fill(~kind.mask(q.shape[-2]), -torch.inf)).softmax(-1)


def _normed(X: Tensor, kind: Layer) -> Tensor:
    return F.layer_norm(X, X.shape[-1:], eps=0.0) if kind.norm else X


def blocks_until(residual: Tensor) -> Tensor:
    """The first layer after which the mean over trials is below 1e-3, (kinds,); depth + 1 where none is."""
    below = residual.mean(1) < COLLAPSED  # (kinds, depth + 1)
    return torch.where(below.any(1), below.int().argmax(1), below.shape[1])


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    depth = dict(zip(KINDS, blocks_until(numbers["residual"]).tolist(), strict=True))
    last = dict(zip(KINDS, numbers["residual"].mean(1)[:, -1].tolist(), strict=True))
    formulas = [depth[k] for k in ("softmax", "uniform", "sigmoid", "gaussian", "sinkhorn", "drawn P")]
    r = numbers["residual"].log().mean(1)  # (kinds, depth + 1)
    softmax, drawn = (r[list(KINDS).index(kind)] for kind in ("softmax", "drawn P"))
    bend, cubic = ((row[k + 1] - 2 * row[k] + row[k - 1]).exp() for row, k in ((drawn, 5), (softmax, 3)))
    usual, never, gone = depth["softmax"], depth["skip"], last["softmax"]
    order, blind = (row[4] / row[3] for row in (softmax, drawn))
    large, ffn, skip = (last[kind] for kind in ("scores x 16", "FFN gain 1", "skip"))
    return stated(  # the null: P that ignores the tokens, or the other way round; skips, or attention alone
        cfg.trials,
        ("the rate is cubic: log r_4 / log r_3 of attention alone", order, 2.5, 3.5, blind),
        ("P that ignores the tokens: an exponential only, (r_6 / r_5) / (r_5 / r_4)", bend, 0.7, 1.4, cubic),
        ("attention alone: layers until the residual is below 1e-3", usual, 1, 6, never),
        ("so it is for every formula, P drawn at random included: most layers", max(formulas), 1, 6, never),
        ("wider networks collapse no later: layers at four times the width", depth["width x 4"], 1, usual, never),
        ("a norm makes no difference of two layers: layers without", depth["no norm"], usual - 1, usual + 1, never),
        ("a window of three tokens delays it twofold or more: layers", depth["window"], 2 * usual, 10**3, usual),
        ("large scores delay or stop it: residual at the end, scores x 16", large, COLLAPSED, 2.0, gone),
        ("an FFN alone does not stop it, at He's gain: residual at the end", ffn, 0, COLLAPSED, skip),
        ("with skips the residual stays: at the end", skip, 0.01, 2.0, gone),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    panels = {
        "formula, scores": ("softmax", "uniform", "sigmoid", "sinkhorn", "drawn P", "scores x 4", "scores x 16"),
        "sizes, masks": ("softmax", "width / 4", "width x 4", "16 heads", *MASKS, "linformer"),
        "norms, FFN, skips": ("softmax", "no norm", "FFN gain 1", "FFN gain 16, no norm", "skip", "skip, FFN"),
    }
    axes = figure.subplots(1, len(panels), sharey=True)
    names = list(KINDS)
    for ax, (title, kinds) in zip(axes, panels.items(), strict=True):
        for kind in kinds:
            mean = numbers["residual"][names.index(kind)].mean(0)
            ax.semilogy(mean.clamp(min=1e-16), label=kind, color="black" if kind == "softmax" else None)
        ax.axhline(COLLAPSED, color="0.5", ls=":", lw=1)
        ax.set(title=title, xlabel="layer", ylim=(1e-16, 3))
    axes[0].set_ylabel("relative residual (1: all different, 0: all alike)")
