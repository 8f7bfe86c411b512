"""depthscope depth: which blocks of a trained model earn their place, and what does removing the others cost?"""

from pathlib import Path
from typing import Annotated

import typer

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output
from depthscope.errors import UsageError

AS_SAVED = "as saved"


def command(
    model: Chosen,
    *,
    tolerance: Annotated[
        float, typer.Option(help="A block earns its place if the loss rises by at least this much without it.")
    ] = 0.01,
    drop: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="<int>", help="Remove this many blocks: those that cost least.", show_default=False
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            help="With --drop: write the smaller model into this new Hugging Face folder.", show_default=False
        ),
    ] = None,
    output: Output,
) -> None:
    """Price every block of a trained model: what does it do, and by how much does the loss rise without it?

    Examples: depthscope depth depthscope.models.packaged:smollm2 --out depth.png;
    depthscope depth FOLDER --text corpus.txt --tokens 128 --batch 8 --drop 4 --save smaller
    """
    if save is not None and drop is None:
        raise UsageError("--save: needs --drop, the number of blocks to remove; it was not given. Add --drop 2.")
    if save is not None and Path(save).exists():
        raise UsageError(f"--save: the folder must be new; {save!r} exists. Choose another name.")
    from depthscope.depths.depth import depth
    from depthscope.depths.drop import drop_
    from depthscope.depths.words import numbered

    built, given = model.resolved(head=AS_SAVED)
    with output.aside().status("pricing blocks") as status:
        found = depth(built, given, tolerance=tolerance, drops=drop, on_step=status.update, **model.where(depth))
    output.show(found)
    if drop is not None:
        gone = found.to_drop(drop)
        how = "by measured loss" if found.curves else "by the angle between the ends of a stretch, without a loss"
        if save is not None:
            drop_(built, gone, among=found.blocks, save=save)
            output.note(f"wrote {save}: without {numbered(gone)}, chosen {how}")
        else:
            output.note(f"--drop {drop}: {numbered(gone)}, chosen {how}; --save FOLDER writes the model without them")
