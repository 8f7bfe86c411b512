"""Blocks in which no attention was seen: do they mix tokens at all, and along which axis? One perturbation tells.

A model that mixes tokens in another way (a Fourier transform, a pool, a recurrence, a kernel that tells nobody) is
measured without heads. Where nothing moves but the token that was changed, there is nothing to measure.
"""

from functools import partial

from torch import nn

from depthscope.errors import AttentionNotSeenError
from depthscope.scans.reading import Reading
from depthscope.traces.entry import run_model
from depthscope.traces.inputs import Batch
from depthscope.traces.sure_survey import along, moving_axis
from depthscope.traces.token_axis import Frames

NOT_MEASURED = (
    "tokens are mixed without a softmax that could be seen, so delta, lambda_2 and all other numbers of heads "
    "were not measured"
)


def settled(model: nn.Module, batch: Batch, reading: Reading, *, needed: bool) -> Frames | None:
    """Frames to read the batch with once more, where the tokens are on another axis than was taken; else None.

    needed: what mixes tokens is to be measured, so that an error tells where nothing does.
    """
    source = reading.blocks[0].source
    paths = list(dict.fromkeys(path for block in reading.blocks for path in block.paths))
    if reading.log.other_attention:
        return None  # attention over a memory, or between sequences, does mix tokens
    taken = source.axis or 0
    look = partial(moving_axis, model, paths, source.shape, taken, batch.args, batch.kwargs)
    axis = run_model(model, look)
    if axis is None and needed:
        raise AttentionNotSeenError(_told(reading, "no token was seen to change another one"))
    return None if axis in (None, taken) else along(source.shape, axis)


def _told(reading: Reading, why: str) -> str:
    return (
        f"the blocks must mix their tokens; none was in {reading.pattern} ({reading.depth} blocks) that does: {why}. "
        "Pass attention=False to measure the states alone, or blocks= for other blocks."
    )
