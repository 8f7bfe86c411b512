"""forecast(): the curve of token similarity from sizes, from a model's weights, or from a scan of its first blocks."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.forecasts.calibrate import Calibration, calibrate
from depthscope.forecasts.designs import laws_of_design
from depthscope.forecasts.extrapolate import band, extrapolated
from depthscope.forecasts.follow import laws_by_block
from depthscope.forecasts.gradients import growth_of_design
from depthscope.forecasts.numbers import has_maps, numbers_of_design
from depthscope.forecasts.record import Forecast
from depthscope.models.design import Design, check_size, design_of
from depthscope.models.random_inputs import random_inputs
from depthscope.remedies._fix import fix_
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.scans.record import Scan
from depthscope.theory._numbers import checked
from depthscope.theory.covariance import normed, parts, rescaled
from depthscope.theory.stacks import covariances_by_depth
from depthscope.traces.blocks import blocks_by_name

Pair = tuple[Tensor, Tensor]


class Change(NamedTuple):
    """What is changed in a design: de-escalation tau at a site, a factor on what the softmax reads."""

    tau: float
    site: str
    scores: float


BY_WEIGHTS = "weights are random to the part of the tokens that differs; the common part goes through the actual ones"
BY_LAW = "weights are drawn independently for every block, by their law"
BY_SCAN = "later blocks are like the measured ones: the same gains of attention and network, chance as large"
NO_PASS = "blocks are followed by the law of their tokens; nothing is computed in them"


def forecast(
    source: nn.Module | Scan | None = None,
    inputs: Any = None,
    *,
    blocks: str | Iterable[str] | None = None,
    depth: int | None = None,
    n: int = 64,
    t_sim: float | None = None,
    tau: float = 0.0,
    site: str = "block_out",
    scores: float = 1.0,
    **design: Any,
) -> Forecast:
    """Token similarity after every block, before anything is trained and without computing a block.

    source: a model, with inputs as for a scan (left out: random ones); its embeddings are computed, and laws flow
    through its blocks by its actual weights; ds.fix_ remedies count. A Scan: calibrated on the blocks that were
    measured, up to depth. Without a source, sizes: n tokens that start alike by t_sim (1/n when left out), and the
    choices of ds.models.classic: depth, d, h, q, alpha, wiring, attention (softmax), activation, weights, causal,
    output, bias. A thousand blocks, or widths too large to build, are fine. tau: de-escalation in every block (the sink
    form where causal), at block_out, or for sizes at another site; scores: a factor on what the softmax reads (sizes).
    """
    checked("forecast", tau=tau, scores=scores)
    if source is None:
        return _of_design(depth, n, t_sim, Change(tau, site, scores), design)
    sizes = {"t_sim": t_sim, **design}
    sizes |= {"site": site} if site != "block_out" else {}
    sizes |= {"scores": scores} if scores != 1 else {}
    given = [name for name, value in sizes.items() if value is not None]
    if isinstance(source, Scan):
        return _of_scan(source, depth, tau, sizes)
    if not isinstance(source, nn.Module):
        raise UsageError(
            f"forecast: source must be a model, a Scan, or left out for sizes; got {type(source).__name__}. "
            "Try ds.forecast(model), ds.forecast(scan, depth=48) or ds.forecast(depth=48, n=64, d=256, h=8)."
        )
    if given or depth is not None:
        raise UsageError(
            f"forecast: {', '.join(given or ['depth'])} belongs to sizes; a model has its own. "
            "Leave it out; for more blocks than the model has, forecast a scan of it."
        )
    return _of_model(source, inputs, blocks, n, tau)


def _of_model(model: nn.Module, inputs: Any, blocks: str | Iterable[str] | None, n: int, tau: float) -> Forecast:
    assumed = [BY_WEIGHTS, NO_PASS]
    if inputs is None:
        inputs = random_inputs(model, n)
        assumed.append(f"inputs are random, {tuple(inputs.shape)}: none were given")
    args, kwargs = _arguments(inputs)
    names = blocks_by_name(model, blocks)
    if tau:
        with fix_(model, DeEscalate(tau), blocks=blocks):
            laws = laws_by_block(model, names, args, kwargs)
    else:
        laws = laws_by_block(model, names, args, kwargs)
    energies = [law.energies() for law in laws]
    return _record(type(model).__name__, [law.overlaps() for law in laws], energies, assumed)


def _of_scan(scan: Scan, depth: int | None, tau: float, sizes: dict[str, Any]) -> Forecast:
    causal = sizes.pop("causal", None)
    given = [name for name, value in sizes.items() if value is not None]
    if given:
        raise UsageError(f"forecast: {', '.join(given)} belongs to sizes; a scan has its own. Leave it out.")
    if depth is None or depth <= scan.depth:
        raise UsageError(
            f"forecast: depth must be more than the {scan.depth} blocks of the scan; got {depth}. "
            f"Try depth={2 * scan.depth}."
        )
    cal = calibrate(scan, causal)
    return replayed(cal, scan, depth, tau) if tau else continued(cal, scan, depth)


def continued(cal: Calibration, scan: Scan, depth: int) -> Forecast:
    """The measured blocks as they were measured, and those after them with a band."""
    rest = _replay(cal, cal.end, scan, depth - scan.depth)
    edges = band(cal, cal.end, depth - scan.depth)
    past = {name: scan.states[name][:-1] for name in ("t_sim", "t_div", "t_cos")}
    curves: dict[str, Any] = {name: torch.cat([past[name], getattr(rest, name)]) for name in past}
    whole = torch.stack([torch.cat([past["t_sim"], edge]) for edge in edges])
    return replace(rest, measured=scan.depth, band=whole, **curves)


def replayed(cal: Calibration, scan: Scan, depth: int, tau: float = 0.0) -> Forecast:
    """All blocks from the measured input on, as the calibration has them: a scan of other blocks says nothing here."""
    found = _replay(cal, cal.start, scan, depth, tau)
    edges = torch.stack(band(cal, cal.start, depth, tau))
    return replace(found, band=edges, source=f"{found.source}, tau {tau:g}" if tau else found.source)


def _replay(cal: Calibration, S: Tensor, scan: Scan, blocks: int, tau: float = 0.0) -> Forecast:
    states = extrapolated(cal, S, blocks, tau)
    found = _record(f"{scan.title}, from {scan.depth} blocks", states, [parts(S) for S in states], [BY_SCAN])
    return replace(found, n=round(scan.valid_tokens))


def _of_design(depth: int | None, n: int, t_sim: float | None, change: Change, choices: dict[str, Any]) -> Forecast:
    check_size("forecast", "n", n)
    design = design_of("forecast", **choices | ({} if depth is None else {"depth": depth}))
    if design.attention != "softmax":
        raise UsageError(f"forecast: attention must be softmax, whose law is known; got {design.attention}.")
    if design.wiring == "hyper_connections":
        raise UsageError("forecast: hyper_connections start as pre_norm; forecast that. Their law is not known later.")
    start = 1 / n if t_sim is None else t_sim
    checked("forecast", t_sim=start)
    with torch.no_grad():
        states, energies = (_by_maps if has_maps(design) else _by_laws)(design, n, start, change)
        at_end = change.site == "block_out" or not change.tau
        growth = growth_of_design(design, n, t_sim=start, tau=change.tau, scores=change.scores) if at_end else None
    return _record(_name(design, change), states, energies, [BY_LAW, NO_PASS], growth)


def _by_maps(design: Design, n: int, t_sim: float, change: Change) -> tuple[list[Tensor], list[Pair]]:
    """Overlaps and energies of the tokens before block 1 and after every block."""
    numbers = numbers_of_design(design)
    numbers["score_variance"] *= change.scores**2
    S = rescaled(torch.eye(n, dtype=torch.float64), n * t_sim, n * (1 - t_sim) / max(1, n - 1))
    more = {"tau": change.tau, "site": change.site}
    states = covariances_by_depth(S, depth=design.depth, causal=design.causal, **more, **numbers)
    return states, [parts(state) for state in states]


def _by_laws(design: Design, n: int, t_sim: float, change: Change) -> tuple[list[Tensor], list[Pair]]:
    """The same for wirings and biases without maps."""
    if change.site != "block_out":
        raise UsageError(
            f"forecast: site must be block_out for {design.wiring} blocks and for blocks with biases; got "
            f"{change.site!r}. Build the model, fix it there, and forecast it: ds.forecast(model)."
        )
    laws = laws_of_design(design, n, t_sim=t_sim, tau=change.tau, scores=change.scores)
    return [law.overlaps() for law in laws], [law.energies() for law in laws]


def _name(design: Design, change: Change) -> str:
    name = f"{design.wiring}, d {design.d}, {design.h} heads, {design.activation}, {design.weights}"
    name += f", tau {change.tau:g} at {change.site}" if change.tau else ""
    return name + (f", scores times {change.scores:g}" if change.scores != 1 else "")


def _arguments(inputs: Any) -> tuple[tuple, dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    raise UsageError(f"forecast: inputs must be a tensor, a tuple or a mapping; got {type(inputs).__name__}.")


def _record(
    source: str,
    states: list[Tensor],
    energies: list[tuple[Tensor, Tensor]],
    assumed: list[str],
    growth: Tensor | None = None,
) -> Forecast:
    """states: overlaps of the tokens, (..., n, n) each. energies: common and centred, which keep small values whole."""
    shares = [(common / (common + centred), centred / (common + centred)) for common, centred in energies]
    t_sim, t_div = (torch.stack([share.mean() for share in column]) for column in zip(*shares, strict=True))
    t_cos = torch.stack([_cosine(S) for S in states])
    return Forecast(source, states[0].shape[-1], t_sim, t_div, t_cos, assumed, gradient_growth=growth)


def _cosine(S: Tensor) -> Tensor:
    """The mean cosine of two tokens."""
    n = S.shape[-1]
    R = normed(S)
    return ((R.sum((-2, -1)) - n) / (n * (n - 1)) if n > 1 else torch.ones(())).mean()
