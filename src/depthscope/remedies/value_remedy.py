"""Remedies that choose W_V and W_O of a block together, and where a model keeps the two."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.weights import HeadWeights, read_weights
from depthscope.errors import DepthscopeError, HookError, UsageError
from depthscope.remedies.remedy import Remedy
from depthscope.remedies.weight_remedy import Matrix, matrices
from depthscope.traces.caches import is_cache
from depthscope.traces.inputs import named_arguments
from depthscope.traces.survey import hooks_away

ALIKE = 0.99  # cosine of a vector that was read with one of a matrix that holds it; half precision reads to 3 digits


class ValueRemedy(Remedy):
    """W_V, W_O -> those the model computes with in their place. Acts at the site "values", in every block.

    A remedy writes `place_` (the width d of its block and its turn among the blocks), `start_` (the model's own two,
    once) and `values`, differentiable. W_V (d, d) has the heads' columns side by side, W_O (d, d) their rows one below
    the other, so that the block's H = W_V W_O.
    """

    at = "values"

    @property
    def causal_safe(self) -> bool:
        return True

    @property
    def acts(self) -> bool:
        """Whether it does anything in its block."""
        return not self.is_off

    def place_(self, d: int, turn: int, like: Tensor) -> None:
        """Called once, before anything runs; parameters are made here, as `like` in dtype and device."""

    def start_(self, W_V: Tensor, W_O: Tensor, heads: int) -> None:
        """Called once, before the first pass, with the block's own matrices."""

    def values(self, W_V: Tensor, W_O: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(f"{type(self).__name__} must define values(W_V, W_O, heads)")


@dataclass(eq=False)
class Columns:
    """Where d vectors of width d are kept: along an axis of a matrix, at places `index` (d,), in the heads' order."""

    matrix: Matrix
    axis: int
    index: Tensor

    def read(self) -> Tensor:
        """The vectors, one a row."""
        W = self.matrix.parameter.index_select(self.axis, self.index.to(self.matrix.parameter.device))
        return W if self.axis == 0 else W.mT

    def put(self, vectors: Tensor) -> None:
        """Let the model compute with these; all else in the matrix stays. What is not used has a gradient of zero."""
        W = self.matrix.parameter
        new = (vectors if self.axis == 0 else vectors.mT).to(W.dtype)
        self.matrix.put(W.index_copy(self.axis, self.index.to(W.device), new))


@dataclass(eq=False)
class ValueWeights:
    """The slots of one block; output None where nothing follows the heads, W_O = I."""

    value: Columns
    output: Columns | None
    heads: int

    @property
    def slots(self) -> list[Columns]:
        return [self.value] if self.output is None else [self.value, self.output]

    def own(self) -> tuple[Tensor, Tensor]:
        """W_V and W_O as the model has them."""
        W_V = self.value.read().mT
        return W_V, torch.eye(len(W_V)).to(W_V) if self.output is None else self.output.read()

    def put(self, W_V: Tensor, W_O: Tensor) -> None:
        if self.output is None:
            self.value.put((W_V @ W_O).mT)
        else:
            self.value.put(W_V.mT)
            self.output.put(W_O)

    def put_back(self) -> None:
        for slot in self.slots:
            slot.matrix.put_back()


def exactly(model: nn.Module) -> AbstractContextManager[Any]:
    """Without autocast: matrices are found and taken apart in their own precision."""
    kind = next(model.parameters()).device.type
    # where it is off nothing is asked of it: torch refuses even that of a device that has none
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def width_of(model: nn.Module, block: str) -> int:
    """The width d of the tokens in a block: the size that most of its matrices have, as they read or write tokens."""
    sizes = [size for matrix in matrices(model, [block]) for size in set(matrix.parameter.shape)]
    if not sizes:
        raise UsageError(f"a block must hold matrices; {block} has none. Pass blocks= with those that do.")
    return max(sorted(set(sizes)), key=sizes.count)


def value_weights_in(
    model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any]
) -> dict[str, ValueWeights]:
    """Where the blocks keep W_V and W_O, found by what they do: the weights that probing reads are looked for."""
    named = named_arguments(model, args, kwargs)[0]
    # a key-value cache would be filled by one pass and read by the next
    named = {k: False if k == "use_cache" else v for k, v in named.items() if not is_cache(v)}
    inputs: Any = named if kwargs else args
    with hooks_away(model):
        try:
            read = read_weights(model, inputs, blocks=blocks)
            if len(read) != len(blocks):  # one that runs several times
                read = [read_weights(model, inputs, blocks=[block])[0] for block in blocks]
        except DepthscopeError as error:
            raise HookError(f"the weights of attention must be readable to be replaced. {error}") from error
    found = {block: _held(model, block, weights) for block, weights in zip(blocks, read, strict=True)}
    _check_apart(found)
    return found


def _check_apart(found: dict[str, ValueWeights]) -> None:
    """Refuse a matrix that would be replaced twice: the model would compute with the last alone."""
    owners: dict[int, str] = {}
    for block, held in found.items():
        for slot, name in zip(held.slots, ("W_V", "W_O"), strict=False):
            own = f"{name} of {block}"
            other = owners.setdefault(id(slot.matrix.parameter), own)
            if other != own:
                raise HookError(
                    f"every W_V and W_O must have a matrix of its own to be replaced; {slot.matrix.path} holds "
                    f"{other} and {own}. Pass blocks= with one of the blocks that share it, which the others then "
                    "follow, or choose another remedy."
                )


def _held(model: nn.Module, block: str, weights: HeadWeights) -> ValueWeights:
    d, kept = weights.W_V.shape[1], matrices(model, [block])
    columns = weights.W_V.transpose(1, 2).flatten(0, 1)  # (H d_v, d)
    rows = weights.W_O.flatten(0, 1)
    if len(columns) != d:
        raise HookError(
            f"heads x their width must be the width of the tokens for W_V to be square; {block} has "
            f"{weights.heads} x {weights.W_V.shape[2]} and {d}. Choose other blocks, or another remedy."
        )
    value = _found(columns, kept, f"W_V of {block}")
    if bool((rows - torch.eye(d)).abs().max() < 1e-6):
        if _slots(rows, kept)[0]:
            raise HookError(
                f"W_O of {block} must be told from having none; it is the identity, and so is a matrix of the "
                "block, which may be it. Start it otherwise."
            )
        return ValueWeights(value, None, weights.heads)
    return ValueWeights(value, _found(rows, kept, f"W_O of {block}"), weights.heads)


def _found(vectors: Tensor, kept: Iterable[Matrix], what: str) -> Columns:
    """The one matrix that holds all the vectors (R, d), and where."""
    slots, shared = _slots(vectors, kept)
    if len(slots) == 1:
        return slots[0]
    why = (
        f"it may be in {len(slots)} places (equal or symmetric matrices)"
        if slots
        else "heads share their values (grouped-query attention)"
        if shared
        else "no matrix of the block holds it as it acts: it is zero, shown by its P alone, or changed on the way"
    )
    raise HookError(f"{what} must be found in exactly one matrix to be replaced; {why}. Choose other blocks=.")


def _slots(vectors: Tensor, kept: Iterable[Matrix]) -> tuple[list[Columns], bool]:
    """Where all the vectors (R, d) are, each once, up to a factor, as a branch may have; whether any are one vector."""
    slots, shared = [], False
    wanted = nn.functional.normalize(vectors, dim=-1)
    for matrix in kept:
        W = matrix.parameter.detach().to(wanted)
        for axis, have in ((0, W), (1, W.mT)):
            if have.shape[1] != wanted.shape[1]:
                continue
            cosine, index = (wanted @ nn.functional.normalize(have, dim=-1).mT).max(-1)
            if bool((cosine > ALIKE).all()):
                alone = len(index.unique()) == len(index)
                shared |= not alone
                slots += [Columns(matrix, axis, index)] if alone else []
    return slots, shared
