"""What every task is, whatever its data: three splits, a model for them, batches, losses, and a score."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, Unpack

import torch
from torch import Tensor, nn

from depthscope.training.evaluate import Look
from depthscope.training.recipe import Recipe

SPLITS = ("train", "valid", "test")


class Batches(Protocol):
    """The batches of a training split, a function of seed and step alone, so that nothing has to be stored."""

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step, the same on every process; the first axis of both is that of the batch."""

    def fresh(self, step: int) -> bool:
        """Whether nothing of the batches before is to be remembered."""


class Task(ABC):
    """Learn on train, choose on valid, report on test.

    score: by which number of the test split arms are ranked, "accuracy" or "loss". answers: among how many there is to
    choose; without looking the loss is ln(answers) at most. defaults: settings of model, recipe and comparison that
    suit the task, which anything that is said overrides. sites: where remedies act here unless it is said.
    """

    score: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}
    sites: ClassVar[dict[str, str]] = {}
    name: str
    answers: int

    @abstractmethod
    def __len__(self) -> int:
        """Examples of one epoch, of which a step takes Recipe.batch."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that a model is fed and asked: equal means the same data, cut and prepared the same way."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Of the data, plain: "data" and "model" in words, "count" of what the score is a mean over, "chance": the
        score of someone who does not look at the inputs."""

    @abstractmethod
    def model(self, build: Any) -> nn.Module:
        """A model of the sizes and wiring of a Build, its weights drawn from torch's generator."""

    @abstractmethod
    def probe(self, device: torch.device) -> Tensor:
        """A fixed batch of inputs, at which monitors look."""

    def first_call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a small forward pass, by which a remedy gets to know the model."""
        return (self.probe(torch.device("cpu"))[:2],), {}

    @abstractmethod
    def batches(self, recipe: Recipe, device: torch.device) -> Batches:
        """What to learn from."""

    @abstractmethod
    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """(the sum of the losses over all targets, what the model remembers for the batch that follows)."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, **look: Unpack[Look]) -> dict[str, float]:
        """Means over a split by name, "loss" among them."""
