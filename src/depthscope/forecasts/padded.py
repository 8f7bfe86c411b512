"""The padding of a forecast: what the first attention of the model leaves unseen, and the mask among the inputs."""

from torch import Tensor, nn

from depthscope.traces.entry import run_model
from depthscope.traces.glance import glance
from depthscope.traces.inputs import Batch
from depthscope.traces.whole_weights import is_offloaded


def mask_of_tokens(model: nn.Module, blocks: list[str], batch: Batch, n: int) -> Tensor | None:
    """The mask (B, n) of the n tokens in the blocks, None where all count. The model runs up to its first attention."""
    fits = batch.mask is not None and batch.mask.shape[-1] == n
    without_weights = any(weight.is_meta for weight in model.parameters()) and not is_offloaded(model)
    if batch.said == "mask=" or without_weights:
        return batch.mask if fits else None
    seen = run_model(model, lambda: glance(model, blocks, 1, batch.args, batch.kwargs))
    if seen.shape is None or seen.shape[1] != n:  # time first, or no tokens where blocks begin
        return batch.mask if fits else None
    return seen.padding(batch.mask).mask
