"""The padding of the stream that a scan measures, as the pass that was recorded shows it."""

from torch import Tensor, nn

from depthscope.traces.blocks import Block
from depthscope.traces.glance import glance
from depthscope.traces.inputs import Batch, padding_in
from depthscope.traces.log import Log
from depthscope.traces.suspected import suspicion
from depthscope.traces.unseen_keys import agreed
from depthscope.traces.whose_padding import Padding, left_aside, padding_of


def padding_seen(model: nn.Module, log: Log, blocks: list[Block], batch: Batch) -> Padding:
    """What counts as padding in these blocks: mask= where it was given, else what their attention leaves unseen.

    A second glance where no attention shows it and the mask among the inputs does not fit.
    """
    shape, axis = blocks[0].source.shape, blocks[0].source.axis
    if batch.said != "inputs" or axis is None or len(shape) != 3:
        return Padding(batch.mask)
    own = [one for one in log.keys.found if any(block.holds(one.order) for block in blocks)]
    others = [one for one in log.keys.found if one not in own]
    paths, tokens = [path for block in blocks for path in block.paths], (shape[1 - axis], shape[axis])
    named = padding_in(model, batch.args, batch.kwargs, paths)
    if named is not None and tuple(named.shape) != tokens and agreed(own, *tokens) is None:
        return glance(model, paths, axis, batch.args, batch.kwargs).padding(named)
    found = padding_of(named, own, others, tokens)
    if named is None and found.mask is None and batch.mask is not None and not bool(batch.mask.all()):
        return Padding(None, left_aside(batch.mask))
    if found.mask is None and not found.note:
        told = agreed(own, *tokens) is not None
        return Padding(None, suspicion(model, batch.args, batch.kwargs, tokens, told=told))
    return found


def is_same_mask(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two masks (B, n) leave out the same tokens; None leaves out none."""
    if a is None or b is None:
        return all(mask is None or bool(mask.all()) for mask in (a, b))
    return a.shape == b.shape and bool((a.to(b.device) == b).all())
