"""The places of a remedy in a model: blocks, all their matrices, or their W_V and W_O."""

from torch import nn

from depthscope.errors import UsageError
from depthscope.interventions.copies import Copies
from depthscope.remedies.value_remedy import width_of
from depthscope.remedies.weight_remedy import matrices
from depthscope.traces.installed import fixes_in


def placed(model: nn.Module, remedy: nn.Module, at: str, blocks: list[str]) -> Copies:
    """The remedy at all its places, each copy told what it will work on."""
    if at not in ("weights", "values"):
        return Copies(model, remedy, at, blocks, apart=False)
    other = next((fix for fix in fixes_in(model) if fix.at in ("weights", "values")), None)
    if other is not None:
        raise UsageError(
            f"one remedy at a time can choose the weights of a model; it has {other}, and got {remedy}. "
            "Undo the other fix first."
        )
    if at == "weights":
        held = matrices(model, blocks)
        copies = Copies(model, remedy, at, [matrix.path for matrix in held] or blocks, apart=bool(held))
        for matrix in held:
            copies[matrix.path].start_(matrix.parameter)
        return copies
    copies = Copies(model, remedy, at, blocks, apart=True)
    for turn, block in enumerate(blocks):
        copies[block].place_(width_of(model, block), turn, next(model.get_submodule(block).parameters()))
    return copies
