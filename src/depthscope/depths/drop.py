"""drop_: blocks are removed from a model for good, and what its family keeps by number is numbered anew."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from depthscope.depths.numbering import Numbering
from depthscope.errors import DepthscopeError, UsageError, said_by
from depthscope.traces.entry import enter
from depthscope.traces.installed import fixes_in

OF_TRAINING = ("training", "drop_prob")  # stochastic depth grows with the number of a layer


@said_by("drop_")
def drop_(
    model: nn.Module,
    blocks: int | Iterable[int],
    *,
    among: str | Iterable[str] | None = None,
    save: str | Path | None = None,
) -> nn.Module:
    """Remove blocks from a model for good, in place; returns the model itself.

    Numbers that caches and configurations keep (layer_idx, num_hidden_layers, layer_types) are set to what is left. On
    any error nothing is written, and the model is as before.

    Args:
        model: A torch module whose blocks are the entries of one list.
        blocks: The numbers of the blocks, from 1, as in scans and ds.depth.
        among: A pattern such as "encoder.layers.*", or the blocks of what ds.depth found, instead of finding the list
            automatically.
        save: A new folder for a Hugging Face model, which from_pretrained reads. It is read back and compared before it
            is written for good.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 4).eval()
        >>> len(ds.drop_(model, [2, 3]).layers)
        2
    """
    model = enter(model).model
    numbering = _numbering(model, list(blocks) if isinstance(blocks, Iterable) else [blocks], among)
    _check_folder(model, save)
    with numbering.applied():
        if save is not None:
            _save(model, Path(save), numbering.path)
    return model


def _numbering(model: nn.Module, blocks: list[int], among: Any) -> Numbering:
    name, config = type(model).__name__, getattr(model, "config", None)
    if fixes_in(model):
        raise UsageError(
            f"the model must be plain, because a fix knows its blocks; {name} has "
            f"{', '.join(map(repr, fixes_in(model)))}. Undo it first: handle.undo(), and fix the smaller model."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            f"blocks must be of one stack; {name} has an encoder and a decoder, whose first blocks hold what others "
            "use. Drop blocks of a model that has one stack; ds.depth prices those of both, by stream=."
        )
    if isinstance(stages := getattr(config, "depths", None), list | tuple):
        raise UsageError(
            f"blocks must be of one stack; {name} has stages of {', '.join(map(str, stages))} blocks, whose states "
            "differ in shape. ds.depth prices the blocks of one stage, by blocks=; to remove some, delete them from "
            "its list, and set config.depths."
        )
    found = _list_of(model, _paths(model, among), name)
    depth = len(found.names)
    wrong = [b for b in blocks if isinstance(b, bool) or not isinstance(b, int) or not 1 <= b <= depth]
    if wrong or not blocks or len({*blocks}) < len(blocks):
        said = f"got {wrong[0]!r}" if wrong else f"got {blocks}"
        raise UsageError(f"blocks must be different numbers from 1 to {depth}, as in scans; {said}. Name some of them.")
    if len(blocks) == depth:
        raise UsageError(f"at least one block must be left; got all {depth}. Leave some out.")
    numbering = Numbering(model, found.path, found.names, tuple(block - 1 for block in blocks))
    if (beside := numbering.beside()) is not None:
        raise UsageError(
            f"all that belongs to a block must be in it; {beside!r} of {name} has {depth} entries, as many as it has "
            "blocks, and would not fit those that are left. Make its entries parts of the blocks."
        )
    if (alone := numbering.alone_in_gone()) is not None:
        raise UsageError(
            f"what others use must stay; of {name}, block {alone[0]} alone has {alone[1]!r} beside all that the others "
            "have, as T5's first block has the relative positions of all. Keep that block."
        )
    return numbering


def _paths(model: nn.Module, among: Any) -> list[str]:
    """The paths of the blocks; an error speaks of among=, as this verb calls the argument."""
    try:
        return enter(model, blocks=among).names()
    except DepthscopeError as error:
        error.args = tuple(str(one).replace("blocks=", "among=") for one in error.args)
        raise


class _List:
    """The list that the blocks stand in: its path, and their names in it."""

    def __init__(self, path: str, names: list[str]) -> None:
        self.path, self.names = path, names


def _list_of(model: nn.Module, paths: list[str], name: str) -> _List:
    homes = {path.rpartition(".")[0] for path in paths}
    path = next(iter(homes))
    home = model.get_submodule(path)
    if len(homes) > 1 or not isinstance(home, nn.ModuleList | nn.Sequential):
        raise UsageError(
            f"the blocks must be the entries of one nn.ModuleList; those of {name} are in {', '.join(sorted(homes))}. "
            'Name one list: among="encoder.layers.*".'
        )
    found = {id(model.get_submodule(path)) for path in paths}  # a module that stands there twice has one path
    names = [name for name, module in home._modules.items() if id(module) in found]  # in the order in which they run
    others = [name for name in home._modules if name not in names]
    if others and isinstance(home, nn.ModuleList):
        raise UsageError(
            f"every entry of the list must be a block; of {path or name} of {name}, {', '.join(others[:4])} are none. "
            'Put the parts of a block into one module, or name them all: among="layers.*".'
        )
    said = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    calls = max(len(names), said if isinstance(said, int) else 0)
    if len(found) < calls:
        raise UsageError(
            f"every block must have weights of its own to be removed; {name} calls {len(found)} modules {calls} times "
            "(shared blocks, as ALBERT's). ds.depth prices single calls; to run fewer of them, set "
            "config.num_hidden_layers yourself."
        )
    return _List(path, names)


def _check_folder(model: nn.Module, folder: str | Path | None) -> None:
    if folder is None:
        return
    if not hasattr(model, "save_pretrained"):
        raise UsageError(
            f"a model that is saved must be one of transformers, with save_pretrained; got {type(model).__name__}. "
            "Leave save out and keep model.state_dict()."
        )
    if Path(folder).exists():
        raise UsageError(f"the folder of save must be new; {str(folder)!r} exists. Choose another name.")


def _save(model: Any, folder: Path, blocks: str) -> None:
    """Write the folder whole or not at all; it must load and compute the same."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f"part-of-{folder.name}-", dir=folder.parent) as place:
            part = Path(place) / folder.name
            model.save_pretrained(part)
            _compare(model, part, blocks)
            part.rename(folder)
    except DepthscopeError:
        raise
    except Exception as error:
        raise UsageError(
            f"the folder {str(folder)!r} must be writable, and transformers must read it back; {type(error).__name__}: "
            f"{error}. Call drop_ without save, and look at model.config."
        ) from error


def _compare(model: Any, folder: Path, blocks: str) -> None:
    """The model that plain from_pretrained builds has the same weights and blocks of the same kinds."""
    again = type(model).from_pretrained(folder, local_files_only=True, dtype=next(model.parameters()).dtype)
    here, there = model.state_dict(), again.state_dict()
    odd = sorted({*here} ^ {*there}) or [k for k in here if not torch.equal(here[k].cpu(), there[k].cpu())]
    here, there = (_settings(one.get_submodule(blocks)) for one in (model, again))
    odd = odd or [f"{blocks}.{path}" for path, one in here.items() if there[path] != one]
    if odd:
        raise UsageError(
            f"the folder must load as the model that was saved; {type(model).__name__} differs at {odd[0]}. "
            "What this family derives from the number of a layer cannot be saved without it: keep the model in memory."
        )


def _settings(blocks: nn.Module) -> dict[str, dict[str, Any]]:
    """The plain settings of every module of the blocks, by path: what kind of layer it is, in evaluation."""
    return {
        path: {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and not name.startswith("_") and name not in OF_TRAINING
        }
        for path, module in blocks.named_modules()
    }
