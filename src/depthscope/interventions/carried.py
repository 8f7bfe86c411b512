"""A change that goes with its model when the model is copied (copy.deepcopy) or pickled (torch.save)."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from depthscope.errors import UsageError
from depthscope.interventions.hooks import wake_in
from depthscope.traces.entry import Entry


class Carried:
    """What a handle is made of again in a copy of its model, which knows nothing of the first.

    The copy has what makes the change; all that was found out about the model is found again when it is called.
    """

    called: str
    entry: Entry
    model: nn.Module
    keeps: tuple[str, ...] = ()  # the names of what makes the change
    shares: tuple[str, ...] = ()  # those that a copy cannot have of its own, and a file not at all
    asleep = False  # whether it came with a copy that was not called yet
    led = False  # whether another change made it, for another stream of the model
    wake_all = staticmethod(wake_in)

    def set_up(self) -> None:
        """Begin to act on the model."""
        raise NotImplementedError

    def _start(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in (*self.keeps, *self.shares)}
        kept |= {"entry": replace(self.entry, wrappers=[]), "model": self.model}
        return kept | {"number": RemovableHandle.next_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        number = state.pop("number")
        self.__dict__ |= state | {"asleep": True, "graph": None}
        # of hooks: in another process none that is set later may take the place of ours
        RemovableHandle.next_id = max(RemovableHandle.next_id, number)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        state = self.__getstate__()
        memo |= {id(state[name]): state[name] for name in self.shares}
        new.__setstate__(deepcopy(state, memo))
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        for name in self.shares:
            if getattr(self, name) is not None:
                raise UsageError(
                    f"{self.called}: {name}= cannot be pickled with {self}. Save the weights, model.state_dict(), and "
                    f"call {self.called} again where they are loaded; copy.deepcopy works."
                )
        return super().__reduce_ex__(protocol)

    def wake(self) -> None:
        """Act in the model that this was copied with."""
        self.asleep = False
        self.set_up()

    def begins_late(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        """A pass has begun before the hook was there that tells of it."""
        self._start(model, args, kwargs)

    def rests(self, *_: Any) -> None:
        """Nothing to do."""
