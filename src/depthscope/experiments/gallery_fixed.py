"""Models of the gallery with a remedy in place: healed, not healed, and healed in appearance."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.models.gallery.entry import COLLAPSED, HEALTHY, VANISHED, Built, Entry, Shelf
from depthscope.models.gallery.random_models import pure_attention
from depthscope.models.gallery.writers import MeanHead
from depthscope.models.transformer import classic
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.remedies.fix import fix_

# what: (tau, form, choices of the design, depths, statuses, why)
HEALED: dict[str, tuple[float, str, dict[str, Any], tuple[int, ...], frozenset[str], str]] = {
    "post-norm, tau 1": (1.0, "full", {}, (12, 24), HEALTHY, "The mean token is removed after every block."),
    "post-norm, tau 0.5": (0.5, "full", {}, (24, 36), HEALTHY, "tau 0.5 is above the critical 0.29: t_div stays."),
    "with W_O, tau 0.4": (0.4, "full", {"output": True}, (24, 36), HEALTHY, "tau is above critical: t_div stays."),
    "causal, sink": (0.5, "sink", {"causal": True}, (12, 24), HEALTHY, "tau 0.5 of the causal mean is removed."),
    "post-norm, tau 0.03": (0.03, "full", {}, (48, 60), COLLAPSED, "tau 0.03 is far below critical: t_div falls."),
}


def fixed_gallery(seed: int) -> list[Entry]:
    """All entries with remedies."""
    shelf = Shelf(seed)
    for what, (tau, form, choices, depths, allowed, why) in HEALED.items():
        name = f"de-escalated: {what}"
        r = shelf.draw(name)
        sizes = {"depth": r.choice(depths), "d": r.choice([48, 64]), "h": 4, "q": r.choice([64, 128])}
        make = partial(_healed, sizes | choices, r.choice([16, 32]), tau, form)
        shelf.add(name, "de-escalated", allowed, f"A post-norm model of {sizes['depth']} blocks. {why}", make)
    for norm in (nn.LayerNorm, nn.RMSNorm):
        name = f"pure attention with {norm.__name__}, without its mean"
        r = shelf.draw(name)
        why = (
            "Attention and norms lose all but one direction; removing the mean in every block leaves a line of tokens."
        )
        make = partial(_centred, r.choice([12, 16]), r.choice([16, 32]), r.choice([32, 48]), norm)
        shelf.add(name, "de-escalated", COLLAPSED, why, make)
    name = "de-escalated: complete, and the mean is read"
    why = "The mean token is removed after the last block, and the head reads the mean: only rounding is left."
    depth = shelf.draw(name).choice([6, 12])
    shelf.add(name, "vanished", VANISHED, why, partial(_pooled, depth))
    return shelf.entries


def _first_look(model: nn.Module, X: Tensor) -> Built:
    """A remedy finds its places in the first pass: afterwards it acts in every one."""
    with torch.no_grad():
        model.eval()(X)
    return model, X


def _healed(choices: dict[str, Any], n: int, tau: float, form: str) -> Built:
    model = classic(**choices)
    fix_(model, DeEscalate(tau, form=form))
    return _first_look(model, torch.randn(3, n, choices["d"]))


def _centred(depth: int, n: int, d: int, norm: type[nn.Module]) -> Built:
    model, X = pure_attention(depth, n, d, h=1, norm=norm)
    fix_(model, DeEscalate(1.0), blocks="blocks.*")
    return _first_look(model, X)


class Pooled(nn.Module):
    """A stack of blocks, and scores from its mean token."""

    def __init__(self, depth: int, d: int) -> None:
        super().__init__()
        self.stack, self.head = classic(depth, d, 4), MeanHead(d)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(self.stack(X))


def _pooled(depth: int) -> Built:
    model = Pooled(depth, 48)
    fix_(model, DeEscalate(1.0))
    return _first_look(model, torch.randn(4, 32, 48))
