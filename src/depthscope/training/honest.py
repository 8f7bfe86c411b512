"""What a language model knows when nobody shows it the future: only the tokens before are fed, one prefix at a time.

Training and evaluation feed a whole segment at once and trust the model not to look ahead. A mean over the segment, or
anything else that mixes tokens without a mask, breaks that trust, and the loss measured so is not one of a predictor.
"""

import torch
from torch import Tensor, nn

from depthscope.training.perplexity import losses

TOLERANCE = 1e-3  # nats; a gap above it is a leak. Rounding makes some 1e-6,
IN_BFLOAT16 = 1e-2  # but up to 1e-3 where products are rounded to 8 bits
WINDOWS = 16


@torch.no_grad()
def honest_loss(model: nn.Module, windows: Tensor, segment: int) -> dict[str, float]:
    """{"forced", "honest", "gap"}: means of -ln p over the last `segment` tokens of windows (W, N + 1), N >= segment.

    forced   all of the segment is fed at once, as in training
    honest   for each token only those before it are fed
    gap      the mean over tokens of |honest - forced|, token by token, so that no gain hides a loss

    The model is given tokens alone and says log p of all words; the targets stay here.
    What comes before the segment is remembered by models with a memory; it is past for every token of the segment.
    """
    before, tokens, targets = windows[:, : -segment - 1], windows[:, -segment - 1 : -1], windows[:, -segment:]
    memory = None
    for part in before.split(segment, dim=1) if before.shape[1] else ():
        _, memory = model(part, memory=memory)
    forced = losses(model(tokens, memory=memory)[0], targets)
    honest = torch.stack(
        [losses(model(tokens[:, :t], memory=memory)[0][:, -1], targets[:, t - 1]) for t in range(1, segment + 1)], 1
    )
    return {
        "forced": float(forced.mean()),
        "honest": float(honest.mean()),
        "gap": float((honest - forced).abs().mean()),
    }


def windows_of(ids: Tensor, length: int, count: int = WINDOWS) -> Tensor:
    """As many windows (W, length) of a text (N,), evenly spaced, as fit without touching, `count` at most."""
    count = max(1, min(count, len(ids) // length))
    starts = [(len(ids) - length) * i // max(1, count - 1) for i in range(count)]
    return torch.stack([ids[start : start + length] for start in starts])


def leaks(gap: float, precision: str = "no") -> bool:
    """Whether a gap is more than rounding in a Recipe.precision; nan is no clean bill either."""
    return not gap <= (IN_BFLOAT16 if precision == "bf16" else TOLERANCE)
