"""ds.ablate: scan a model with and without parts of its blocks, in all combinations (Dong et al. 2021, section 4)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from torch import nn

from depthscope.ablations.record import Ablations, Row
from depthscope.ablations.without import MEANS, without_
from depthscope.errors import UnknownNameError, UsageError, said_by
from depthscope.registry import unknown
from depthscope.scans.scan import scan
from depthscope.traces.caches import is_cache
from depthscope.traces.entry import enter
from depthscope.traces.survey import evaluated

DEFAULT = ("skips", "ffn", "norms")
METRICS = ("relative_residual", "t_cos", "token_norm", "stable_rank")  # t_sim and t_div are always measured


@said_by("ablate")
def ablate(
    model: nn.Module,
    inputs: Any,
    *,
    parts: Iterable[str] = DEFAULT,
    metrics: Iterable[str] = (),
    mask: Any = None,
    blocks: str | Iterable[str] | None = None,
    stream: str | None = None,
    on_row: Callable[[int, int], None] | None = None,
) -> Ablations:
    """Measure how alike a model's tokens grow when parts of its blocks are removed, in all 2^k combinations.

    The model runs with its own weights, in evaluation mode because dropout would count as diversity, and is left as it
    was.

    Args:
        model: Any torch module.
        inputs: Inputs of the model, as for ds.scan.
        parts: See ds.without_. The paper keeps the skip of the network: ("attention_skip", "ffn", "norms").
        metrics: More metrics of ds.metrics to measure.
        mask: As for ds.scan.
        blocks: As for ds.scan.
        stream: As for ds.scan; by default the stream with most blocks.
        on_row: Is called with the number of rows that are done, and the number of all rows.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> X = torch.randn(2, 4, 8, generator=torch.manual_seed(0))  # (batch, n, d)
        >>> len(ds.ablate(model, X).rows)  # 2^3 combinations
        8
    """
    names = checked([parts] if isinstance(parts, str) else parts)
    if isinstance(inputs, Iterator):
        inputs = list(inputs)  # they are read once for each row
    _refuse_cache(inputs)
    model = enter(model).model
    chosen: dict[str, Any] = {
        "metrics": dict.fromkeys((*METRICS, *metrics)),
        "mask": mask,
        "blocks": blocks if blocks is None or isinstance(blocks, str) else list(blocks),
        "stream": stream,
        "attention": False,
    }
    rows: list[Row] = []
    with evaluated(model):
        for removed in subsets(names):
            if not removed:
                rows.append(Row((), scan(model, inputs, **chosen)))
                chosen["stream"] = rows[0].scan.stream
            else:
                with without_(model, *removed, blocks=chosen["blocks"], stream=chosen["stream"]):
                    rows.append(Row(removed, scan(model, inputs, **chosen)))
            if on_row is not None:
                on_row(len(rows), 2 ** len(names))
    return Ablations(names, tuple(rows))


def checked(parts: Iterable[str]) -> tuple[str, ...]:
    """The names of the parts, each known, none of them twice."""
    names = tuple(parts)
    for name in names:
        if name not in MEANS:
            raise UnknownNameError(unknown("part", name, MEANS))
    means = [part for name in names for part in MEANS[name]]
    if not names or len({*means}) < len(means):
        raise UsageError(
            f"parts must be at least one, and must not overlap (skips are attention_skip and ffn_skip); "
            f"got {', '.join(names) or 'none'}. Leave some out."
        )
    return names


def subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All combinations, from none of the names to all of them."""
    for count in range(len(names) + 1):
        yield from combinations(names, count)


def _refuse_cache(inputs: Any) -> None:
    batches = inputs if isinstance(inputs, list) else [inputs]
    for batch in batches:
        values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else ()
        if any(map(is_cache, values)):
            raise UsageError(
                "inputs must hold the whole text; got a key-value cache, which would grow with every row of the "
                "table. Leave it out."
            )
