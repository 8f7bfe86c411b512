"""Figure 5: how much token diversity is left if a share tau of the mean token is removed after every block.

"the levels of token diversity corresponding to 3 tau-values, 0.1, 0.5, 1, are around 0, 0.5 and 1, respectively"
(Yu & Zhang 2023, section 3.2).

depthscope reproduce yu2023/fig5     about 60 s on two cores. With the theory's variance 1/d the diversity at tau = 0.5
is 0.99, because g (1 - tau)^2 < 1 (a block multiplies the odds by g = 2). The paper's 0.5 appears when g is near the
critical 4: with W of variance h/d as printed, torch's default output projection, and a feed-forward network of He's
gain. With tau = 1 nothing is left of the mean, and diversity is 1 whatever a block does. So we also measure it before
the mean is removed. There it is 0.98, and 0.84 with He's gain (known to differ): that network makes tokens alike in one
step.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import ChainSizes
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.metrics import t_div
from depthscope.models.trials import chain
from depthscope.remedies.de_escalate import DeEscalate

SETTINGS: dict[str, tuple[dict[str, Any], str]] = {  # the weights of a Design, and what a reader should call them
    "unit_gain": ({"weights": "unit_gain"}, "Var W = 1/d (the theory)"),
    "projection": ({"weights": "paper_literal", "output": True}, "Var W = h/d, default output projection"),
    "strong_ffn": ({"weights": "paper_literal_he", "output": True}, "the same, FFN of He's gain"),
}


@dataclass(frozen=True)
class Config(ChainSizes):
    """The sizes of section 2.4, 20 runs; the depth is not given."""

    depth: int = 40
    taus: tuple[float, ...] = (0.1, 0.5, 1.0)

    def __post_init__(self) -> None:
        for tau in self.taus:
            DeEscalate(tau)  # refuses what is out of range


SMOKE = Config(trials=12, d=128, q=256)


def run(cfg: Config) -> dict[str, Tensor]:
    """Mean t_div over runs for each tau, (taus, depth + 1): after the mean token was reduced, and just before."""
    remedies = [DeEscalate(tau) for tau in cfg.taus]
    numbers = {}

    def reduce(Y: Tensor) -> Tensor:  # (trials, taus, n, d): all taus share the weights of their trial
        return torch.stack([remedy(Y[:, arm]) for arm, remedy in enumerate(remedies)], 1)

    for index, (name, (choices, _)) in enumerate(SETTINGS.items()):
        X = cfg.tokens().unsqueeze(1).expand(-1, len(cfg.taus), -1, -1)
        after, before = [t_div(X).mean(0)], [t_div(X).mean(0)]
        blocks = chain(cfg.design(cfg.depth, **choices), X, between=reduce)
        for states in track(blocks, cfg.depth * len(SETTINGS), done=index * cfg.depth):
            Y = states["out"]
            before.append(t_div(Y).mean(0))
            after.append(t_div(reduce(Y)).mean(0))
        numbers[name], numbers[f"{name}_before"] = torch.stack(after, 1), torch.stack(before, 1)
    return numbers


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    wanted = {0.1: (0.0, 0.05, "around 0"), 0.5: (0.35, 0.65, "around 0.5"), 1.0: (0.95, 1.0, "around 1")}
    made = []
    for name, (_, label) in SETTINGS.items():
        for tau, row, before in zip(cfg.taus, numbers[name], numbers[f"{name}_before"], strict=True):
            if tau not in wanted:
                continue
            low, high, level = wanted[tau]
            says, null = f"tau = {tau:g}: diversity {level}", 0.0 if tau == 1.0 else row[0]  # all is lost, or nothing
            if tau == 1.0:  # then nothing is left of the mean, and diversity is 1: what a block had made of that counts
                made += reported(cfg.trials, (f"{says}; {label}", row[-1]))
                says, row = f"{says}, before the mean is taken away", before
            expected = {0.5: name == "strong_ffn", 1.0: name != "strong_ffn"}.get(tau, True)
            made += stated(cfg.trials, (f"{says}; {label}", row[-1], low, high, null), expected=expected)
    if 0.5 in cfg.taus:
        middle = numbers["unit_gain"][cfg.taus.index(0.5), -1]
        made += stated(cfg.trials, ("tau = 0.5 already ends the escalation; Var W = 1/d", middle, 0.9, 1.0, 0.0))
    return made


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    panels = figure.subplots(1, len(SETTINGS), sharey=True)
    for ax, (name, (_, label)) in zip(panels, SETTINGS.items(), strict=True):
        for index, tau in enumerate(cfg.taus):
            ax.plot(numbers[name][index], color=f"C{index}", label=f"tau = {tau:g}" if ax is panels[0] else None)
            ax.plot(numbers[f"{name}_before"][index], ":", lw=1, color=f"C{index}")
        ax.set(title=label, xlabel="block (dotted: before the mean is reduced)", ylim=(-0.02, 1.05))
    panels[0].set_ylabel("token diversity t_div")
