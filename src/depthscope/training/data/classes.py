"""Tasks that choose among classes, for whole images or token by token: examples with labels in three splits."""

import hashlib
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.training.data.task import SPLITS, Task
from depthscope.training.evaluate import training_part


class Examples:
    """What a model is fed, and the labels: the fields are tensors, a row of each is one example."""

    labels: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        return [getattr(self, f.name) for f in fields(self)]  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Self:
        """The examples at rows (M,), in that order."""
        return type(self)(*(tensor[rows] for tensor in self.tensors))


E = TypeVar("E", bound=Examples)


@dataclass(frozen=True, eq=False)
class ClassTask(Task, Generic[E]):
    """Which of some classes an example, or each token of it, belongs to."""

    score = "accuracy"

    name: str
    train: E
    valid: E
    test: E
    classes: int

    def __len__(self) -> int:
        return len(self.train)

    @property
    def answers(self) -> int:  # type: ignore[override]
        return self.classes

    def digest(self, words: str) -> Any:
        """A hash of these words and of all examples, to which a task adds what else it is made of."""
        digest = hashlib.sha256(words.encode())
        for split in SPLITS:
            for tensor in getattr(self, split).tensors:
                digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(tensor.contiguous().numpy().data)
        return digest

    def looked_at(self, split: str) -> E:
        """The examples of a split that losses are measured on: of train as many as of valid."""
        shown: E = getattr(self, split)
        return shown.take(training_part(len(shown), len(self.valid))) if split == "train" else shown

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor, memory: Any) -> tuple[Tensor, Any]:
        scores = model(inputs).float()
        return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="sum"), None
