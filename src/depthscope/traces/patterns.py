"""Weights on their way to the values: from the function that makes them to the product that uses them.

Softmax over any axis, exp that is divided by its sum before or after the product, a row of a softmax that is cut (a
sink), sigmoid and relu: what a tensor is, is told by how it is summed with values (contraction.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.checks import measurable
from depthscope.traces.attention import AttentionSeen, attention_in
from depthscope.traces.contraction import PRODUCTS, contraction_of
from depthscope.traces.identity import Known
from depthscope.traces.operations import Operation, operands_of
from depthscope.traces.other_calls import flex_seen, packed_seen
from depthscope.traces.placing import is_plain, is_square

SHOWN = ("attention", "flex", "packed", "softmax", "exp", "gate")  # roles of functions that show or make weights
DIVIDERS = {"div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide", "mul", "__mul__", "mul_"}
ROUNDED = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # what a row of probabilities may be off one by; else 1e-3


@dataclass(frozen=True)
class Weights:
    """What a tensor of weights is without dropout, who made it, and whether it was divided by a tensor since."""

    clean: Tensor
    maker: str
    divided: bool = False


class Patterns:
    """The weights of one forward pass that have not met their values yet."""

    def __init__(self) -> None:
        self.active = False
        self.reads_memory = False  # a matrix has read tokens from before the block, for keys
        self._known: Known[Weights] = Known()
        self._products: Known[Tensor] = Known()  # exp(scores) V, by its P (..., n, m) before it is divided
        self._features: Known[bool] = Known()  # what matrices gave: a softmax of them is over channels
        self._used: set[int] = set()  # memory of weights that have met values: others may follow (relative positions)

    def end(self) -> None:
        """Nothing is on its way."""
        self.active = self.reads_memory = False
        self._known.clear()
        self._products.clear()
        self._used.clear()

    def close(self) -> None:
        self.end()
        self._features.clear()

    def asked(self, op: Operation) -> list[tuple[Tensor, Any]]:
        """The arguments that are weights or products of weights, before the function may write into them."""
        if not self.active:
            return []
        found = []
        for tensor in _tensors(op):
            fact = self._find(tensor) or self._products.find(tensor)
            if fact is not None:
                found.append((tensor, fact))
        return found

    def _find(self, tensor: Tensor) -> Weights | None:
        """What is known of a tensor, or of the one that it is a transposition of (mT tells nobody)."""
        weights = self._known.find(tensor)
        base = tensor._base
        if weights is not None or base is None or tensor.numel() != base.numel():
            return weights
        under = self._known.find(base)
        if under is None:
            return None
        clean = tensor
        if under.clean is not base:
            if under.clean.stride() != base.stride():
                return None
            clean = under.clean.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return Weights(clean, under.maker, under.divided)

    def is_over_channels(self, scores: Any) -> bool:
        """Whether a softmax is taken of what a matrix gave, queries or keys: linear attention, and no pattern."""
        return isinstance(scores, Tensor) and self._features.find(_memory(scores)) is not None

    def seen(self, op: Operation, result: Any, tokens: Tensor | None) -> AttentionSeen | None:
        """Attention that this call alone shows; weights that it does not tell enough of are followed to their values.

        tokens: those that attention reads.
        """
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if op.role in ("flex", "packed"):
                return flex_seen(op.args) if op.role == "flex" else packed_seen(op.args, op.kwargs)
            found = attention_in(op, result)
            if op.role == "attention" or tokens is None:
                return found
            if self.is_over_channels(op.args[0] if op.args else op.kwargs.get("input")):
                return None
            if found is not None and is_plain(found, tokens):
                return found
            if op.role == "softmax" or is_square(result, tokens):
                self.made(op, result)
        return None

    def matrix_gave(self, result: Any) -> None:
        if isinstance(result, Tensor):
            self._features.add(_memory(result), True)

    def made(self, op: Operation, result: Any) -> None:
        """A function that may make weights gave this."""
        if isinstance(result, Tensor) and result.ndim >= 2 and result.is_floating_point():
            self.active = True
            self._known.add(result, Weights(result, op.role or ""))

    def follow(self, op: Operation, result: Any, known: list[tuple[Tensor, Any]]) -> AttentionSeen | None:
        """A function ran that was given weights: they are laid out anew, scaled, or have met their values."""
        for tensor, fact in known:
            if isinstance(fact, Tensor):
                seen = self._divided(op, tensor, fact, result)
                if seen is not None:
                    return seen
            elif op.name in PRODUCTS:
                return self._met_values(op, tensor, fact, result)
            elif isinstance(result, Tensor):
                self._goes_on(op, tensor, fact, result)
        return None

    def _goes_on(self, op: Operation, tensor: Tensor, weights: Weights, result: Tensor) -> None:
        cut = op.name in ("__getitem__", "narrow") and result.ndim == tensor.ndim
        if not result.is_floating_point() or not (cut or result.numel() == tensor.numel()):
            return
        divided = weights.divided or op.name == "normalize" or (op.name in DIVIDERS and _by_tensor(op, tensor))
        if op.role == "dropout":
            clean = weights.clean
        elif weights.clean is tensor:
            clean = result
        else:
            args = [weights.clean if a is tensor else a for a in op.args]
            clean = op.func(*args, **op.kwargs)
        self._known.add(result, Weights(clean, weights.maker, divided))

    def _met_values(self, op: Operation, tensor: Tensor, weights: Weights, result: Any) -> AttentionSeen | None:
        operands = [w for w in operands_of(op.args) if isinstance(w, Tensor)]
        if weights.maker == "softmax" and all(self._known.find(w) for w in operands):  # of queries, and of keys
            return None
        found, place = contraction_of(op, tensor), weights.clean.untyped_storage().data_ptr()
        if found is None or place in self._used:
            return None
        self._used.add(place)
        P = found.arranged(weights.clean)
        sums = measurable(P.detach()).sum(-1, dtype=torch.float64)
        off = ROUNDED.get(P.dtype, 1e-3)
        if bool(((sums - 1).abs() < off).all()):
            return _seen(P)
        if weights.maker == "exp" and not weights.divided:  # it may be divided by its sum afterwards
            self._products.add(result, P.detach())
            return None
        whole = weights.maker == "softmax" or weights.divided
        if whole and weights.maker != "gate" and bool((sums < 1 + off).all()) and bool((P >= 0).all()):
            return _seen(P, sink=True)
        return _seen(P, kind="mixing")

    def _divided(self, op: Operation, tensor: Tensor, P: Tensor, result: Any) -> AttentionSeen | None:
        """exp(scores) V is divided by the sums of the rows, or by one more than these (a sink)."""
        if not isinstance(result, Tensor):
            return None
        if op.name not in DIVIDERS:
            if result.numel() == tensor.numel():
                self._products.add(result, P)
            return None
        by = next((a for a in op.args[1:2] if isinstance(a, Tensor) and a is not tensor), None)
        sums = measurable(P).sum(-1, dtype=torch.float64)
        if by is None or by.numel() != sums.numel():
            return None
        divisors = measurable(by.detach()).double().flatten().sort().values
        divisors = divisors if "div" in op.name else (1 / divisors).sort().values
        off = ROUNDED.get(P.dtype, 1e-3)
        for more in (0.0, 1.0):
            if torch.allclose(divisors, (sums + more).flatten().sort().values, rtol=off):
                return _seen(P / (sums + more).unsqueeze(-1).to(P.dtype), sink=more > 0)
        return None


def _seen(P: Tensor, *, sink: bool = False, kind: str = "self") -> AttentionSeen:
    return AttentionSeen(P.shape[-2], P.shape[-1], P=P.detach(), sink=sink, kind=kind)


def _memory(tensor: Tensor) -> Tensor:
    """The tensor that a view is of."""
    return tensor if tensor._base is None else tensor._base


def _by_tensor(op: Operation, tensor: Tensor) -> bool:
    return any(isinstance(a, Tensor) and a is not tensor and a.numel() > 1 for a in op.args[:2])


def _tensors(op: Operation) -> Iterator[Tensor]:
    for value in operands_of(op.args) if op.name == "einsum" else op.args:
        if isinstance(value, Tensor):
            yield value
    for value in op.kwargs.values():
        if isinstance(value, Tensor):
            yield value
