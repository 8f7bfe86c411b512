"""The record of the fixes in a model, as it lies beside the model's weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthscope.errors import RecordError
from depthscope.records import Record

FILE = "depthscope.json"
LEARNED = "depthscope_learned.pt"  # the numbers of remedies that learn, beside the record; they are in the weights too


@dataclass(frozen=True)
class FixRecord(Record):
    """model: the name of its class. blocks: their paths, None where only a pass tells. fixes: each as describe() says.

    Beside what describe() gives, a fix has within (the path of the module that was fixed, "" for the whole model),
    needs (arguments of fix_ that cannot be written: mask, group) and learns (the name of the child with its numbers).
    """

    FORMAT = "depthscope.fixes"

    model: str
    blocks: list[str] | None
    fixes: list[dict[str, Any]]

    @classmethod
    def beside(cls, folder: str | Path) -> "FixRecord":
        """The record in a folder with weights."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise RecordError(
                f"{str(folder)!r} must hold {FILE}, as fix.save(folder) and save_pretrained of a fixed model write it; "
                "it does not. The model was saved without a fix, or the path is another."
            )
        return cls.load(path)
