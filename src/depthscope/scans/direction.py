"""Which way tokens look in a scan: read off attention where it leaves no doubt, else tried (traces/causality.py)."""

from typing import Any

from torch import Tensor, nn

from depthscope.scans.reading import Reading
from depthscope.traces.causality import causality, known_causality
from depthscope.traces.entry import run_model
from depthscope.traces.inputs import Batch
from depthscope.traces.signature import signature_of

SHORT = 16  # tokens that tell whether something beside causal attention mixes them


def causal_in(model: nn.Module, batch: Batch, reading: Reading) -> bool | None:
    """Whether the tokens of a batch see no later ones; None in part, and where no attention was looked at."""
    said = {numbers.causal for numbers in reading.attentions() if numbers is not None}
    if said <= {False}:
        return False if said else None
    axis = reading.blocks[0].source.axis or 0
    paths = list(dict.fromkeys(path for block in reading.blocks for path in block.paths))
    if said == {True} and _short_is_causal(model, paths, axis, batch, reading):
        return True
    key = signature_of(model, batch.args, batch.kwargs)

    def tried() -> bool | None:
        return known_causality(model, key, paths, axis, batch.args, batch.kwargs, batch.mask).causal

    return run_model(model, tried)


def _short_is_causal(model: nn.Module, paths: list[str], axis: int, batch: Batch, reading: Reading) -> bool:
    """Whether the first tokens of one sequence are tried and found causal. All patterns of attention were triangular.

    What else may mix tokens, a mean or a convolution, does so in a short sequence too.
    """
    first = reading.blocks[0].source
    n, samples = first.shape[axis], first.shape[1 - axis] if len(first.shape) == 3 else 1
    if n <= SHORT or n == samples or batch.mask is not None:
        return False

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for dim, size in enumerate(value.shape):
            value = value.narrow(dim, 0, SHORT if size == n else 1 if size == samples and dim < 2 else size)
        return value

    args, kwargs = tuple(map(cut, batch.args)), {name: cut(value) for name, value in batch.kwargs.items()}
    try:
        return bool(causality(model, paths, axis, args, kwargs, None).causal)
    except Exception:  # a model that minds short inputs: all tokens are tried then
        return False
