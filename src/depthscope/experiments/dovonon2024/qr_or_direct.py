"""QR or direct: two ways to set the eigenvalues of W_V W_O, compared by time, conditioning and what they learn.

In H = V diag(lambda) V^-1, V is either the orthogonal Q of a free matrix (then H is symmetric), or a free matrix that
is inverted (then it is not). Dovonon et al. 2024 use both. Both start at the H nearest to the plain model's own, see
the same batches in the same order, and force lambda to sharpen or to smooth. Time is processor time of one block of
width 192 in training.

depthscope reproduce dovonon2024/qr_or_direct     about 2 minutes on two cores: digits, 4 blocks, 12 epochs, 3 seeds.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.weights import read_weights
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.experiments.races import draw_accuracies
from depthscope.models.vit import vit
from depthscope.remedies.fix import fix_
from depthscope.remedies.spectral_h import SpectralH
from depthscope.training.build import Build
from depthscope.training.recipe import Recipe
from depthscope.training.step import adamw
from depthscope.training.tasks import task as load_task

FORMS, MODES = ("symmetric", "direct"), ("sharpen", "smooth")
ARMS = [(mode, form) for mode in MODES for form in FORMS]
NAMES = ["plain", *(f"{mode}, {form}" for mode, form in ARMS)]
LOOKS = 12  # at the conditioning, along a training
LONG = 12  # epochs, after which the arms are asked how well they do
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Config:
    """width, images, rounds: of the block whose training step is timed."""

    LEAST = {"trials": 1}
    depth: int = 4
    d: int = 32
    h: int = 4
    q: int = 64
    epochs: int = 12
    batch: int = 64
    lr: float = 1e-3
    trials: int = 3
    width: int = 192
    images: int = 128
    rounds: int = 8
    seed: int = 0


SMOKE = Config(depth=2, epochs=3, lr=4e-3, trials=1, images=32, rounds=3)


def run(cfg: Config) -> dict[str, Tensor]:
    """accuracy and outside (1 + arms, seeds), condition (arms, seeds, looks), seconds (1 + forms,).

    outside: of the plain model, how far its eigenvalues are from those that sharpen.
    """
    builds = [_build(cfg), *(_build(cfg, mode=mode, form=form) for mode, form in ARMS)]
    turns = [(build, cfg.seed + trial) for build in builds for trial in range(cfg.trials)]
    ends, conditions, outside = [], [], []
    for build, seed in track(turns, len(turns)):
        accuracy, seen, away = _trained(build, cfg, seed)
        ends.append(accuracy)
        conditions.append(seen)
        outside.append(away)
    arms = (len(builds), cfg.trials)
    return {
        "accuracy": torch.tensor(ends).view(arms),
        "condition": torch.tensor(conditions).view(*arms, -1)[1:],
        "outside": torch.tensor(outside).view(arms),
        "seconds": torch.tensor(_seconds(cfg)),
    }


def _build(cfg: Config, **settings: str) -> Build:
    remedy = {"remedy": "spectral_h", "remedy_settings": settings} if settings else {}
    return Build(depth=cfg.depth, d=cfg.d, h=cfg.h, q=cfg.q, wiring="pre_norm", **remedy)  # type: ignore[arg-type]


def _trained(build: Build, cfg: Config, seed: int) -> tuple[float, list[float], float]:
    """Test accuracy, the worst conditioning of all blocks at every look, and how far an eigenvalue is outside."""
    task = load_task("digits")
    recipe = Recipe(epochs=cfg.epochs, batch=cfg.batch, lr=cfg.lr, seed=seed)
    model, fix = build.model(task, seed)
    optimizer, batches, steps = adamw(model, recipe), task.batches(recipe, CPU), recipe.steps(len(task))
    seen, looks = list[float](), set(torch.linspace(0, steps, LOOKS).long().tolist())
    for step in range(steps + 1):
        if step in looks:
            seen.append(max(one.condition() for one in fix.copies) if fix is not None else 1.0)
        if step == steps:
            break
        inputs, labels = batches.at(step)
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[-1]["lr"] = cfg.lr * recipe.rate(step, steps)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    scores = task.evaluate(model, "test", device=CPU, part=(0, 1), total=lambda x: x, final=True)
    away = _outside(model, task.probe(CPU), build.remedy_settings.get("mode", "sharpen"))
    return scores["accuracy"], seen, away


def _outside(model: nn.Module, inputs: Tensor, mode: str) -> float:
    """The largest distance of an eigenvalue of any block's W_V W_O, read from outside, to where it must lie."""
    low, high = (-1.0, 0.0) if mode == "sharpen" else (0.0, math.inf)
    values = torch.cat([torch.linalg.eigvals(one.product().sum(0)) for one in read_weights(model, inputs)])
    return float((values - values.real.clamp(low, high)).abs().max())


def _seconds(cfg: Config) -> list[float]:
    """Processor time of one training step of one block: plain, symmetric, direct; the least of some rounds."""
    images, labels = torch.randn(cfg.images, 3, 32, 32), torch.randint(0, 10, (cfg.images,))
    models = [vit(depth=2, d=cfg.width, h=3, q=4 * cfg.width, output=True) for _ in range(1 + len(FORMS))]
    for model, form in zip(models[1:], FORMS, strict=True):
        fix_(model, SpectralH(form=form)).prepare((images[:2],), {})
    times: list[list[float]] = [[] for _ in models]
    for _ in range(cfg.rounds + 1):
        for own, model in zip(times, models, strict=True):
            start = time.process_time()
            nn.functional.cross_entropy(model(images), labels).backward()
            own.append(time.process_time() - start)
    return [min(own[1:]) / 2 for own in times]  # the first round warms up; of two blocks


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    accuracy, condition = numbers["accuracy"], numbers["condition"]
    least, (plain, *forced) = 0.85 if cfg.epochs >= LONG else 0.2, numbers["outside"].amax(1)
    symmetric, direct = condition[0::2], condition[1::2]
    apart = accuracy[2::2] - accuracy[1::2]  # (modes, seeds), paired: the same start, batches and order
    return [
        *stated(  # the null: eigenvalues of the plain model; a guess
            cfg.trials,
            ("an eigenvalue after training is outside its set by at most", max(forced), 0.0, 1e-4, plain),
            ("least test accuracy of all arms", accuracy.min(), least, 1.0, 0.1),
        ),
        *reported(
            cfg.trials,
            ("direct: cond_1(V) at the end, worst block (refused above 8.4e4)", direct[..., -1].max()),
            ("symmetric: cond_1(Theta) at the end, worst block", symmetric[..., -1].max()),
            ("test accuracy, direct minus symmetric: mean over modes and seeds", apart.mean()),
        ),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    condition, dots, bars = figure.subplots(1, 3)
    share = torch.linspace(0, 1, numbers["condition"].shape[-1])
    for arm, rows in enumerate(numbers["condition"]):
        (line,) = condition.semilogy(share, rows.mean(0), label=NAMES[arm + 1])
        condition.fill_between(share, rows.amin(0), rows.amax(0), color=line.get_color(), alpha=0.15, lw=0)
    draw_accuracies(dots, numbers["accuracy"], NAMES)
    bars.bar(["plain", *FORMS], (1e3 * numbers["seconds"]).tolist())
    condition.set(title="cond_1 of the free matrix, worst block", xlabel="share of the training")
    bars.set(title=f"ms of one block's training step, d = {cfg.width}", ylim=(0, None))
