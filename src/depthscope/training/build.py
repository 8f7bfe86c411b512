"""What is trained: a model by its sizes and choices, with or without a remedy; which kind is the task's choice."""

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from depthscope.errors import UnknownNameError, UsageError
from depthscope.registry import TABLES, lookup, unknown
from depthscope.remedies.fix import CAUSAL, Fix, fix_


@dataclass(frozen=True)
class Build:
    """depth blocks of width d with h heads and feed-forward width q (0: twice d); Design has the choices.

    pooling is for tasks with one answer for all tokens. remedy is a name as "de_escalate", remedy_settings are its
    arguments, at is its site (None: the task's choice, else its own), causal is said to fix_: "leak" insists on a form
    that shows causal models their future.
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

    def __post_init__(self) -> None:
        if not isinstance(self.output, bool):
            raise UsageError(f"build: output must be true or false; got {self.output!r}.")
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
        return {name: getattr(self, name) for name in ("depth", "d", "h", "q", "wiring", "weights", "output")}

    def model(self, task: Any, seed: int) -> tuple[nn.Module, Fix | None]:
        """A model for the task, and the handle of its remedy.

        The weights depend on the seed alone, drawn before the remedy comes: arms of the same wiring start equal.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = task.model(self)
            return model, None if self.remedy is None else self._fixed(model, task)

    def _fixed(self, model: nn.Module, task: Any) -> Fix:
        """The remedy in place, and its first look taken: a model that is spread over processes cannot be looked at."""
        remedy = remedy_named(str(self.remedy))
        takes = inspect.signature(remedy).parameters
        sizes = {"d": self.d} if "d" in takes and takes["d"].default is inspect.Parameter.empty else {}
        for name, value in self.remedy_settings.items():  # "no" is a word, and every word is true to Python
            if name in takes and isinstance(takes[name].default, bool) and not isinstance(value, bool):
                raise UsageError(f"build: {name} of {remedy.__name__} must be true or false; got {value!r}.")
        try:
            built = remedy(**sizes | self.remedy_settings)
        except TypeError as error:
            raise UsageError(f"build: remedy_settings must be arguments of {remedy.__name__}; {error}.") from None
        handle = fix_(model, built, at=self.at or task.sites.get(remedy.__name__), causal=self.causal)
        handle.prepare((task.probe(torch.device("cpu"))[:2],), {})
        return handle

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def remedy_named(name: str) -> Callable[..., nn.Module]:
    """The class of a remedy by its class name or in snake case: DeEscalate, de_escalate."""
    plain = {known.lower(): known for known in TABLES["remedy"]}
    return lookup("remedy", plain.get(name.lower().replace("_", ""), name))
