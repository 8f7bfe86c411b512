"""Remedies that change the weight matrices of a block while the model runs."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from depthscope.remedies.remedy import Remedy


class WeightRemedy(Remedy):
    """W -> what the model computes with in its place. Acts at the site "weights", on every matrix of every block.

    A remedy writes `weight` (W -> W'), differentiable, and `start_`, which sees the matrix it will work on.
    """

    at = "weights"

    @property
    def causal_safe(self) -> bool:
        return True

    def start_(self, W: Tensor) -> None:
        """Called once, with the matrix of this copy."""

    def weight(self, W: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define weight(W)")


class Matrix:
    """One weight matrix: all modules that hold it, and its path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.holders: list[tuple[nn.Module, str]] = []
        self._own: nn.Parameter | None = None  # while the model computes with another

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter as the modules hold it now; it may have been replaced since the last pass."""
        module, name = self.holders[0]
        return self._own if self._own is not None else module._parameters[name]  # type: ignore[return-value]

    def put(self, W: Tensor) -> None:
        """Let the model compute with W."""
        self._own = self.parameter
        for module, name in self.holders:
            module._parameters[name] = W  # type: ignore[assignment]  # as torch.func.functional_call does

    def put_back(self) -> None:
        if self._own is not None:
            for module, name in self.holders:
                module._parameters[name] = self._own
            self._own = None


def matrices(model: nn.Module, blocks: list[str]) -> list[Matrix]:
    """The matrices in the blocks, each once, tables of embeddings left out."""
    found: dict[int, Matrix] = {}
    for path, module, name, parameter in _parameters(model, blocks):
        if parameter.ndim == 2 and not isinstance(module, nn.Embedding):
            matrix = found.setdefault(id(parameter), Matrix(f"{path}.{name}"))
            matrix.holders.append((module, name))
    return list(found.values())


def _parameters(model: nn.Module, blocks: list[str]) -> Iterator[tuple[str, nn.Module, str, Any]]:
    for block in blocks:
        for path, module in model.get_submodule(block).named_modules(prefix=block):
            yield from ((path, module, name, p) for name, p in module._parameters.items() if p is not None)
