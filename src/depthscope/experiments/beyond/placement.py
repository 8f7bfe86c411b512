"""Where, how strongly, and learned or not? De-escalation in training at five sites, four strengths, with learnable tau.

These sites act on the residual stream: block_out, sa_sum (X + SA, before the norm) and ffn_in (with the residual).
These act on a branch alone: sa_out (the output of attention) and attn_in (its input); there the stream keeps its mean.

depthscope reproduce beyond/placement     about 5 minutes on two cores: digits, 48 blocks, 6 epochs, 2 seeds, 12 arms.

The budget is short and the seeds are few. So arms only count as trained or not; those that train are not ranked. An
earlier trial with other code, another split and one seed found that a branch alone and tau = 0.1 fail. Here both train,
a branch alone to a higher loss (0.34 to 0.61; the stream 0.19 to 0.24): known to differ.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.races import CHANCE, draw_accuracies, ends, last_similarity, run_race
from depthscope.experiments.trainings import Sizes

STREAM = ("block_out", "sa_sum", "ffn_in")
WEAK = 0.1  # tau, up to which it was said not to help
TRAINED, FAILED = 0.25, 0.95  # up to, and from: shares of the loss of a guess; what is between is neither
FULL = 6  # epochs; after fewer, ON_ITS_WAY and BEHIND stand for the two
ON_ITS_WAY, BEHIND = 0.65, 0.85


@dataclass(frozen=True)
class Config(Sizes):
    """Every site with tau = 1; every other tau at block_out; learned: taus to start from there, when they can move."""

    sites: tuple[str, ...] = ("block_out", "sa_sum", "ffn_in", "sa_out", "attn_in")
    taus: tuple[float, ...] = (0.1, 0.3, 0.5)
    learned: tuple[float, ...] = (0.1, 0.5, 1.0)
    depth: int = 48
    epochs: int = 6
    lr: float = 1e-3
    trials: int = 2


SMOKE = Config(
    sites=("block_out", "attn_in"), taus=(0.3,), learned=(0.5,), depth=8, h=2, q=32, epochs=1, lr=8e-3, trials=1,
    side_by_side=False,
)  # fmt: skip


def arms(cfg: Config) -> dict[str, str]:
    """What a reader calls an arm, and the arm."""
    return (
        {"none": "post_norm"}
        | {f"at {site}": f"de_escalate:tau=1,at={site}" for site in cfg.sites}
        | {f"tau {tau:g}": f"de_escalate:tau={tau:g},at=block_out" for tau in cfg.taus}
        | {f"tau from {tau:g}": f"de_escalate:tau={tau:g},learnable=true,at=block_out" for tau in cfg.learned}
    )


def run(cfg: Config) -> dict[str, Tensor]:
    """Ends (arms, seeds), and t_sim of the trained models, (arms, states)."""
    recipe = {"epochs": cfg.epochs, "batch": cfg.batch, "lr": cfg.lr}
    lanes = run_race(cfg.race(arms(cfg).values(), cfg.model(cfg.depth), recipe))
    return {
        "train_loss": ends(lanes, "train", "loss"),
        "test_accuracy": ends(lanes, "test", "accuracy"),
        "t_sim": last_similarity(lanes),
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    loss = dict(zip(arms(cfg), (numbers["train_loss"].mean(1) / CHANCE).tolist(), strict=True))
    fixed = {tau: loss[f"tau {tau:g}"] for tau in cfg.taus}
    learned = {tau: loss[f"tau from {tau:g}"] for tau in cfg.learned}
    train = {
        "tau 1 on the residual stream": [loss[f"at {site}"] for site in cfg.sites if site in STREAM],
        f"tau above {WEAK}": [fixed[tau] for tau in fixed if tau > WEAK],
        f"tau learned from above {WEAK}": [learned[tau] for tau in learned if tau > WEAK],
    }
    fail = {
        "tau 1 on a branch alone": [loss[f"at {site}"] for site in cfg.sites if site not in STREAM],
        f"tau of {WEAK} or less": [fixed[tau] for tau in fixed if tau <= WEAK],
        f"tau learned from {WEAK} or less": [learned[tau] for tau in learned if tau <= WEAK],
    }
    trained, failed = (TRAINED, FAILED) if cfg.epochs >= FULL else (ON_ITS_WAY, BEHIND)
    over = "training loss over ln 10"
    largest = [(f"{says}: largest {over}", max(of), 0.0, trained, loss["none"]) for says, of in train.items() if of]
    least = [(f"{says}: least {over}", min(of), failed, 1.1) for says, of in fail.items() if of]
    best = min(loss.values())
    return [
        *stated(cfg.trials, (f"without: {over}, a guess", loss["none"], failed, 1.1, best), *largest),
        *stated(cfg.trials, *least, expected=False),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    dots, tokens = figure.subplots(1, 2)
    names = list(arms(cfg))
    draw_accuracies(dots, numbers["test_accuracy"], names)
    for row, name in zip(numbers["t_sim"], names, strict=True):
        tokens.plot(row, lw=1, label=name)
    tokens.set(title="t_sim after training", xlabel="block", ylim=(-0.02, 1.02))
