"""depthscope paths: what do the paths through few and through many attentions contribute to a model's output?"""

from dataclasses import dataclass
from typing import Annotated

import typer

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output
from depthscope.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Perhaps(Chosen):
    """A model, or sizes alone."""

    model: Annotated[
        str | None, typer.Argument(help="A model as for scan. Without it, paths are only counted.", show_default=False)
    ] = None


def command(
    model: Perhaps,
    *,
    form: Annotated[
        str,
        typer.Option(
            help="secant: the whole model; attention, norms and activations are held at their values. tangent: the "
            "same, with the slopes of activations. attention: only attention and skips, as in the paper."
        ),
    ] = "secant",
    draw: Annotated[
        int, typer.Option(help="Also draw this many single paths of each length; needs --form attention.")
    ] = 0,
    output: Output,
) -> None:
    """Split a model's output into the parts that came through 0, 1, 2, ... attentions: is its depth used?

    All (1 + heads)^depth paths are summed exactly (Dong et al. 2021). Examples: depthscope paths bert;
    depthscope paths --depth 96 --heads 96 (counts the paths of GPT-3).
    """
    if model.model is None:
        count(model.depth, model.heads, output)
        return
    from depthscope.circuits.paths import paths

    built, given = model.resolved()
    with output.aside().status("following the paths"):
        found = paths(built, given, form=form, draw=draw, **model.where(paths))
    output.show(found)


def count(depth: int, heads: int, output: Output) -> None:
    """The numbers of paths, without a model."""
    from depthscope.reports.paths import counts_sheet
    from depthscope.theory.path_counts import path_counts

    if output.out:
        raise UsageError("--out: needs a model whose paths are weighed. Name one, for example: depthscope paths bert.")
    counts = path_counts(depth, heads)
    names = ("log10_counts", "shares", "log10_total", "mean_length")
    record = {"depth": depth, "heads": heads, **{name: getattr(counts, name) for name in names}}
    output.show(record, counts_sheet(counts))
