"""Single paths of every length, drawn at random: how large one is, and how alike the tokens are that it gives."""

import torch
from torch import Tensor

from depthscope.metrics.sizes import relative_residual
from depthscope.theory.path_counts import path_counts
from depthscope.theory.path_samples import draw_paths
from depthscope.theory.paths import Blocks, along_path


def draw_lengths(
    X: Tensor, P: Blocks, W_V: Blocks, W_O: Blocks, parts: Tensor, paths: int, mask: Tensor | None = None
) -> dict[str, Tensor]:
    """So many paths of each length, uniformly drawn with a fixed seed; (L + 1,) each, mean over sequences and paths.

    log10_norm: log10 of |path| / |output|, its mean and log10_norm_error, the standard error. residual, residual_error:
    the relative residual of one path. alignment: |sum of all paths| / (count * mean |path|) of this length, 1 when they
    all pull together.  X (B, n, d), parts (L + 1, B, n, d) from by_length.
    """
    heads = [W.shape[0] for W in W_V]
    seen = 1.0 if mask is None else mask.to(X)[..., None]

    def size(Y: Tensor) -> Tensor:
        return (Y * seen).square().sum((-2, -1)).sqrt()

    whole = size(parts.sum(0))
    log10_counts = path_counts(heads=heads).log10_counts
    chance = torch.Generator().manual_seed(0)
    rows = []
    for length in range(len(heads) + 1):
        terms = [along_path(path, X, P, W_V, W_O) for path in draw_paths(heads, length, paths, chance)]
        sizes = torch.stack([size(term) / whole for term in terms]).mean(1)  # (paths,)
        residuals = torch.stack([relative_residual(term, mask=mask) for term in terms]).mean(1)
        total = (size(parts[length]) / whole).mean()
        rows.append(
            {
                "log10_norm": sizes.log10().mean(),
                "log10_norm_error": sizes.log10().std() / paths**0.5,
                "residual": residuals.mean(),
                "residual_error": residuals.std() / paths**0.5,
                "alignment": 10 ** (total.log10() - sizes.mean().log10() - log10_counts[length]),
            }
        )
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
