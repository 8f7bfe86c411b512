"""A task of your own: your model, your batches, your loss. Every process imports the functions by their names.

    def model_fn() -> nn.Module                    weights drawn from torch's generator
    def batch_fn(split, draw) -> batch             split "train", "valid" or "test"; draw: a torch.Generator, from which
                                                   all that is random comes
    def loss_fn(model, batch) -> Tensor            a mean; it calls the model

Arms are "plain" and remedies. All arms of a seed begin with the same weights and learn from the same batches.
"""

import hashlib
import inspect
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.models.resolve import call, imported
from depthscope.monitors.last_batch import LastBatch
from depthscope.monitors.probe import moved
from depthscope.registry import shelve
from depthscope.scans.record import Scan
from depthscope.scans.scan import scan
from depthscope.traces.nests import tensors_in
from depthscope.training.arms import PLAIN
from depthscope.training.batches import seeded
from depthscope.training.data.task import SPLITS, Task
from depthscope.training.evaluate import Look
from depthscope.training.recipe import Recipe

NAMES = ("model_fn", "batch_fn", "loss_fn")
NOT_CHOSEN = (  # the model's
    *("depth", "d", "h", "q", "weights", "output", "pooling", "alpha", "activation", "scores"),
    *("batch", "augment", "accumulate"),
)
LIKELY = 50.0  # a loss above it has no e to the power of it


@shelve("task")
def own(
    *,
    model_fn: str = "",
    batch_fn: str = "",
    loss_fn: str = "",
    setup: str = "",
    steps: int = 100,
    looks: int = 8,
    path: str = "",
) -> "OwnTask":
    """A model of your own: functions as package.module:function, or a setup that returns (model_fn, batch_fn, loss_fn).

    steps: of an epoch, after each of which there is an evaluation. looks: batches of it. path: folders to import from.
    """
    for name, value in (("steps", steps), ("looks", looks)):
        if type(value) is not int or value < 1:
            raise UsageError(f"own: {name} must be a whole number, 1 or more; got {value!r}.")
    sys.path += [one for one in path.split(os.pathsep) if one and one not in sys.path]
    targets = (model_fn, batch_fn, loss_fn)
    if bool(setup) == any(targets) or (not setup and not all(targets)):
        raise UsageError("own: needs setup=, or all of model_fn=, batch_fn= and loss_fn=, as package.module:function.")
    found: Any = call(setup) if setup else tuple(map(imported, targets))
    if not isinstance(found, tuple | list) or len(found) != len(NAMES) or not all(map(callable, found)):
        raise UsageError(f"{setup}: must return three functions, {', '.join(NAMES)}; got {found!r:.80}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _task(*found, steps=steps, looks=looks)


def named(*functions: Any) -> dict[str, Any]:
    """The functions by the names under which other processes find them, and the folders from which we import."""
    if len(functions) != len(NAMES):
        raise UsageError(f"compare: a model of your own takes {', '.join(NAMES)}; got {len(functions)} of them.")
    found = {}
    for name, function in zip(NAMES, functions, strict=True):
        module, words = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
        if not callable(function) or not words.isidentifier() or module in (None, "__main__"):
            raise UsageError(
                f"compare: {name} must be a function at the top of a module, for every process imports it; got "
                f"{words or function!r} of {module or 'nowhere'}. Put it into a file, as my_task.py, and import it."
            )
        found[name] = f"{module}:{words}"
    return {**found, "path": os.pathsep.join(str(Path(one).resolve()) for one in sys.path)}


class Whole:
    """A batch of any kind, which is never cut in parts."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __getitem__(self, rows: Any) -> "Whole":
        return self


@dataclass(frozen=True, eq=False)
class OwnTask(Task):
    """seen: a scan of the model as it is drawn. call: arguments of one of its calls. start: its loss."""

    score = "own loss"  # type: ignore[misc]
    name = "own"

    model_fn: Callable[[], nn.Module]
    batch_fn: Callable[[str, torch.Generator], Any]
    loss_fn: Callable[[nn.Module, Any], Tensor]
    steps: int
    looks: int
    seen: Scan
    call: Any
    start: float
    digest: str  # of the weights as they are drawn, of batches, and of the source of the functions

    def __len__(self) -> int:
        return self.steps

    @property
    def fingerprint(self) -> str:
        return self.digest

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        sizes = {"depth": self.seen.depth, "d": self.seen.width, "h": max(self.seen.head_counts)}
        return {**sizes, "epochs": 5, "batch": 1}  # a step takes one batch of batch_fn

    @property
    def answers(self) -> int:  # type: ignore[override]
        """As many as give the loss of the model as it is drawn, by which a training is called diverged."""
        return max(2, math.ceil(math.exp(min(self.start, LIKELY))))

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "data": f"{self.steps:,} batches an epoch to learn from, {self.looks} to test",
            "model": self.seen.model,
            "count": self.looks,
            "chance": self.start,
            "unlearned": "is no better than the untrained model",
            "tested": f"on these {self.looks} test batches; other batches would change all losses",
        }

    def model(self, build: Any) -> nn.Module:
        if build.wiring != PLAIN:
            raise UsageError(
                f"own: a model of your own keeps its wiring; got the arm {build.wiring!r}. "
                'Arms are "plain" and remedies, as "de_escalate:tau=0.5".'
            )
        return self.model_fn()

    def probe(self, device: torch.device) -> Any:
        return moved(self.call, device)

    def first_call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ((), dict(self.call)) if isinstance(self.call, dict) else (self.call, {})

    def batches(self, recipe: Recipe, device: torch.device) -> "Drawn":
        return Drawn(self, recipe.seed, device)

    def draw(self, split: str, *numbers: int) -> Any:
        """The batch of a split that belongs to some numbers."""
        return self.batch_fn(split, torch.Generator().manual_seed(seeded(SPLITS.index(split), *numbers)))

    def losses(self, model: nn.Module, inputs: Any, targets: Tensor, memory: Any) -> tuple[Tensor, Any]:
        return self.loss_fn(model, inputs.batch), None

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, **look: Unpack[Look]) -> dict[str, float]:
        """The mean loss over the same batches at all times, those of valid and test never met in training."""
        (index, number), was = look["part"], model.training
        sums = torch.zeros((), dtype=torch.float64)
        model.eval()
        for turn in range(0, self.looks, number):  # all processes take as many turns
            one = moved(self.draw(split, min(turn + index, self.looks - 1), 2**40), look["device"])
            loss = self.loss_fn(model, one).detach().cpu().double()
            sums += loss if turn + index < self.looks else 0.0 * loss
        model.train(was)
        return {"loss": float(look["total"](sums)) / self.looks}


class Drawn:
    """batches.at(step): the batch that belongs to the seed and the step."""

    def __init__(self, task: OwnTask, seed: int, device: torch.device) -> None:
        self.task, self.seed, self.device = task, seed, device

    def at(self, step: int) -> tuple[Any, Tensor]:
        batch = moved(self.task.draw("train", self.seed, step), self.device)
        return Whole(batch), torch.zeros(1, device=self.device)  # one target: the mean is the loss itself

    def fresh(self, step: int) -> bool:
        return True


def _task(model_fn: Any, batch_fn: Any, loss_fn: Any, *, steps: int, looks: int) -> OwnTask:
    """The task, once its functions were tried: the model trains on the batches, and these can be drawn again."""
    model = model_fn()
    if not isinstance(model, nn.Module):
        raise UsageError(f"model_fn must return a torch.nn.Module; got {type(model).__name__}.")
    digest = hashlib.sha256(repr(model).encode())
    for tensor in model.state_dict().values():
        digest.update(_bytes(tensor))
    for split in SPLITS:
        first, again = (batch_fn(split, torch.Generator().manual_seed(1)) for _ in range(2))
        one, other = ([_bytes(tensor) for tensor in tensors_in((batch,))] for batch in (first, again))
        if one != other or not one:
            raise UsageError(
                f"batch_fn must give tensors, the same for a generator of the same seed; those of {split} "
                f"{'differ' if one else 'are missing'}. Draw all that is random from its second argument."
            )
        for part in one:
            digest.update(part)
    for function in (model_fn, batch_fn, loss_fn):
        digest.update(_source(function))
    digest.update(repr((steps, looks)).encode())
    batch = batch_fn("train", torch.Generator().manual_seed(1))
    last = LastBatch(model.train())
    try:
        loss = loss_fn(model, batch)
        inputs = last()
    finally:
        last.remove()
    if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
        what = f"{type(loss).__name__} {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(f"loss_fn must return one number that the weights have made, a mean; got {what}.")
    seen = scan(model.eval(), inputs, metrics=("t_sim", "attention_entropy"))
    start = float(loss.detach())
    return OwnTask(model_fn, batch_fn, loss_fn, steps, looks, seen, inputs, start, digest.hexdigest()[:16])


def _source(function: Any) -> bytes:
    """The file in which a function is written, with all that it may call there; and what a partial has fixed."""
    if isinstance(function, partial):
        fixed = repr((function.args, sorted(function.keywords.items()))).encode()
        return _source(function.func) + fixed
    try:
        return Path(inspect.getfile(function)).read_bytes()
    except (TypeError, OSError):
        raise UsageError(
            f"own: model_fn, batch_fn and loss_fn must be functions or classes of a file; got {function!r}. "
            "Write a def in a module."
        ) from None


def _bytes(tensor: Tensor) -> bytes:
    """The shape of a tensor and its numbers."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return str((tensor.dtype, *tensor.shape)).encode() + flat.view(torch.uint8).numpy().tobytes()
