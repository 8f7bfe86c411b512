"""Blocks in which no attention was seen: do they mix tokens at all, and along which axis? One perturbation tells.

A model that mixes tokens in another way (a Fourier transform, a pool, a recurrence, a kernel that tells nobody) is
measured without heads. Where nothing moves but the token that was changed, there is nothing to measure.
"""

from functools import partial

from torch import nn

from depthscope.errors import AttentionNotSeenError
from depthscope.scans.reading import Reading
from depthscope.traces.causality import trial_of
from depthscope.traces.entry import run_model
from depthscope.traces.inputs import Batch
from depthscope.traces.token_axis import Frames

NOT_MEASURED = (
    "tokens are mixed without a softmax that could be seen: delta, lambda_2 and all that is of heads were not measured"
)


def settled(model: nn.Module, batch: Batch, reading: Reading) -> Frames | None:
    """Frames to read the batch with once more, where the tokens are on another axis than was taken; else None.

    An error where nothing mixes tokens, or only attention that reads other tokens as well.
    """
    source = reading.blocks[0].source
    paths = list(dict.fromkeys(path for block in reading.blocks for path in block.paths))
    if reading.log.other_attention:
        return None  # attention over a memory, or between sequences, does mix tokens
    taken = source.axis or 0
    axes = [taken] + [axis for axis in (1, 0) if axis != taken and len(source.shape) == 3]
    moving = [axis for axis in axes if run_model(model, partial(mixes, model, paths, axis, batch))]
    if not moving:
        raise AttentionNotSeenError(_told(reading, "no token was seen to move another one"))
    if moving[0] == taken:
        return None
    n, rows = source.shape[moving[0]], source.shape[taken]
    frames = Frames(square_axis=moving[0])
    frames.add(rows, n)
    return frames


def mixes(model: nn.Module, blocks: list[str], axis: int, batch: Batch) -> bool:
    """Whether a token that is changed where the blocks begin moves others along this axis."""
    trial = trial_of(model, blocks, axis, batch.args, batch.kwargs, 0)
    if not trial.base or trial.n < 2:
        return False
    for changed in sorted({0, trial.n // 2, trial.n - 1}):
        moved = trial.moved([changed], [i for i in range(trial.n) if i != changed])
        if moved is not None and float(moved[0].max()) > trial.rounding:
            return True
    return False


def _told(reading: Reading, why: str) -> str:
    return (
        f"the blocks must mix their tokens; none was in {reading.pattern} ({reading.depth} blocks) that does: {why}. "
        "Pass attention=False to measure the states alone, or blocks= for other blocks."
    )
