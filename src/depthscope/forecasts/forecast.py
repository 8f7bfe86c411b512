"""forecast(): the curve of token similarity from sizes, from a model's weights, or from a scan of its first blocks."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from depthscope.errors import UsageError, said_by
from depthscope.forecasts.by_scan import of_scan
from depthscope.forecasts.by_sizes import Change, of_design, of_gain
from depthscope.forecasts.by_weights import of_model
from depthscope.forecasts.curves import refuse
from depthscope.forecasts.record import Forecast
from depthscope.models.design import check_size
from depthscope.scans.record import Scan
from depthscope.theory.numbers import checked

TOKENS = 64  # where nobody says how many


@said_by("forecast")
def forecast(
    source: nn.Module | Scan | None = None,
    inputs: Any = None,
    *,
    blocks: str | Iterable[str] | None = None,
    stream: str | None = None,
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
    laws flow through its blocks by its actual weights; ds.fix_ remedies and padding count; stream: one of several
    ("encoder", "decoder"), by default the one with most blocks. A Scan: calibrated on the
    blocks that were measured, up to depth. Without a source, sizes: n tokens (64) that start alike by t_sim (1/n when
    left out), and the choices of ds.models.classic: depth, d, h (or heads), q, alpha, wiring, attention (softmax),
    activation, weights, causal, output, bias; or instead of those the gain by which a block multiplies the odds
    t_sim / t_div. A thousand blocks, or widths too large to build, are fine. tau: de-escalation in every block (the
    sink form where causal), at block_out, or for sizes at another site; scores: a factor on what the softmax reads.

    Examples:
        >>> ds.forecast(depth=24, n=64, d=64, h=4).t_sim.shape  # depth + 1
        torch.Size([25])
    """
    checked("forecast", tau=tau, scores=scores)
    for name, size in (("n", n), ("depth", depth)):
        if size is not None:
            check_size("forecast", name, size)
    if "heads" in design and "h" not in design:
        design["h"] = design.pop("heads")
    changes = {"site": None if site == "block_out" else site, "scores": None if scores == 1 else scores}
    sizes = {"t_sim": t_sim, "gain": gain, **changes, **design}
    if isinstance(source, nn.Module):
        more = "belongs to sizes; a model has its own. For more blocks than the model has, forecast a scan of it"
        refuse("a model", more, depth=depth, **sizes)
        if inputs is not None:
            refuse("given inputs", "says how many random tokens to make", n=n)
        return of_model(source, inputs, blocks, stream, n or TOKENS, tau)
    if isinstance(source, Scan):
        refuse("a scan", "belongs to a model; a scan has its own", inputs=inputs, blocks=blocks, stream=stream, n=n)
        causal = sizes.pop("causal", None)
        refuse("a scan", "belongs to sizes; a scan has its own", **sizes)
        return of_scan(source, depth, tau, causal)
    if source is not None:
        raise UsageError(
            f"forecast: source must be a model, a Scan, or left out for sizes; got {type(source).__name__}. "
            "Try ds.forecast(model), ds.forecast(scan, depth=48) or ds.forecast(depth=48, n=64, d=256, h=8)."
        )
    refuse("sizes", "goes with a model", inputs=inputs, blocks=blocks, stream=stream)
    if gain is not None:
        return of_gain(gain, depth, n or TOKENS, t_sim, tau, design)
    return of_design(depth, n or TOKENS, t_sim, Change(tau, site, scores), design)
