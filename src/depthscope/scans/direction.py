"""Which way tokens look in a scan: read off attention where it leaves no doubt, else tried (traces/causality.py)."""

from torch import nn

from depthscope.scans.reading import Reading
from depthscope.traces.causality import known_causality
from depthscope.traces.entry import run_model
from depthscope.traces.inputs import Batch
from depthscope.traces.signature import signature_of


def causal_in(model: nn.Module, batch: Batch, reading: Reading) -> bool | None:
    """Whether the tokens of a batch see no later ones; None in part, and where no attention was looked at."""
    said = {numbers.causal for numbers in reading.attentions() if numbers is not None}
    if not said or None not in said:
        return said.pop() if len(said) == 1 else None
    axis = reading.blocks[0].source.axis or 0
    paths = [path for block in reading.blocks for path in block.paths]
    key = signature_of(model, batch.args, batch.kwargs)

    def tried() -> bool | None:
        return known_causality(model, key, dict.fromkeys(paths), axis, batch.args, batch.kwargs, batch.mask).causal

    return run_model(model, tried)
