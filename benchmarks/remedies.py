"""What every remedy costs in training, as a ratio to the plain model in one run: python benchmarks/remedies.py"""

import inspect
from collections.abc import Callable

import torch
from _ratio import line, ratio, training_step
from torch import nn

import depthscope as ds
from depthscope.models.design import shelves
from depthscope.registry import TABLES
from depthscope.remedies.fix import TOKEN_SITES

ROUNDS = 15
IMAGES, LABELS = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))


def step_of(model: nn.Module) -> Callable[[], None]:
    return training_step(model, IMAGES, LABELS)


def at_full_depth() -> None:
    """The limit that we set ourselves: the ViT of Table 1, 80 blocks, with DeEscalate at block_out over one without."""
    model = ds.models.vit("yu2023")
    with ds.fix_(model, ds.remedies.DeEscalate(), at="block_out") as fix:
        times, seconds = ratio(step_of(model), step_of(ds.models.vit("yu2023")), 2 * ROUNDS)
    line(f"ViT step, 80 blocks, {fix} / without", times, "most 1.03", f"without {seconds:.2f} s")


def of_every_remedy(depth: int = 12) -> None:
    """The same ViT with fewer blocks and every remedy, at its own site; DeEscalate at every site; every wiring."""
    plain = step_of(ds.models.vit("yu2023", depth=depth))
    choices = [(ds.remedies.DeEscalate(), at) for at in TOKEN_SITES]
    for kind in [kind for kind in TABLES["remedy"].values() if kind is not ds.remedies.DeEscalate]:
        needs = {"d": 192} if "d" in inspect.signature(kind).parameters else {}
        choices.append((kind(**needs), kind.at))
    for remedy, at in choices:
        model = ds.models.vit("yu2023", depth=depth)
        with ds.fix_(model, remedy, at=at) as fix:
            times, _ = ratio(step_of(model), plain, 5 if isinstance(remedy, ds.remedies.SoftDecay) else ROUNDS)
        line(f"ViT step, {depth} blocks, {fix} / without", times, "")
    shelves()
    for name, wiring in sorted(TABLES["wiring"].items()):
        if wiring.plain:
            with_, without = (step_of(ds.models.vit("yu2023", depth=depth, wiring=w)) for w in (name, wiring.plain))
            line(f"ViT step, {depth} blocks, {name} / {wiring.plain}", ratio(with_, without, ROUNDS)[0], "")


if __name__ == "__main__":
    at_full_depth()
    of_every_remedy()
