"""The fixes that lie beside a model's weights are put back into the model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from depthscope.errors import RecordError, UsageError, first_line
from depthscope.remedies.fix_record import LEARNED, FixRecord
from depthscope.remedies.saving import block_names

Put = Callable[..., Any]  # fix_ itself: module, a described fix, more -> handle


def put_back(model: nn.Module, folder: str | Path, put: Put, given: dict[str, Any]) -> list[Any]:
    """All fixes of the record in a folder, in the order in which they were made; all or none.

    given: arguments that a record cannot hold, mask and group.
    """
    record = FixRecord.beside(folder)
    _check(model, record)
    learned = _learned(Path(folder), record)
    done: list[Any] = []
    try:
        for told in record.fixes:
            done.append(_one(model, told, put, given))
            child = done[-1].copies.child
            if child is not None:
                _load(child, learned.get(".".join(filter(None, (told["within"], told["learns"])))), folder)
    except BaseException:
        for fix in reversed(done):
            fix.undo()
        raise
    return done


def _one(model: nn.Module, told: dict[str, Any], put: Put, given: dict[str, Any]) -> Any:
    missing = [name for name in told["needs"] if given.get(name) is None]
    if missing:
        raise UsageError(
            f"{told['remedy']} was saved with {' and '.join(missing)}=, which cannot be written to a file. Give it "
            f"again: ds.fix_(model, folder, {', '.join(f'{name}=...' for name in missing)})."
        )
    return put(model.get_submodule(told["within"]), told, **{name: given[name] for name in told["needs"]})


def _check(model: nn.Module, record: FixRecord) -> None:
    """Refuse a model whose blocks are not those that the fix was saved for."""
    if not record.fixes or not all(map(_is_whole, record.fixes)):
        raise RecordError("FixRecord: must hold at least one fix, each with within, needs and learns. It is damaged.")
    paths = {path for path, _ in model.named_modules()}
    gone = sorted({told["within"] for told in record.fixes} - paths)
    now = block_names(model)
    if gone or (record.blocks is not None and now != record.blocks):
        raise UsageError(
            f"the fix was saved for {record.model} with {_few(record.blocks)}; this {type(model).__name__} has "
            f"{f'no {gone[0]}' if gone else _few(now)}. Load the model that was saved, of the same class and depth, or "
            "fix this one anew: ds.fix_(model, remedy)."
        )


def _is_whole(told: dict[str, Any]) -> bool:
    """Words in within, a word or nothing in learns, names of arguments in needs."""
    words = isinstance(told.get("within"), str) and isinstance(told.get("learns", 0), str | None)
    return words and isinstance(told.get("needs"), list) and all(one in ("mask", "group") for one in told["needs"])


def _few(blocks: list[str] | None) -> str:
    return f"{len(blocks)} blocks ({blocks[0]} to {blocks[-1]})" if blocks else "no blocks that their names tell"


def _learned(folder: Path, record: FixRecord) -> dict[str, Any]:
    if not any(told["learns"] for told in record.fixes):
        return {}
    try:
        return torch.load(folder / LEARNED, map_location="cpu", weights_only=True)
    except Exception as error:  # the reader of torch has errors of many kinds for what is damaged
        raise RecordError(
            f"{LEARNED} must hold what the remedy has learned; it cannot be read: {first_line(error)}. "
            f"Copy the whole folder {str(folder)!r}."
        ) from None


def _load(child: nn.Module, numbers: Any, folder: str | Path) -> None:
    try:
        child.load_state_dict(numbers)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"what the remedy has learned must fit the model; {' '.join(str(error).split())} Load the model of "
            f"{str(folder)!r}, of the same width and depth."
        ) from None
