"""forecast(): the curve of token similarity from sizes, from a model's weights, or from a scan of its first blocks."""

import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthscope.errors import ForecastError, UsageError
from depthscope.forecasts.calibrate import Calibration, calibrate
from depthscope.forecasts.extrapolate import band, extrapolated
from depthscope.forecasts.numbers import growth_of_design, has_maps, knows_sites, numbers_of_design
from depthscope.forecasts.record import Forecast
from depthscope.laws.law import Law
from depthscope.laws.through_design import laws_of_design
from depthscope.laws.through_model import laws_by_block
from depthscope.models.design import Design, check_size, design_of
from depthscope.models.random_inputs import random_inputs
from depthscope.registry import lookup
from depthscope.remedies._fix import fix_
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.scans.record import Scan
from depthscope.theory.covariance import normed, parts, rescaled
from depthscope.theory.depth import odds as odds_of
from depthscope.theory.depth import similarity_after
from depthscope.theory.numbers import checked
from depthscope.theory.participation import LARGEST
from depthscope.theory.stacks import covariances_by_depth
from depthscope.traces.blocks import blocks_by_name
from depthscope.traces.inputs import batches

Pair = tuple[Tensor, Tensor]
TOKENS = 64  # where nobody says how many


class Change(NamedTuple):
    """What is changed in a design: de-escalation tau at a site, a factor on what the softmax reads."""

    tau: float
    site: str
    scores: float


BY_WEIGHTS = "weights are random to the part of the tokens that differs; the common part goes through the actual ones"
BY_LAW = "weights are drawn independently for every block, by their law"
BY_SCAN = "later blocks are like the measured ones: the same gains of attention and network, chance as large"
ONE_LOOK = "blocks are followed by the law of their tokens; the model ran to find the sites of the remedy"
NO_PASS = "blocks are followed by the law of their tokens; nothing is computed in them"


def forecast(
    source: nn.Module | Scan | None = None,
    inputs: Any = None,
    *,
    blocks: str | Iterable[str] | None = None,
    depth: int | None = None,
    n: int | None = None,
    t_sim: float | None = None,
    tau: float = 0.0,
    site: str = "block_out",
    scores: float = 1.0,
    gain: float | None = None,
    **design: Any,
) -> Forecast:
    """Token similarity after every block, before anything is trained and without computing a block.

    source: a model, with inputs as for a scan (left out: random ones of n tokens); its embeddings are computed, and
    laws flow through its blocks by its actual weights; ds.fix_ remedies and padding count. A Scan: calibrated on the
    blocks that were measured, up to depth. Without a source, sizes: n tokens (64) that start alike by t_sim (1/n when
    left out), and the choices of ds.models.classic: depth, d, h (or heads), q, alpha, wiring, attention (softmax),
    activation, weights, causal, output, bias; or instead of those the gain by which a block multiplies the odds
    t_sim / t_div. A thousand blocks, or widths too large to build, are fine. tau: de-escalation in every block (the
    sink form where causal), at block_out, or for sizes at another site; scores: a factor on what the softmax reads.
    """
    checked("forecast", tau=tau, scores=scores)
    if n is not None:
        check_size("forecast", "n", n)
    if depth is not None:
        check_size("forecast", "depth", depth)
    if "heads" in design and "h" not in design:
        design["h"] = design.pop("heads")
    sizes = {"t_sim": t_sim, "site": None if site == "block_out" else site, "gain": gain, **design}
    sizes["scores"] = None if scores == 1 else scores
    if source is None:
        _refuse("sizes", "goes with a model", inputs=inputs, blocks=blocks)
        if gain is not None:
            return _of_gain(gain, depth, n or TOKENS, t_sim, tau, design)
        return _of_design(depth, n or TOKENS, t_sim, Change(tau, site, scores), design)
    if isinstance(source, Scan):
        _refuse("a scan", "belongs to a model; a scan has its own", inputs=inputs, blocks=blocks, n=n)
        return _of_scan(source, depth, tau, sizes)
    if not isinstance(source, nn.Module):
        raise UsageError(
            f"forecast: source must be a model, a Scan, or left out for sizes; got {type(source).__name__}. "
            "Try ds.forecast(model), ds.forecast(scan, depth=48) or ds.forecast(depth=48, n=64, d=256, h=8)."
        )
    more = "belongs to sizes; a model has its own. For more blocks than the model has, forecast a scan of it"
    _refuse("a model", more, depth=depth, **sizes)
    if inputs is not None:
        _refuse("given inputs", "says how many random tokens to make", n=n)
    return _of_model(source, inputs, blocks, n or TOKENS, tau)


def _refuse(what: str, why: str, **given: Any) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UsageError(f"forecast: {', '.join(names)} {why}. Leave it out for {what}.")


def _of_model(model: nn.Module, inputs: Any, blocks: str | Iterable[str] | None, n: int, tau: float) -> Forecast:
    assumed = [BY_WEIGHTS, ONE_LOOK if tau else NO_PASS]
    if inputs is None:
        inputs = random_inputs(model, n)
        assumed.append(f"inputs are random, {tuple(inputs.shape)}: none were given")
    if model.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()):
        assumed.append("dropout is off, although the model is in training mode")
    names = blocks_by_name(model, blocks)
    with ExitStack() as stack:
        if tau:
            stack.enter_context(fix_(model, DeEscalate(tau), blocks=blocks))
        found = [
            _of_laws(type(model).__name__, laws_by_block(model, names, b.args, b.kwargs), b.mask, assumed)
            for b in batches(model, inputs)
        ]
    means = {name: torch.stack([getattr(f, name) for f in found]).mean(0) for name in ("t_sim", "t_div", "t_cos")}
    return replace(found[0], tau=tau, **means)  # type: ignore[arg-type]


def _of_laws(source: str, laws: list[Law], mask: Tensor | None, assumed: list[str]) -> Forecast:
    """mask: tokens that count."""
    n = laws[0].tokens
    if mask is not None and mask.shape[-1] != n:
        mask = None  # of other tokens than those in the blocks, as of a longer text that was cut into patches
    overlaps = [law.overlaps() for law in laws]
    return _record(source, overlaps, [law.energies(mask) for law in laws], assumed, mask=mask)


def _of_gain(
    gain: float, depth: int | None, n: int, t_sim: float | None, tau: float, design: dict[str, Any]
) -> Forecast:
    """One gain for all blocks: the closed form of theory/depth.py."""
    _refuse("one gain", "says what gain says", **design)
    start = 1 / n if t_sim is None else t_sim
    after = torch.arange((depth or 12) + 1, dtype=torch.float64)
    each = gain * (1 - tau) ** 2
    similar = similarity_after(torch.full_like(after, start), gain=each, depth=after)
    odds = odds_of(start) * torch.as_tensor(each, dtype=torch.float64) ** after
    t_div = 1 / (1 + odds)
    t_cos = (n * similar - 1) / (n - 1) if n > 1 else torch.ones_like(similar)
    words = "every block multiplies the odds t_sim / t_div by the same gain"
    return Forecast(f"gain {gain:g}", n, similar, t_div, t_cos, [words], tau=tau)


def _of_scan(scan: Scan, depth: int | None, tau: float, sizes: dict[str, Any]) -> Forecast:
    causal = sizes.pop("causal", None)
    _refuse("a scan", "belongs to sizes; a scan has its own", **sizes)
    if causal is not None and not isinstance(causal, bool):
        raise UsageError(f"forecast: causal must be True or False; got {causal!r}.")
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
    n = round(scan.valid_tokens)
    t_cos = found.t_cos if cal.causal or n < 2 else (n * found.t_sim - 1) / (n - 1)  # of all tokens, not of a few
    return replace(found, n=n, t_cos=t_cos, tau=tau)


def _of_design(depth: int | None, n: int, t_sim: float | None, change: Change, choices: dict[str, Any]) -> Forecast:
    check_size("forecast", "n", n)
    design = design_of("forecast", **choices | ({} if depth is None else {"depth": depth}))
    if design.attention != "softmax":
        raise UsageError(f"forecast: attention must be softmax, whose law is known; got {design.attention}.")
    if lookup("wiring", design.wiring).no_law:
        raise UsageError(f"forecast: {lookup('wiring', design.wiring).no_law}")
    start = 1 / n if t_sim is None else t_sim
    checked("forecast", t_sim=start)
    if math.isnan(start):
        raise UsageError("forecast: t_sim must be a number in [0, 1]; got NaN. Leave it out for independent tokens.")
    if change.site != "block_out" and not knows_sites(design):
        raise UsageError(
            f"forecast: site must be block_out for {design.wiring} blocks and for blocks with biases; got "
            f"{change.site!r}. Build the model, fix it there, and forecast it: ds.forecast(model)."
        )
    with torch.no_grad():
        states, energies = (_by_maps if has_maps(design) else _by_laws)(design, n, start, change)
        growth = growth_of_design(design, n, t_sim=start, tau=change.tau, scores=change.scores)
    elsewhere = change.tau > 0 and change.site != "block_out" and growth is not None
    wide = has_maps(design) and numbers_of_design(design)["score_variance"] * change.scores**2 > LARGEST
    capped = [f"scores of a variance above {LARGEST:g} are taken as if they had that"] if wide else []
    assumed = [BY_LAW, NO_PASS, *capped, *(["gradients grow as with tau at block_out"] if elsewhere else [])]
    found = _record(_name(design, change), states, energies, assumed, growth)
    return replace(found, tau=change.tau)


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
    laws = laws_of_design(design, n, t_sim=t_sim, tau=change.tau, scores=change.scores)
    return [law.overlaps() for law in laws], [law.energies() for law in laws]


def _name(design: Design, change: Change) -> str:
    name = f"{design.wiring}, d {design.d}, {design.h} heads, {design.activation}, {design.weights}"
    name += f", tau {change.tau:g} at {change.site}" if change.tau else ""
    return name + (f", scores times {change.scores:g}" if change.scores != 1 else "")


def _record(
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
