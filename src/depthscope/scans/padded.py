"""The padding of the stream that a scan measures, as the pass that was recorded shows it."""

from torch import Tensor

from depthscope.traces.blocks import Block
from depthscope.traces.inputs import Batch
from depthscope.traces.log import Log
from depthscope.traces.whose_padding import Padding, padding_of


def padding_seen(log: Log, blocks: list[Block], batch: Batch) -> Padding:
    """What counts as padding in these blocks: mask= where it was given, else what their attention leaves unseen."""
    shape, axis = blocks[0].source.shape, blocks[0].source.axis
    if batch.said != "inputs" or axis is None or len(shape) != 3:
        return Padding(batch.mask)
    own = [one for one in log.keys.found if any(block.holds(one.order) for block in blocks)]
    others = [one for one in log.keys.found if one not in own]
    return padding_of(batch.mask, own, others, (shape[1 - axis], shape[axis]))


def is_same_mask(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two masks (B, n) leave out the same tokens; None leaves out none."""
    if a is None or b is None:
        return all(mask is None or bool(mask.all()) for mask in (a, b))
    return a.shape == b.shape and bool((a.to(b.device) == b).all())
