"""Whether the modules that a change was set up for are still those of its model: a block may be replaced or added."""

from collections.abc import Iterable

from torch import nn

LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


class Standing:
    """The modules at some paths of a model, and how many are in the lists that hold them, as they are now."""

    def __init__(self, model: nn.Module, paths: Iterable[str]) -> None:
        self._links: dict[tuple[int, str], tuple[nn.Module, str, nn.Module]] = {}
        for path in paths:
            holder = model
            for name in path.split("."):
                part = holder.get_submodule(name)
                self._links[id(holder), name] = (holder, name, part)
                holder = part
        holders = {id(holder): holder for holder, *_ in self._links.values() if isinstance(holder, LISTS)}
        self._sizes = [(holder, len(holder._modules)) for holder in holders.values()]

    def holds(self) -> bool:
        same = all(holder._modules.get(name) is part for holder, name, part in self._links.values())
        return same and all(len(holder._modules) == size for holder, size in self._sizes)
