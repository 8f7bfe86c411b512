"""A model, batches and a loss as a user writes them, for tests of comparisons of one's own."""

import torch
from torch import Tensor, nn

from monitored import Net

WORDS = 40


class Tagger(Net):
    """Takes a mask by name beside the words, as many models do."""

    def forward(self, ids: Tensor, scale: Tensor | None = None) -> Tensor:
        return super().forward(ids) * (1 if scale is None else scale)


def model_fn() -> nn.Module:
    return Tagger(depth=3)


def calm_fn() -> nn.Module:
    """Without dropout and running means, so that a loop can be written out by hand."""
    model = Tagger(depth=2)
    model.bn = nn.Identity()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def batch_fn(split: str, draw: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(0, WORDS, (8, 16), generator=draw)
    return {"ids": ids, "answers": ids.flip(1)}


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    scores = model(batch["ids"], scale=torch.ones(()))
    return nn.functional.cross_entropy(scores.flatten(0, 1), batch["answers"].flatten())


def setup() -> tuple:
    return model_fn, batch_fn, loss_fn


def two() -> tuple:
    return model_fn, batch_fn


def no_model() -> str:
    return "bert"


def restless(split: str, draw: torch.Generator) -> Tensor:
    return torch.rand(2, 3)


def no_tensors(split: str, draw: torch.Generator) -> list[str]:
    return ["text"]


def a_number(model: nn.Module, batch: dict[str, Tensor]) -> float:
    return float(loss_fn(model, batch).detach())


def beside_the_model(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model.embed(batch["ids"]).mean()
