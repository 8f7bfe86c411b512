"""Does a remedy show a causal model its future? On tokens that cannot be predicted, any loss below ln 8 is a leak.

Next-token prediction on independent uniform tokens of 8 symbols: no causal model can beat ln 8 = 2.079. With a remedy
that takes its mean over the whole sequence it can, because the mean contains the tokens to predict.

depthscope reproduce beyond/leak     about 20 s on two cores. De-escalation at ffn_in, full mean against causal forms.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.models.transformer import classic
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.remedies.fix import fix_

FORMS = ("none", "sink", "prefix", "past", "full")
SYMBOLS = 8


@dataclass(frozen=True)
class Config:
    """A small causal Transformer, new tokens in every step, AdamW."""

    steps: int = 300
    depth: int = 4
    d: int = 64
    h: int = 4
    n: int = 16
    batch: int = 32
    lr: float = 1e-3
    seed: int = 0


SMOKE = Config(steps=200, depth=2, d=32, n=8, lr=3e-3)


class Predictor(nn.Module):
    """Symbols (B, n) -> scores of the next symbol (B, n, 8)."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, cfg.d)
        self.positions = nn.Parameter(torch.randn(cfg.n, cfg.d))
        self.transformer = classic(cfg.depth, cfg.d, cfg.h, q=2 * cfg.d, weights="xavier", causal=True)
        self.head = nn.Linear(cfg.d, SYMBOLS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.transformer(self.embed(ids) + self.positions))


def run(cfg: Config) -> dict[str, Tensor]:
    """The loss in every step of training, (forms, steps)."""
    return {"loss": torch.stack([_trained(cfg, form, done) for done, form in enumerate(FORMS)])}


def _trained(cfg: Config, form: str, done: int) -> Tensor:
    torch.manual_seed(cfg.seed)  # the same weights and the same tokens for every form
    model = Predictor(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    if form != "none":
        fix_(model, DeEscalate(form=form), at="ffn_in", causal="leak" if form == "full" else "auto")
    losses = []
    for _ in track(range(cfg.steps), cfg.steps * len(FORMS), done=done * cfg.steps):
        ids = torch.randint(0, SYMBOLS, (cfg.batch, cfg.n + 1))
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    final = numbers["loss"][:, -max(1, cfg.steps // 6) :].mean(1)
    safe = [
        (f"{form}: does not train below ln 8 (loss at the end)", loss, math.log(8) - 0.02, math.inf, final[-1])
        for form, loss in zip(FORMS[:-1], final, strict=False)
    ]
    return stated(1, *safe, ("full mean: does, because it leaks (loss at the end)", final[-1], 0.0, 1.0, math.log(8)))


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    ax = figure.subplots()
    for form, row in zip(FORMS, numbers["loss"], strict=True):
        ax.plot(row, lw=1, label="no remedy" if form == "none" else form)
    ax.axhline(math.log(8), color="k", ls=":", lw=1, label="ln 8")
    ax.set(title="next-token loss on unpredictable tokens, DeEscalate at ffn_in", xlabel="step", ylim=(0, 3))
