"""One step of training, the same on one process or many: the gradient of the mean over the whole batch."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.models.segment_memory import SegmentMemory
from depthscope.traces.installed import OWN
from depthscope.training.batches import rows_of, seeded, share
from depthscope.training.data.task import Task
from depthscope.training.parallel import prepared
from depthscope.training.recipe import Recipe


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW over all parameters. Those of remedies are not decayed, which would pull a learned strength somewhere."""
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in model.named_parameters() if not name.startswith(OWN)]},
        {"params": [p for name, p in model.named_parameters() if name.startswith(OWN)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=recipe.lr,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,  # one pass over each tensor; the tensors of deep and narrow models are many and small
    )


@dataclass(eq=False)
class Stepper:
    """A model under training. bare is the model itself, model what runs it on all processes (bare, DDP or FSDP).

    total: steps of the whole training. memories: what the model remembers of the batch before, one for each part of it
    that this process takes; None where it remembers nothing.
    """

    accelerator: Any
    bare: nn.Module
    recipe: Recipe
    task: Task

    def __post_init__(self) -> None:
        self.batches = self.task.batches(self.recipe, self.accelerator.device)
        self.total = self.recipe.steps(len(self.task))
        self.memories: list[SegmentMemory | None] = [None] * self.recipe.accumulate
        self.model, self.optimizer = prepared(self.accelerator, self.bare, adamw(self.bare, self.recipe))
        self.model.train()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, which exchange it on their devices."""
        if self.accelerator.num_processes == 1:
            return tensor
        return self.accelerator.reduce(tensor.to(self.accelerator.device), reduction="sum").to(tensor.device)

    def gradient(self, step: int) -> float:
        """Fill .grad with the gradient of the mean loss over the batch of a step; returns that loss.

        Parts may be unequal, so each is weighed by its targets: sum / count on every process. The exchange averages
        over processes, and accelerate divides by the number of accumulated parts, so both factors are put in before.
        """
        inputs, targets = self.batches.at(step)
        processes, index = self.accelerator.num_processes, self.accelerator.process_index
        torch.manual_seed(seeded(self.recipe.seed, step, 2 + index))  # for dropout and its like
        parts = self.recipe.accumulate
        if self.batches.fresh(step):
            self.memories = [None] * parts
        mean = torch.zeros((), device=self.accelerator.device)
        for part in range(parts):
            x, y, weight = share(inputs, targets, part * processes + index, parts * processes)
            with self.accelerator.accumulate(self.model):
                losses, self.memories[part] = self.task.losses(self.model, x, y, self.memories[part])
                loss = weight * losses / targets.numel()
                self.accelerator.backward(loss * (processes * parts))
            mean += loss.detach()
        if processes > 1 and self.model is self.bare:  # FSDP: exchanged are those of the parameters that it cut
            for parameter in self.bare.parameters():
                if parameter.grad is not None and not is_cut(parameter):
                    parameter.grad.copy_(self.sum(parameter.grad) / processes)
        return float(self.sum(mean))

    def update(self, step: int) -> tuple[float, float]:
        """Clip the gradient, change the weights by it, drop it; returns the rate used and the norm before clipping.

        A gradient that is not finite changes nothing: it would make all weights nan.
        """
        rate = self.recipe.lr * self.recipe.rate(step, self.total)
        norm = torch.linalg.vector_norm(torch.stack([self._norm(group) for group in self.optimizer.param_groups]))
        finite = math.isfinite(norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            if finite and self.recipe.clip is not None:
                torch.nn.utils.clip_grads_with_norm_(group["params"], self.recipe.clip, norm)
        if finite:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return rate if finite else 0.0, float(norm)

    def remembered(self) -> dict[str, Tensor]:
        """What the model remembers, of the whole batch, by name; all processes must call it."""
        own = [{} if memory is None else memory.tensors() for memory in self.memories]
        whole = {}
        for name in own[0]:
            rows = torch.zeros(self.recipe.batch, *own[0][name].shape[1:], dtype=own[0][name].dtype)
            for part, tensors in enumerate(own):
                if (mine := self._rows(part)).stop > mine.start:
                    rows[mine] = tensors[name].cpu()
            whole[name] = self.sum(rows)
        return whole

    def remember(self, whole: dict[str, Tensor]) -> None:
        """The opposite, for a run that goes on."""
        if whole:
            for part in range(self.recipe.accumulate):
                mine = self._rows(part)
                rows = mine if mine.stop > mine.start else slice(0, 1)  # as batches.share has it
                parts = {name: tensor[rows].to(self.accelerator.device) for name, tensor in whole.items()}
                self.memories[part] = SegmentMemory.from_tensors(parts)

    def _rows(self, part: int) -> slice:
        """The rows of the batch in one of its parts on this process."""
        processes = self.accelerator.num_processes
        index = part * processes + self.accelerator.process_index
        return rows_of(self.recipe.batch, index, self.recipe.accumulate * processes)

    def finite(self) -> bool:
        """Whether all weights are, of those that this process has."""
        return all(bool(_here(parameter.detach()).isfinite().all()) for parameter in self.bare.parameters())

    def _norm(self, group: dict[str, Any]) -> Tensor:
        """The norm of the gradients of a group, whose parameters are all cut over the processes or all whole."""
        norm: Any = torch.nn.utils.get_total_norm([p.grad for p in group["params"] if p.grad is not None])
        return norm.full_tensor() if is_cut(norm) else norm


def _here(tensor: Any) -> Tensor:
    """The part of a tensor that is on this process."""
    return tensor.to_local() if is_cut(tensor) else tensor


def is_cut(tensor: Tensor) -> bool:
    """Whether every process has a part of a tensor only."""
    return hasattr(tensor, "device_mesh")  # a DTensor, asked without the import of torch.distributed.tensor
