"""What is trained: a Vision Transformer by its sizes and choices, with or without a remedy."""

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from depthscope._registry import TABLES, lookup
from depthscope.errors import UsageError
from depthscope.models.vit import vit
from depthscope.remedies._fix import Fix, fix_


@dataclass(frozen=True)
class Build:
    """A ViT of depth blocks of width d with h heads and feed-forward width q; see ds.models.vit for the choices.

    remedy is a name as "de_escalate", remedy_settings are its arguments, at is its site (its own when None).
    """

    depth: int = 24
    d: int = 32
    h: int = 4
    q: int = 64
    wiring: str = "post_norm"
    weights: str = "torch_default"
    output: bool = True
    pooling: str = "cls"
    remedy: str | None = None
    remedy_settings: dict[str, Any] = field(default_factory=dict)
    at: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.output, bool):
            raise UsageError(f"build: output must be true or false; got {self.output!r}.")
        if not isinstance(self.remedy_settings, dict):
            raise UsageError(f"build: remedy_settings must be names with values; got {self.remedy_settings!r}.")
        if self.remedy is None and (self.remedy_settings or self.at is not None):
            raise UsageError(
                f"build: remedy_settings and at say how a remedy acts; none was named, and got "
                f'{self.remedy_settings or self.at!r}. Add remedy="de_escalate", or leave them out.'
            )

    def model(self, task: Any, seed: int) -> tuple[nn.Module, Fix | None]:
        """A model for the task's images and classes, and the handle of its remedy.

        The weights depend on the seed alone, drawn before the remedy comes: arms of the same wiring start equal.
        """
        channels, side, width = task.size
        if side != width:
            raise UsageError(f"build: images must be square; {task.name} has {side} x {width}. Crop or resize them.")
        choices = {name: getattr(self, name) for name in ("depth", "d", "h", "q", "wiring", "weights", "output")}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = vit(
                side=side, patch=task.patch, channels=channels, classes=task.classes, pooling=self.pooling, **choices
            )
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
        handle = fix_(model, built, at=self.at)
        handle.prepare((torch.zeros(2, *task.size),), {})
        return handle

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def remedy_named(name: str) -> Callable[..., nn.Module]:
    """The class of a remedy by its class name or in snake case: DeEscalate, de_escalate."""
    plain = {known.lower(): known for known in TABLES["remedy"]}
    return lookup("remedy", plain.get(name.lower().replace("_", ""), name))
