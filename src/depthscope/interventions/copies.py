"""Copies of a remedy that learns: one at every place, kept in the model for optimizers and checkpoints."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from depthscope.errors import UsageError
from depthscope.traces.installed import OWN


class Copies:
    """The remedy in use at each place: one for all where it holds no numbers of its own, else a copy for each.

    Copies are a child of the model called depthscope_<remedy>_<site>, so that model.parameters(), state_dict(), to()
    and train() reach them; without parameters no key is added.
    """

    def __init__(self, model: nn.Module, remedy: nn.Module, at: str, places: Iterable[str], *, apart: bool) -> None:
        self.model, self.one, self.plain = model, remedy, remedy
        self._name, self._own = f"{OWN}{type(remedy).__name__.lower()}_{at}", nn.ModuleDict()
        self.form = "own"  # the one in use
        self._plain: dict[str, Any] = {}  # remedies as they were given, while another form is in use
        if not apart and next(remedy.parameters(), None) is None:
            return
        if hasattr(model, self._name):
            raise UsageError(
                f"a model can hold one {type(remedy).__name__} of its own at {at}; it has one. "
                "Undo the other fix first."
            )
        if isinstance(model, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            raise UsageError(
                f"{remedy} is kept in the model as a child, which {type(model).__name__} would take for a layer. "
                "Hold the layers in a module of your own with a forward of its own."
            )
        self._own.update({_key(place): copy.deepcopy(remedy) for place in places})
        near = next(model.parameters(), None)
        self._own.to(device=near.device if near is not None else None, dtype=near.dtype if near is not None else None)
        model.add_module(self._name, self._own.train(model.training))

    @property
    def child(self) -> nn.ModuleDict | None:
        """The child of the model that holds the copies, where there are any."""
        return self._own if self._own else None

    @property
    def name_of_child(self) -> str | None:
        return self._name if self._own else None

    def are_at(self, places: Iterable[str]) -> bool:
        """Whether there is one copy for each of these places, and no other; or one remedy for all."""
        return not self._own or {_key(place) for place in places} == set(self._own)

    def __getitem__(self, place: str) -> Any:
        return self._own[_key(place)] if self._own else self.one

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own.values() if self._own else [self.one])

    def take(self, form: str) -> None:
        """Put every remedy's "own" form in its place, or its "causal" one; both have the same parameters."""
        if form == self.form:
            return
        if form == "causal":
            self._plain = {"": self.one, **self._own}
            new = {key: remedy.causal_form() for key, remedy in self._plain.items()}
        else:
            new = {key: _tied(plain, self._own[key] if key else self.one) for key, plain in self._plain.items()}
        self.one, self.form = new.pop(""), form
        self._own.update(new)

    def remove(self) -> None:
        """Take the copies out of the model."""
        if self._own and getattr(self.model, self._name, None) is self._own:
            delattr(self.model, self._name)


def _key(place: str) -> str:
    return place.replace(".", "_")  # a module's name has no dots


def _tied(plain: nn.Module, used: nn.Module) -> nn.Module:
    """The remedy as it was given, with the parameters and the mode of the one that took its place."""
    for name, parameter in used.named_parameters():
        setattr(plain, name, parameter)
    return plain.train(used.training)
