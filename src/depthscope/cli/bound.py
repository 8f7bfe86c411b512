"""depthscope bound: what does the rank-collapse theorem say of a real model's weights, and is it far from the truth?"""

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output


def command(model: Chosen, output: Output) -> None:
    """Hold the bound of "pure attention loses rank" (Dong et al. 2021) against what a model's attention does.

    Per block: beta, gamma and D from the real weights, the bound, the residual found, the rate (3: cubic), and by how
    many orders of magnitude the bound is above it. Example: depthscope bound bert --width 768 --heads 12
    """
    from depthscope.circuits.bounds import bounds

    built, given = model.resolved()
    with output.aside().status("reading weights and attention"):
        found = bounds(built, given, **model.where(bounds))
    output.show(found)
