"""The rate limit of a model that is built: known where it says its sizes and its weights are those of its law."""

from torch import nn

from depthscope.forecasts.rate_limit import RateLimit, limit_of
from depthscope.forecasts.record import Forecast
from depthscope.models.block import Block
from depthscope.models.design import Design
from depthscope.models.transformer import Transformer
from depthscope.models.weights import variances
from depthscope.traces.installed import fixes_in

NEAR = 1.3  # factor between the mean square of a matrix's entries and the variance of its law, up to which it is drawn


def limit_of_model(model: nn.Module, found: Forecast) -> RateLimit | None:
    """What decides on the rate of a reference model as it was drawn; None of any other, and where remedies act."""
    stacks = [module for module in model.modules() if isinstance(module, Transformer)]
    if len(stacks) != 1 or len(stacks[0]) != found.depth or fixes_in(model):
        return None
    if not all(as_drawn(block, stacks[0].design) for block in stacks[0]):
        return None
    start, left = (min(max(float(t), 0.0), 1.0) for t in (found.t_sim[0], found.t_div[-1]))
    more = {"tau": found.tau, "site": "block_out", "scores": 1.0}
    return limit_of(stacks[0].design, found.n, t_sim=start, diversity=left, **more)  # type: ignore[arg-type]


def as_drawn(block: Block, design: Design) -> bool:
    """Whether the matrices of a block have the size that the law of the design and the gain of the wiring give them."""
    for path, matrix in block.matrices():
        role = path.rpartition(".")[-1]
        expected = variances(design.weights, role, tuple(matrix.weight.shape), design.h)[0]
        expected *= block.wiring.gain(role) ** 2
        got = float(matrix.weight.detach().float().square().mean())  # some devices have no float64
        if not expected / NEAR <= got <= expected * NEAR:
            return False
    return True
