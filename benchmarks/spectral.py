"""What eigenvalues in the place of W_V W_O cost in training, over the plain model in one run: benchmarks/spectral.py"""

import time
from collections.abc import Callable

import torch
from _ratio import line, ratio, training_step

import depthscope as ds
from depthscope.remedies.eigenvalues import inverse, orthogonal

DEPTH, D, BATCH, ROUNDS = 4, 192, 128, 8
IMAGES, LABELS = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))  # 64 patches and cls


def of_a_training_step() -> None:
    """The limit that we set ourselves: a ViT of width 192 on 65 tokens, batch 128, at most 1.3 times the plain one."""
    sizes = {"depth": DEPTH, "d": D, "h": 3, "q": 4 * D, "output": True, "weights": "torch_default"}
    plain = training_step(ds.models.vit(**sizes), IMAGES, LABELS)
    for form in ("symmetric", "direct"):
        model = ds.models.vit(**sizes)
        with ds.fix_(model, ds.remedies.SpectralH(form=form)) as fix:
            fix.prepare((IMAGES[:2],), {})
            times, seconds = ratio(training_step(model, IMAGES, LABELS), plain, ROUNDS)
        line(f"ViT step, {DEPTH} blocks, {form} / plain", times, "most 1.3", f"plain {seconds:.2f} s")


def of_a_basis() -> None:
    """V and V^-1 of one block with their gradients, by the two forms, in milliseconds."""
    for d in (192, 384, 768):
        for name, f in (("symmetric, QR", orthogonal), ("direct, inverse", lambda V: inverse(V, "benchmark"))):
            line(f"one block, d = {d}: {name}, forward and backward", 1e3 * _seconds(f, d), "", "ms")


def _seconds(f: Callable[[torch.Tensor], torch.Tensor], d: int, rounds: int = 10) -> float:
    V = (torch.eye(d) + 0.3 * d**-0.5 * torch.randn(d, d)).requires_grad_()
    weigh, times = torch.randn(d, d), []
    for _ in range(rounds):
        start = time.perf_counter()
        (f(V) * weigh).sum().backward()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    of_a_training_step()
    of_a_basis()
