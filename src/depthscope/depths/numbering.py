"""What a model keeps by the number of a block: the list itself, the numbers in caches, the lists of a configuration.

Where blocks go, what is left is numbered anew: attention that finds its place in a key-value cache by layer_idx, a
configuration that tells the kind of every layer (layer_types), and how many there are.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

INDEX = ("layer_idx", "layer_id", "layer_index", "layer_number", "block_idx")  # names of a block's own number
COUNT = (  # and of how many there are; a decoder alone may have the configuration of an encoder, too
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_blocks", "depth"),
    *("encoder_layers", "decoder_layers"),
)
LEADING = ("first_k_dense_replace", "max_window_layers")  # so many of the first blocks are of another kind
CHOSEN = ("mlp_only_layers", "full_attention_layers", "no_rope_layers_idx", "moe_layers")  # lists of numbers of blocks
OTHERS = ("architectures", "image_size", "patch_size", "eos_token_id", "bos_token_id", "pad_token_id")  # not by block


class Numbering:
    """Blocks that go from one list of a model. names: of all blocks in the list; gone: their places from 0."""

    def __init__(self, model: nn.Module, path: str, names: list[str], gone: tuple[int, ...]) -> None:
        self.model, self.path, self.names = model, path, names
        self.home: Any = model.get_submodule(path)
        self.depth = len(names)
        self.kept = [i for i in range(self.depth) if i not in gone]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Remove the blocks; everything is put back where something fails inside."""
        modules, around = dict(self.home._modules), self._around()
        changed: list[tuple[Any, str, Any]] = []
        try:
            for new, old in enumerate(self.kept):
                self._renumber(modules[self.names[old]], old, new, changed)
            for owner in around:
                self._count(owner, changed)
            for config in self._configs():
                changed.append((config, "", dict(vars(config))))
                self._shorten(config)
            self.home._modules.clear()
            self.home._modules.update(self._left(modules))
            yield
        except BaseException:
            self.home._modules.clear()
            self.home._modules.update(modules)
            for owner, name, value in reversed(changed):
                vars(owner).update({name: value} if name else value)
            raise

    def _left(self, modules: dict[str, Any]) -> dict[str, Any]:
        """The entries that stay, in order: numbers close up, names stay; a Sequential may hold more than blocks."""
        kept = {self.names[old] for old in self.kept}
        left = {name: module for name, module in modules.items() if name in kept or name not in self.names}
        if all(name.isdigit() for name in modules):
            return {str(i): module for i, module in enumerate(left.values())}
        return left

    def _renumber(self, block: Any, old: int, new: int, changed: list[tuple[Any, str, Any]]) -> None:
        for module in block.modules():
            for name in INDEX:
                value = vars(module).get(name)
                if isinstance(value, int) and not isinstance(value, bool) and value - old in (0, 1):
                    changed.append((module, name, value))
                    setattr(module, name, value - old + new)  # some families count from 1

    def _around(self) -> list[nn.Module]:
        """The modules that hold the list."""
        names = self.path.split(".")
        return [self.model.get_submodule(".".join(names[:k])) for k in range(len(names))]

    def beside(self) -> str | None:
        """What stands beside the list with one entry for each block (scalars, norms), which would no longer fit."""
        for owner in self._around():
            for name, value in (*owner.named_parameters(recurse=False), *owner.named_children()):
                if isinstance(value, nn.ModuleList):
                    alike = all(next(one.children(), None) is None for one in value)
                else:
                    alike = isinstance(value, nn.ParameterList) or getattr(value, "ndim", 0) == 1
                if alike and value is not self.home and len(value) == self.depth:  # type: ignore[arg-type]
                    return name
        return None

    def alone_in_gone(self) -> tuple[int, str] | None:
        """A block that goes (from 1) and a parameter that no other block has, where it has all that others have."""
        names = [{name for name, _ in self.home._modules[name].named_parameters()} for name in self.names]
        left = set().union(*(names[i] for i in self.kept))
        for i in (i for i in range(self.depth) if i not in self.kept):
            if left < names[i]:
                return i + 1, min(names[i] - left)
        return None

    def _count(self, owner: nn.Module, changed: list[tuple[Any, str, Any]]) -> None:
        for name in COUNT:
            if vars(owner).get(name) == self.depth:
                changed.append((owner, name, self.depth))
                setattr(owner, name, len(self.kept))

    def _configs(self) -> list[Any]:
        """The configurations that are of the list: those held around it and in it, and copies of the nearest.

        Another tower (of images beside text) may have as many blocks, and keeps its own.
        """
        here = _held(self._around())
        nearest = here[-1].to_dict() if here else None
        others = _held(self.model.modules())
        others += [v for c in others for v in vars(c).values() if hasattr(v, "to_dict") and hasattr(v, "update")]
        own = here + _held(self.home.modules()) + [one for one in others if one.to_dict() == nearest]
        return list({id(one): one for one in own}.values())

    def _speaks_of(self, config: Any) -> bool:
        return any(getattr(config, name, None) == self.depth for name in COUNT)

    def _shorten(self, config: Any) -> None:
        """Lists with an entry for every block lose those that are gone, lists of numbers are numbered anew."""
        if not self._speaks_of(config):
            return
        new = {old: i for i, old in enumerate(self.kept)}
        values = vars(config)
        lists = {k: v for k, v in values.items() if isinstance(v, list | tuple)}
        for name, value in lists.items():
            if name in CHOSEN:
                values[name] = type(value)(new[i] for i in value if i in new)
            elif len(value) == self.depth and name not in OTHERS and "out_" not in name:
                values[name] = type(value)(value[i] for i in self.kept)
        for name in {*LEADING} & {*values}:
            values[name] = sum(old < values[name] for old in self.kept)
        if values.get("stage_names") == _stages(self.depth):
            self._restage(values)
        for name in COUNT:
            if values.get(name) == self.depth:
                values[name] = len(self.kept)

    def _restage(self, values: dict[str, Any]) -> None:
        """Of a backbone, which gives the ends of some blocks: those of blocks that are left, and always the end."""
        names = _stages(len(self.kept))
        new = {0: 0} | {old + 1: i + 1 for i, old in enumerate(self.kept)} | {self.depth: len(self.kept)}
        chosen = sorted({new[i] for i in values.get("_out_indices") or () if i in new}) or [len(self.kept)]
        values.update(stage_names=names, _out_indices=chosen, _out_features=[names[i] for i in chosen])


def _stages(depth: int) -> list[str]:
    return ["stem", *(f"stage{i}" for i in range(1, depth + 1))]


def _held(modules: Iterable[nn.Module]) -> list[Any]:
    """The configurations that modules hold, in order."""
    configs = (vars(module).get("config") for module in modules)
    return [config for config in configs if hasattr(config, "to_dict")]
