"""advise(): what to change in a design, a model, or a model that was scanned, so that its tokens stay apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from depthscope.errors import ForecastError, UsageError, said_by
from depthscope.forecasts.advice import FLOOR, MOST_GROWTH, Advice, Kind, Limits, Option, choose
from depthscope.forecasts.by_scan import continued, replayed
from depthscope.forecasts.calibrate import calibrate
from depthscope.forecasts.forecast import forecast
from depthscope.forecasts.numbers import knows_sites
from depthscope.forecasts.record import Forecast
from depthscope.models.design import design_of
from depthscope.scans.record import Scan
from depthscope.scans.verdict import advised_by

TAUS = tuple(i / 20 for i in range(1, 21))
WEIGHTS = (0.8, 0.63, 0.5, 0.4, 0.32, 0.25, 0.2, 0.16, 0.125, 0.1)  # of a branch
SCORES = (0.5, 0.3, 0.1, 0.03)  # factors on what the softmax reads
KEEPING = ("pre_norm", "deep_norm")  # wirings that keep tokens apart
EVEN = "even_steps"
BEARING = (
    *KEEPING,
    "depth_scaled",
    EVEN,
    "layer_scale",
    "rezero",
)  # and those that bear large steps, from mild to strong
AS_IT_IS = "nothing"


@said_by("advise")
def advise(
    source: nn.Module | Scan | None = None,
    inputs: Any = None,
    *,
    floor: float = FLOOR,
    most_growth: float = MOST_GROWTH,
    lr: float | None = None,
    **choices: Any,
) -> Advice:
    """The mildest change that leaves `floor` of the signal different between tokens at the last block.

    Tried are, from mild to strong: smaller scores (sizes), de-escalation by tau, tau with smaller scores, a lighter
    residual branch, another wiring. For a model that is already built, only tau is tried.

    Args:
        source: A model, a Scan (with depth= for more blocks than it has), or None for sizes, as for ds.forecast.
        inputs: Inputs of the model, as for ds.scan.
        floor: The share of the signal that must differ between tokens after the last block.
        most_growth: How much gradients may grow over all blocks, where their growth can be forecast (sizes).
        lr: A learning rate of Adam or AdamW at which it should train, too (sizes, and reference models).
        **choices: The other arguments of ds.forecast.

    Examples:
        >>> ds.advise(depth=12, n=64, d=64, h=4).floor
        0.05
    """
    limits = Limits(floor, most_growth, lr)
    given = [name for name in ("tau", "site", "scores", "gain") if name in choices]
    if given:
        raise UsageError(
            f"advise: {', '.join(given)} is what advise finds by itself. Leave it out, or use ds.forecast."
        )
    if isinstance(source, Scan):
        return _of_scan(source, inputs, limits, choices)
    now = Option(AS_IT_IS, {}, "", forecast(source, inputs, **choices))
    if source is None:
        return choose(now, _kinds_of_sizes(choices, BEARING if lr else KEEPING), limits)
    return choose(now, [_tau(lambda tau: forecast(source, inputs, tau=tau, **choices))], limits)


def _tau(curve: Callable[[float], Forecast], site: str = "block_out") -> Kind:
    """De-escalation at a site, whose curve is given."""

    def option(tau: float) -> Option:
        code = f'ds.fix_(model, ds.remedies.DeEscalate({tau:g}), at="{site}")'
        settings = {"tau": tau, "site": site}
        return Option(f"de-escalation with tau {tau:g} at {site}", settings, code, curve(tau))

    return Kind(1, option, TAUS)


def _kinds_of_sizes(choices: dict[str, Any], wirings: tuple[str, ...]) -> list[Kind]:
    rest = {"h" if name == "heads" else name: value for name, value in choices.items()}
    design = design_of("advise", **{name: value for name, value in rest.items() if name not in ("n", "t_sim")})

    def smaller(scores: float) -> Option:
        words = f"scores times {scores:g} at the start (W_q and W_k times {scores**0.5:.2g}, or QK-norm)"
        code = f"W_q.weight.mul_({scores**0.5:.2g}); W_k.weight.mul_({scores**0.5:.2g})"
        return Option(words, {"scores": scores}, code, forecast(**rest, scores=scores))

    def lighter(weight: float) -> Option:
        alpha = design.alpha * weight
        words = f"the attention branch times {weight:g} (alpha {alpha:g})"
        curve = forecast(**{**rest, "alpha": alpha})
        return Option(words, {"alpha": alpha}, f"ds.models.classic(alpha={alpha:g}, ...)", curve)

    def rewired(wiring: str) -> Option:
        curve = forecast(**{**rest, "wiring": wiring})
        return Option(f"{wiring} blocks", {"wiring": wiring}, f'ds.models.classic(wiring="{wiring}", ...)', curve)

    def mended(wiring: str) -> Option:
        found, curve = rewired(wiring), forecast(**{**rest, "wiring": wiring}, tau=1.0)
        centred = _tau(lambda tau: curve).option(1.0)
        words, settings = f"{found.change} and {centred.change}", found.settings | centred.settings
        return Option(words, settings, f"{found.code}; {centred.code}", curve)

    kinds = [
        Kind(0, smaller, SCORES, calms=True, keeps=False),
        _tau(lambda tau: forecast(**rest, tau=tau)),
        *(_tau_with(scores, rest) for scores in (0.3, 0.1)),
        Kind(3, lighter, WEIGHTS),
        *(Kind(4, rewired, (name,)) for name in wirings if name != design.wiring),
        *(Kind(5, mended, (name,)) for name in wirings if name == EVEN),
    ]
    if knows_sites(design):
        kinds.append(_tau(lambda tau: forecast(**rest, tau=tau, site="ffn_in"), "ffn_in"))
    return kinds


def _tau_with(scores: float, rest: dict[str, Any]) -> Kind:
    """De-escalation and smaller scores at once, where one without the other makes gradients explode."""
    plain = _tau(lambda tau: forecast(**rest, tau=tau, scores=scores))

    def option(tau: float) -> Option:
        found, factor = plain.option(tau), f"{scores**0.5:.2g}"
        words = f"{found.change} and scores times {scores:g} at the start (W_q and W_k times {factor}, or QK-norm)"
        code = f"{found.code}; W_q.weight.mul_({factor}); W_k.weight.mul_({factor})"
        return replace(found, change=words, code=code, settings={**found.settings, "scores": scores})

    return Kind(2, option, TAUS, calms=True)


def _of_scan(scan: Scan, inputs: Any, limits: Limits, choices: dict[str, Any]) -> Advice:
    depth, causal = choices.pop("depth", None) or scan.depth, choices.pop("causal", None)
    if choices or inputs is not None or not isinstance(depth, int) or depth < scan.depth:
        raise UsageError(
            f"advise: a scan goes with depth= (its {scan.depth} blocks, or more) and causal= alone; got depth {depth!r}"
            f"{''.join(f', {name}' for name in choices)}{', inputs' if inputs is not None else ''}."
        )
    cal = calibrate(scan, causal)

    def lighter(weight: float) -> Option:
        curve = replayed(cal.changed(s=weight**2, k=weight**2), scan, depth)
        code = f"scale the last matrix of attention and network by {weight:g} at the start"
        return Option(f"residual branches times {weight:g}", {"branches": weight}, code, curve)

    def rewired(wiring: str) -> Option:
        within = replace(cal, post=False, steps=tuple(step for step in cal.steps if not step.endswith("_norm")))
        return Option("pre-norm blocks", {"wiring": wiring}, "norms inside the branches", replayed(within, scan, depth))

    kinds = [_tau(lambda tau: replayed(cal, scan, depth, tau)), Kind(3, lighter, WEIGHTS)]
    kinds += [Kind(4, rewired, ("pre_norm",))] if cal.post else []
    return choose(Option(AS_IT_IS, {}, "", continued(cal, scan, depth)), kinds, limits)


def in_a_verdict(scan: Scan, depth: int | None) -> str:
    """The mildest change by a forecast that is calibrated on this scan; where there is none, what helps in general."""
    form = ", in a form that uses past tokens only" if scan.causal else ""
    in_general = f"Ways out: de-escalation (ds.remedies.DeEscalate){form}, pre-norm, a smaller residual branch."
    if scan.remedies:  # the model was fixed; what is left is how it was trained, or how much
        in_general = (
            f"The model has {' and '.join(scan.remedies)} already. If it collapsed while it trained, train with a "
            "smaller learning rate; if not, ways out are a stronger remedy, pre-norm, a smaller residual branch."
        )
    try:
        advice = advise(scan, depth=depth)
    except (ForecastError, UsageError):  # steps or norms that a forecast does not know
        return in_general
    if not advice.needed:  # forecasts follow all tokens, verdicts those that massive ones and outliers hide
        return in_general
    kept = f"{advice.choice.t_div:.0%} of the signal would still differ at block {advice.choice.forecast.depth}"
    if not advice.holds:
        growth = advice.choice.growth or 0.0
        price = f", but gradients would grow by {growth:.1g} over all blocks" if growth > advice.most_growth else ""
        return (
            f"No single change helps, by a forecast from these blocks; best is {advice.choice.change}: {kept}{price}."
        )
    others = [o.change for o in advice.options[1:] if o is not advice.choice and advice.keeps(o)]
    also = f" Or: {', '.join(others)}." if others else ""
    return f"Mildest way out, by a forecast from these blocks: {advice.choice.code}; {kept}.{also}"


advised_by(in_a_verdict)
