"""What is trained: a model by its sizes and choices, with or without a remedy; which kind is the task's choice."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from depthscope.errors import UnknownNameError, UsageError
from depthscope.records import plain, since
from depthscope.registry import unknown
from depthscope.remedies.by_name import remedy_called, remedy_class
from depthscope.remedies.fix import CAUSAL, Fix, fix_

OF_A_DESIGN = ("depth", "d", "h", "q", "wiring", "weights", "output", "alpha", "activation")


@dataclass(frozen=True)
class Build:
    """depth blocks of width d with h heads and feed-forward width q (0: twice d); Design has the choices.

    pooling is for tasks with one answer for all tokens. remedy is a name as "de_escalate", remedy_settings are its
    arguments, at is its site (None: the task's choice, else its own), causal is said to fix_: "leak" insists on a form
    that shows causal models their future. scores is a factor on what the softmax reads at the start.
    """

    depth: int = 24
    d: int = 32
    h: int = 4
    q: int = 0
    wiring: str = "post_norm"
    weights: str = "torch_default"
    output: bool = True
    pooling: str = "cls"
    remedy: str | None = None
    remedy_settings: dict[str, Any] = field(default_factory=dict)
    at: str | None = None
    causal: str = "auto"
    alpha: float = since(3, default=1.0)
    activation: str = since(3, default="relu")
    scores: float = since(3, default=1.0)

    def __post_init__(self) -> None:
        if not isinstance(self.output, bool):
            raise UsageError(f"build: output must be true or false; got {self.output!r}.")
        if not isinstance(self.scores, int | float) or not 0 < self.scores < math.inf:
            raise UsageError(
                f"build: scores must be positive and finite; got {self.scores!r}. 1 leaves W_q and W_k alone."
            )
        if not isinstance(self.remedy_settings, dict):
            raise UsageError(f"build: remedy_settings must be names with values; got {self.remedy_settings!r}.")
        if self.causal not in CAUSAL:
            raise UnknownNameError("build: " + unknown("choice of causal", self.causal, CAUSAL))
        said = self.remedy_settings or self.at or (self.causal if self.causal != "auto" else None)
        if self.remedy is None and said:
            raise UsageError(
                f"build: remedy_settings, at and causal say how a remedy acts; none was named, and got {said!r}. "
                'Add remedy="de_escalate", or leave them out.'
            )
        if self.q == 0:
            object.__setattr__(self, "q", 2 * self.d)

    @property
    def choices(self) -> dict[str, Any]:
        """What a Design needs to know."""
        return {name: getattr(self, name) for name in OF_A_DESIGN}

    def model(self, task: Any, seed: int) -> tuple[nn.Module, Fix | None]:
        """A model for the task, and the handle of its remedy.

        The weights depend on the seed alone, drawn before the remedy comes: arms of the same wiring start equal.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = task.model(self)
            if self.scores != 1:
                scale_scores_(model, self.scores)
            return model, None if self.remedy is None else self._fixed(model, task)

    def _fixed(self, model: nn.Module, task: Any) -> Fix:
        """The remedy in place, and its first look taken: a model that is spread over processes cannot be looked at."""
        name = str(self.remedy)
        site = self.at or task.sites.get(remedy_class(name).__name__)
        handle = fix_(model, remedy_called(name, self.d, **self.remedy_settings), at=site, causal=self.causal)
        was = model.training
        for training in (True, False):  # it learns in one mode and is measured in the other
            model.train(training)
            handle.prepare(*task.first_call())
        model.train(was)
        return handle

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return plain(self)


@torch.no_grad()
def scale_scores_(model: nn.Module, factor: float) -> None:
    """Multiply what the softmax reads: W_q and W_k of every block by the root of the factor."""
    matrices = [module for name, module in model.named_modules() if name.rpartition(".")[-1] in ("W_q", "W_k")]
    if not matrices:
        raise UsageError("build: scores acts on W_q and W_k of reference models; this model has none. Leave it out.")
    for matrix in matrices:
        matrix.weight.mul_(factor**0.5)
