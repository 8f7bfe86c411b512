"""Trained models of the gallery: three that others trained, and some that learn or fail here in seconds.

A label follows from what was measured: who learned well above chance is healthy; who stayed at chance is collapsed
where numpy finds its tokens the same (`models/gallery/truth.py`), and else it has no label and is left out.
"""

import random
import tempfile
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import MissingExtraError
from depthscope.experiments.races import one_thread
from depthscope.models import packaged
from depthscope.models.gallery.entry import COLLAPSED, HEALTHY, Built, Entry
from depthscope.models.gallery.truth import fate
from depthscope.models.gallery.writers import MassiveToken
from depthscope.training import checkpoint
from depthscope.training.build import Build
from depthscope.training.choices import sort_choices
from depthscope.training.loop import train
from depthscope.training.recipe import Recipe
from depthscope.training.tasks import task as load_task

PACKAGED = ("minilm", "rxnmapper", "smollm2")
TEXT = {"batch": 16, "segment": 64, "epoch_tokens": 96 * 16 * 64, "test": 8192, "schedule": "cosine", "epochs": 1}
# name: (task, depths to choose from, settings); the depth of each is drawn, the seed is the gallery's
HERE: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "digits, pre-norm": ("digits", (4, 6), {"wiring": "pre_norm", "epochs": 3, "lr": 2e-3}),
    "digits, shallow post-norm": ("digits", (2, 3), {"wiring": "post_norm", "epochs": 3, "lr": 2e-3}),
    "digits, de-escalated": ("digits", (6, 8), {"remedy": "de_escalate", "epochs": 3, "lr": 2e-3}),
    "sorting, pre-norm": ("sorting", (3, 4), {"wiring": "pre_norm", "epochs": 8, "lr": 2e-3}),
    "sorting, shallow post-norm": ("sorting", (2, 3), {"wiring": "post_norm", "epochs": 8, "lr": 2e-3}),
    "convex hull, pre-norm": ("convex_hull", (3, 4), {"wiring": "pre_norm", "d": 48, "epochs": 1}),
    "pydoc, pre-norm": ("pydoc", (3, 4), {"wiring": "pre_norm", "d": 64, "lr": 3e-3, **TEXT}),
    "digits, deep post-norm": ("digits", (22, 24), {"wiring": "post_norm", "epochs": 2}),
    "digits, deep post-norm, Xavier": ("digits", (28, 32), {"weights": "xavier", "epochs": 1, "lr": 3e-3}),
    "sorting, deep post-norm": ("sorting", (24, 28), {"weights": "xavier", "epochs": 2, "lr": 2e-3}),
}
MASSIVE = "digits, pre-norm"  # this one is shown once more, with a massive token
NAMES = [*(f"trained elsewhere: {name}" for name in PACKAGED), *(f"trained here: {name}" for name in HERE)]
POOLED = "trained here: majority, post-norm, mean pooling"
NAMES += [POOLED, f"trained here: {MASSIVE}, and a massive token"]


def trained_gallery(seed: int) -> Iterator[Entry | None]:
    """The entries in the order of NAMES, one after the other; None where a package is missing or no label follows."""
    for name in PACKAGED:
        yield _packaged(name, seed)
    kept: Built | None = None
    for name, (task, depths, settings) in HERE.items():
        depth = random.Random(f"{seed} sizes of {name}").choice(depths)
        built, score, chance = trained(task, settings | {"depth": depth}, seed)
        kept = built if name == MASSIVE else kept
        yield _labelled(f"trained here: {name}", built, score, chance, depth, seed)
    depth = random.Random(f"{seed} sizes of {POOLED}").choice((4, 6))
    yield _labelled(POOLED, *pooled(depth, seed), depth, seed)
    if kept is not None:
        yield _with_massive(NAMES[-1], kept, seed)


def _packaged(name: str, seed: int) -> Entry | None:
    """The first tokens of its texts, as many as are drawn."""
    try:
        model, inputs = _loaded(name)
    except MissingExtraError:
        return None
    n = random.Random(f"{seed} tokens of {name}").choice([40, 48, 56, 64])
    built = model, {key: value[:, :n] for key, value in inputs.items()}
    why = "It was trained by others and is in use: whatever its numbers are, its tokens have not collapsed."
    return Entry(f"trained elsewhere: {name}", "trained elsewhere", HEALTHY, why, lambda: built, seed)


@cache
def _loaded(name: str) -> packaged.Loaded:
    """Reading weights takes up to half a minute."""
    return getattr(packaged, name)()


def trained(name: str, settings: dict[str, Any], seed: int) -> tuple[Built, float, float]:
    """A model trained on a task with its probe inputs, its test score, and the score of a guess."""
    own = sort_choices(name, settings)
    task = load_task(name, **own.options)
    usual = sort_choices(name, task.defaults)
    build, recipe = Build(**usual.build | own.build), Recipe(**usual.recipe | own.recipe | {"seed": seed})
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        run = train(build, task, recipe, folder=folder, every_steps=recipe.steps(len(task)) + 1)
        saved = checkpoint.latest(folder)
    if not run.ended or saved is None:  # ^C only asks a training to stop; the experiment is to stop too
        raise KeyboardInterrupt
    model, _ = build.model(task, seed)
    model.load_state_dict(saved.model)
    return (model.eval(), task.probe(torch.device("cpu"))), run.final["test"][task.score], task.facts["chance"]


class Pooled(nn.Module):
    """Post-norm blocks, and a class from the mean token: the last blocks learn to average, too."""

    def __init__(self, depth: int, words: int = 20, n: int = 24, d: int = 32) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True)
        self.words, self.places = nn.Embedding(words, d), nn.Parameter(0.02 * torch.randn(n, d))
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(d, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(ids) + self.places).mean(1))


def pooled(depth: int, seed: int, steps: int = 300) -> tuple[Built, float, float]:
    """A model that learned whether most words of a sequence are of the first half, its accuracy, and a guess's."""
    with one_thread(), torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(seed)
        model = Pooled(depth)
        adam = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(steps):
            ids, label = _majority(32)
            adam.zero_grad()
            nn.functional.cross_entropy(model(ids), label).backward()
            adam.step()
        ids, label = _majority(256)
        with torch.no_grad():
            score = float((model.eval()(ids).argmax(-1) == label).double().mean())
    return (model, ids[:16]), score, max(float((label == k).double().mean()) for k in (0, 1))


def _majority(size: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(20, (size, 24))
    return ids, ((ids < 10).sum(1) > 12).long()


def _labelled(name: str, built: Built, score: float, chance: float, depth: int, seed: int) -> Entry | None:
    """Scores are accuracies, or losses, for which chance is larger than 1."""
    gain = chance - score if chance > 1 else score - chance
    outcome = f"{depth} blocks; test score {score:.2f}, a guess has {chance:.2f}"
    if gain > 0.2:
        why = f"It learned: {outcome}."
        return Entry(name, "trained here", HEALTHY, why, lambda: built, seed)
    if gain < 0.1 and fate(*built) == "lost":
        why = f"It stayed at chance: {outcome}. Pairs of tokens differ by less than 1 % of their energy."
        return Entry(name, "trained here", COLLAPSED, why, lambda: built, seed)
    return None


def _with_massive(name: str, built: Built, seed: int) -> Entry:
    """The same weights, and one token gets a large vector after the last block."""
    model, inputs = built
    blocks: Any = model.transformer.blocks  # type: ignore[union-attr]
    blocks[-1] = MassiveToken(blocks[-1], 300 * torch.randn(32, generator=torch.Generator().manual_seed(seed)), (3,))
    why = "It learned; one of its tokens is made massive after the last block, as in large trained models."
    return Entry(name, "trained here", HEALTHY, why, lambda: (nn.Module.eval(model), inputs), seed)
