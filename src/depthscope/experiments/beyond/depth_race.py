"""How deep can each design be trained? Post-norm, pre-norm and de-escalated post-norm, 6 to 80 blocks, one budget.

All have the same rate, steps, weights and data order for each seed. Two limits: post-norm fails at this rate, and not
at smaller ones (beyond/learning_rate). And pre-norm may only be slower: at 24 blocks (yu2023/fig6) it ties with the
de-escalated model after 20 epochs; other depths were not tried.

depthscope reproduce beyond/depth_race     about 5 minutes on two cores: digits, 5 depths, 6 epochs, 2 seeds.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.races import CHANCE, TEST_IMAGES, ends, last_similarity, run_race
from depthscope.experiments.trainings import Sizes
from depthscope.training.significance import chance_gap

ARMS = {"post_norm": "post-norm", "pre_norm": "pre-norm", "de_escalate": "de-escalated, tau = 1"}
SHORT = 10  # epochs, up to which pre-norm of great depth is still on its way


@dataclass(frozen=True)
class Config(Sizes):
    """depths: from one where all arms train to one where post-norm does not."""

    depths: tuple[int, ...] = (6, 12, 24, 48, 80)
    epochs: int = 6
    lr: float = 1e-3
    trials: int = 2


SMOKE = Config(depths=(2, 8), h=2, q=32, epochs=2, lr=8e-3, trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """Ends (depths, arms, seeds), and t_sim after the last block of the trained model, (depths, arms)."""
    recipe = {"epochs": cfg.epochs, "batch": cfg.batch, "lr": cfg.lr}
    total = len(cfg.depths) * len(ARMS) * cfg.trials
    races = [
        run_race(cfg.race(ARMS, cfg.model(depth), recipe), done=turn * len(ARMS) * cfg.trials, total=total)
        for turn, depth in enumerate(cfg.depths)
    ]
    return {
        "train_loss": torch.stack([ends(lanes, "train", "loss") for lanes in races]),
        "test_accuracy": torch.stack([ends(lanes, "test", "accuracy") for lanes in races]),
        "t_sim": torch.stack([last_similarity(lanes)[:, -1] for lanes in races]),
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    loss, accuracy = numbers["train_loss"].mean(2) / CHANCE, numbers["test_accuracy"].mean(2)
    least, most = min(cfg.depths), max(cfg.depths)
    shallow, deep = cfg.depths.index(least), cfg.depths.index(most)
    t_sim = numbers["t_sim"][:, 0]
    rows: list[Row] = [  # the null: a guess; what is trained where a guess is claimed
        (f"post-norm, {least} blocks: training loss over ln 10, a guess", loss[shallow, 0], 0.0, 0.5, 1.0),
        (f"post-norm, {most} blocks: the same", loss[deep, 0], 0.95, 1.1, loss[shallow, 0]),
        (f"post-norm, {most} blocks: t_sim after training", t_sim[deep], 0.95, 1.0, t_sim[shallow]),
        ("de-escalated: the same loss at the worst depth", loss[:, 2].max(), 0.0, 0.35, 1.0),
        ("de-escalated: test accuracy at the worst depth", accuracy[:, 2].min(), 0.75, 1.0, 0.1),
    ]
    if cfg.epochs <= SHORT:
        lag, noise = accuracy[deep, 2] - accuracy[deep, 1], chance_gap(TEST_IMAGES)
        rows.append((f"{most} blocks, short budget: pre-norm's accuracy is behind by", lag, noise, 1.0, 0.0))
    return stated(cfg.trials, *rows)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    loss, accuracy, tokens = figure.subplots(1, 3)
    for arm, label in enumerate(ARMS.values()):
        for ax, name in ((loss, "train_loss"), (accuracy, "test_accuracy")):
            values = numbers[name][:, arm]
            (line,) = ax.plot(cfg.depths, values.mean(1), "o-", label=label)
            ax.fill_between(cfg.depths, values.amin(1), values.amax(1), color=line.get_color(), alpha=0.15, lw=0)
        tokens.plot(cfg.depths, numbers["t_sim"][:, arm], "o-", label=label)
    loss.axhline(CHANCE, color="0.5", ls=":", lw=1)
    accuracy.axhline(0.1, color="0.5", ls=":", lw=1)
    epochs = f"{cfg.epochs} epochs, lr {cfg.lr:g}"
    loss.set(title=f"training loss after {epochs}", xlabel="blocks", ylim=(0, None))
    accuracy.set(title="test accuracy", xlabel="blocks", ylim=(0, 1.02))
    tokens.set(title="t_sim after the last block, trained", xlabel="blocks", ylim=(-0.02, 1.02))
