"""Which way tokens look in a scan: read off attention where it leaves no doubt, else tried (traces/causality.py)."""

from torch import nn

from depthscope.scans.reading import Reading
from depthscope.traces.beginning import tried_at_the_beginning
from depthscope.traces.causality import known_causality
from depthscope.traces.entry import run_model
from depthscope.traces.inputs import Batch
from depthscope.traces.signature import signature_of


def causal_in(model: nn.Module, batch: Batch, reading: Reading) -> bool | None:
    """Whether the tokens of a batch see no later ones; None in part, and where no attention was looked at."""
    said = {numbers.causal for numbers in reading.attentions() if numbers is not None}
    if said == {False}:
        return False
    if not said and not reading.unseen:
        return None
    axis = reading.blocks[0].source.axis or 0
    paths = list(dict.fromkeys(path for block in reading.blocks for path in block.paths))
    key = signature_of(model, batch.args, batch.kwargs)
    call = (key, paths, axis, batch.args, batch.kwargs, batch.mask)
    if said == {True}:  # what else may mix tokens, a mean or a convolution, does so among the first ones too
        begun = tried_at_the_beginning(model, *call)
        if begun is not None and begun.stream.kind == "causal":
            return True
    return run_model(model, lambda: known_causality(model, *call).causal)
