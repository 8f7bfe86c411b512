"""Whether the modules that a change was set up for are still those of its model: a block may be replaced or added."""

from collections.abc import Iterable

from torch import nn


class Standing:
    """The modules at some paths of a model, and how many parts each of them has, as they are now."""

    def __init__(self, model: nn.Module, paths: Iterable[str]) -> None:
        self._links: dict[tuple[int, str], tuple[nn.Module, str, nn.Module]] = {}
        for path in paths:
            holder = model
            for name in path.split("."):
                part = holder.get_submodule(name)
                self._links[id(holder), name] = (holder, name, part)
                holder = part
        parts = {id(part): part for *_, part in self._links.values()}  # the model itself gets copies of remedies
        self._sizes = [(part, len(part._modules)) for part in parts.values()]

    def holds(self) -> bool:
        same = all(holder._modules.get(name) is part for holder, name, part in self._links.values())
        return same and all(len(part._modules) == size for part, size in self._sizes)
