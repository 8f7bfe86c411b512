"""forecast(): the curve of token similarity from a model's weights, or from sizes alone."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.forecasts.designs import laws_of_design
from depthscope.forecasts.follow import laws_by_block
from depthscope.forecasts.law import Law
from depthscope.forecasts.record import Forecast
from depthscope.models.design import check_size, design_of
from depthscope.theory._numbers import checked
from depthscope.traces.blocks import blocks_by_name

BY_WEIGHTS = "weights are random to the part of the tokens that differs; the common part goes through the actual ones"
BY_LAW = "weights are drawn independently for every block, by their law"
NO_PASS = "blocks are followed by the law of their tokens; nothing is computed in them"


def forecast(
    source: nn.Module | None = None,
    inputs: Any = None,
    *,
    blocks: str | Iterable[str] | None = None,
    depth: int | None = None,
    n: int = 64,
    t_sim: float | None = None,
    tau: float = 0.0,
    **design: Any,
) -> Forecast:
    """Token similarity after every block, before anything is trained and without computing a block.

    source: a model, with inputs as for a scan (a tensor, a tuple, or a mapping): its embeddings are computed, and laws
    flow through its blocks by its actual weights; ds.fix_ remedies count. Without a model, sizes: n tokens that start
    alike by t_sim (1/n when left out), tau at block_out (the sink form where causal), and the choices of
    ds.models.classic: depth, d, h, q, alpha, wiring, attention (softmax), activation, weights, causal, output, bias. A
    thousand blocks, or widths too large to build, are fine.
    """
    if source is None:
        return _of_design(depth, n, t_sim, tau, design)
    if not isinstance(source, nn.Module):
        raise UsageError(
            f"forecast: source must be a model, or left out for sizes; got {type(source).__name__}. "
            "Try ds.forecast(model, inputs) or ds.forecast(depth=48, n=64, d=256, h=8)."
        )
    given = [name for name, value in {"depth": depth, "t_sim": t_sim, **design}.items() if value is not None]
    if given or tau:
        raise UsageError(
            f"forecast: {', '.join(given or ['tau'])} belongs to sizes; a model has its own. "
            "Leave it out, or fix the model: ds.fix_(model, ds.remedies.DeEscalate(tau))."
        )
    if inputs is None:
        raise UsageError("forecast: a model needs inputs, as for a scan: its embeddings decide how alike tokens start.")
    args, kwargs = _arguments(inputs)
    laws = laws_by_block(source, blocks_by_name(source, blocks), args, kwargs)
    return _record(type(source).__name__, laws, [BY_WEIGHTS, NO_PASS])


def _of_design(depth: int | None, n: int, t_sim: float | None, tau: float, choices: dict[str, Any]) -> Forecast:
    check_size("forecast", "n", n)
    design = design_of("forecast", **choices | ({} if depth is None else {"depth": depth}))
    if design.attention != "softmax":
        raise UsageError(f"forecast: attention must be softmax, whose law is known; got {design.attention}.")
    if design.wiring == "hyper_connections":
        raise UsageError("forecast: hyper_connections start as pre_norm; forecast that. Their law is not known later.")
    start = 1 / n if t_sim is None else t_sim
    checked("forecast", t_sim=start, tau=tau)
    with torch.no_grad():
        laws = laws_of_design(design, n, t_sim=start, tau=tau)
    name = f"{design.wiring}, d {design.d}, {design.h} heads, {design.activation}, {design.weights}"
    return _record(f"{name}, tau {tau:g}" if tau else name, laws, [BY_LAW, NO_PASS])


def _arguments(inputs: Any) -> tuple[tuple, dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    raise UsageError(f"forecast: inputs must be a tensor, a tuple or a mapping; got {type(inputs).__name__}.")


def _record(source: str, laws: list[Law], assumed: list[str]) -> Forecast:
    curves = [_numbers(law) for law in laws]
    t_sim, t_div, t_cos = (torch.stack(column) for column in zip(*curves, strict=True))
    return Forecast(source, laws[0].tokens, t_sim, t_div, t_cos, assumed)


def _numbers(law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """t_sim, t_div and t_cos, means over sequences."""
    common, centred = law.energies()
    S = law.overlaps()
    size = S.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).sqrt()
    cosines = S / (size.unsqueeze(-1) * size.unsqueeze(-2))
    n = S.shape[-1]
    t_cos = (cosines.sum((-2, -1)) - n) / (n * (n - 1)) if n > 1 else torch.ones_like(common)
    whole = common + centred
    return (common / whole).mean(), (centred / whole).mean(), t_cos.mean()
