"""A probe: scans of a model on the same batch, from time to time while it trains; the training does not notice them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.scans.record import Scan
from depthscope.scans.scan import scan
from depthscope.traces.modules import modules_in
from depthscope.traces.untouched import untouched

CURVES = ("t_sim", "t_div")


class Probe:
    """When to look at a model, and the look itself.

    inputs: a batch, a list of batches, or a function that gives one. every: steps between two looks; 0 is for the first
    and the last step alone. settings: of ds.scan. around: a context for the forward pass, such as a trainer's autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        every: int,
        *,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
        metrics: tuple[str, ...] = CURVES,
        attention: bool = False,
        **settings: Any,
    ) -> None:
        self.model, self.every, self.around = model, every, around
        self.inputs = inputs if callable(inputs) else lambda: inputs
        self.settings = {"metrics": metrics, "attention": attention, **settings}

    def due(self, step: int, last: int | None, since: int | None = None) -> bool:
        """Whether a step is to be looked at: the first, the last, and every so many; since: the step seen before it."""
        before = step - 1 if since is None else since
        return step in (0, last) or (self.every > 0 and step // self.every > before // self.every)

    def scan(self, **other: Any) -> Scan:
        """One look, with dropout off and running means of batches at rest; nothing of it stays behind.

        other: settings that differ this time.
        """
        inputs = self.inputs()
        with quietly(self.model), self.around():
            return scan(self.model, inputs, **{**self.settings, **other})


@contextmanager
def quietly(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards its flags and buffers and all random states are as before.

    Flags are set one by one: eval() and train() of some models do more than that (adapters merge their weights).
    Autocast may keep no half-precision copies of weights that were made here, without gradients, for the training.
    """
    flags = [(module, module.training) for module in modules_in(model).values()]
    cached = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)
        for module, _ in flags:
            module.training = False
        with untouched(model):
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        for module, flag in flags:
            module.training = flag


def fixed(probe: Any, model: nn.Module) -> Any:
    """The probe where the model is; what is another one at every look, or used up by the first, is refused."""
    if not isinstance(probe, Tensor | tuple | list | Mapping):
        raise UsageError(
            "probe must be one fixed batch (a tensor, a tuple, a mapping) or a list of those; got "
            f"{type(probe).__name__}. Take a batch out of a loader first: next(iter(loader))."
        )
    first = next(model.parameters(), None)
    return probe if first is None or first.device.type in ("cpu", "meta") else moved(probe, first.device)


def moved(value: Any, device: torch.device) -> Any:
    """A batch on a device: the tensors in it, whatever holds them."""
    if hasattr(value, "to"):  # a tensor, or a BatchEncoding
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: moved(one, device) for name, one in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(moved(one, device) for one in value)
    return value
