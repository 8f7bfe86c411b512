"""The curves of a Forecast, from the overlaps of tokens after every block; and arguments that do not belong."""

from typing import Any

import torch
from torch import Tensor

from depthscope.errors import ForecastError, UsageError
from depthscope.forecasts.record import Forecast
from depthscope.theory.covariance import normed

Pair = tuple[Tensor, Tensor]
NO_PASS = "no block was computed: the law of the tokens was followed through them"


def curves(
    source: str,
    states: list[Tensor],
    energies: list[Pair],
    assumed: list[str],
    growth: Tensor | None = None,
    mask: Tensor | None = None,
) -> Forecast:
    """states: overlaps of the tokens, (..., n, n) each. energies: common and centred, (...) each."""
    shares = [(common / (common + centred), centred / (common + centred)) for common, centred in energies]
    t_sim, t_div = (torch.stack([share.mean() for share in column]) for column in zip(*shares, strict=True))
    broken = (~t_sim.isfinite()).nonzero()
    if len(broken):
        raise ForecastError(
            f"forecast: t_sim must be a number after every block; after block {int(broken[0])} it is not. Are there "
            "tokens left, and are the weights and the scores of a usual size? Scan the model to see."
        )
    t_cos = torch.stack([_cosine(S, mask) for S in states])
    return Forecast(source, states[0].shape[-1], t_sim, t_div, t_cos, assumed, gradient_growth=growth)


def _cosine(S: Tensor, mask: Tensor | None) -> Tensor:
    """The mean cosine of two tokens."""
    R = normed(S)
    m = torch.ones(1, S.shape[-1], dtype=R.dtype) if mask is None else mask.to(R)
    count = m.sum(-1)
    pairs = ((R @ m.unsqueeze(-1)).squeeze(-1) * m).sum(-1) - count
    return torch.where(count > 1, pairs / (count * (count - 1)).clamp(min=1), 1.0).mean()


def refuse(what: str, why: str, **given: Any) -> None:
    """Raise UsageError where something is given that does not go with a source."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UsageError(f"forecast: {', '.join(names)} {why}. Leave it out for {what}.")
