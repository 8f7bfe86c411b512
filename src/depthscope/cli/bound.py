"""depthscope bound: what does the rank-collapse theorem say of a real model's weights, and is it far from the truth?"""

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output


def command(model: Chosen, output: Output) -> None:
    """Compare the bound of "pure attention loses rank" (Dong et al. 2021) with what a model's attention really does.

    For each block: beta, gamma and D from the real weights, the bound, the measured residual, its rate (3 is cubic),
    and by how many orders of magnitude the bound lies above it. Example: depthscope bound bert --width 768 --heads 12
    """
    from depthscope.circuits.bounds import bounds

    built, given = model.resolved()
    with output.aside().status("reading weights and attention"):
        found = bounds(built, given, **model.where(bounds))
    output.show(found)
