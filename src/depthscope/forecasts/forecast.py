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
    """Token similarity after every block, before anything is trained and without running tokens through the blocks.

    Args:
        source: A model (forecast by its weights, with ds.fix_ remedies and padding), a Scan (calibrated on the blocks
            that were measured), or None: then the sizes below are forecast.
        inputs: Inputs of the model, as for ds.scan; without them, random ones of n tokens.
        blocks: A pattern such as "encoder.layers.*", as for ds.scan.
        stream: The stream to forecast, if there are several; by default the one with most blocks.
        depth: The number of blocks (sizes), or up to which block a scan is continued.
        n: The number of tokens (64 if left out).
        t_sim: How alike the tokens are at the start (1/n if left out).
        tau: De-escalation of this strength in every block (in causal models the sink form).
        site: Where de-escalation acts, for sizes; otherwise at block_out.
        scores: A factor on what the softmax reads.
        gain: Instead of the design: the factor by which a block multiplies the odds t_sim / t_div.
        **design: Choices of ds.models.classic: d, h, q, alpha, wiring, attention, activation, weights, causal, output,
            bias.

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
