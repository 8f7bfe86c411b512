"""The ends of blocks that are no modules: a sum in the code around them, and perhaps a norm of it.

The flow of the pass is followed as it was in the survey. When the sum that ends a block comes by, the change acts.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from depthscope.traces.ends import step_of
from depthscope.traces.flow import Flow
from depthscope.traces.followed import followed_modules
from depthscope.traces.nests import tensors_in
from depthscope.traces.nodes import REMEDY
from depthscope.traces.operations import REBINDING, Operation, is_norm
from depthscope.traces.spans import Ending, JoinKey, JoinKeys, Span
from depthscope.traces.watcher import OuterNorms, Watched

Act = Callable[[str, Tensor], Tensor]  # block, tokens -> what goes on in their place


class OpenEnds:
    """A listener that lets a change act where blocks end."""

    everything = True

    def __init__(self, model: nn.Module, spans: Iterable[Span], act: Act) -> None:
        self.model, self.act = model, act
        self.endings: dict[JoinKey, tuple[str, Ending]] = {
            span.ending.join: (span.block, span.ending) for span in spans if span.ending is not None
        }
        self._clock = 0
        self.flow = Flow(self._tick)
        self.keys = JoinKeys(self.flow)
        self._waiting: dict[int, tuple[str, tuple[tuple[str, str], ...]]] = {}  # node -> block, steps before its end
        self._norms = OuterNorms(self._norm_ends)
        self._norm_paths: dict[nn.Module, str] = {}

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def modules(self) -> Iterable[Watched]:
        for path, module in followed_modules(self.model):
            if not path:
                continue  # it runs already
            if is_norm(module):
                self._norm_paths[module] = path
                yield self._norms.watched(module)
            else:
                yield Watched(module, self._enters(path), self._leaves(path))

    def closed(self, failed: bool) -> None:
        self.flow.forget()
        self._norms.open = 0

    def _enters(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self.flow.enters(path, args, kwargs)

        return hook

    def _leaves(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            self.flow.leaves(path, output)

        return hook

    def _norm_ends(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        made = next(tensors_in((output,)), None)
        if made is None:
            return None
        self.flow.form(next(tensors_in((*args, *kwargs.values())), None), made, f"norm {self._norm_paths[module]}")
        new = self._met(made)
        return new if new is not made and isinstance(output, Tensor) else None

    def operation(self, op: Operation) -> Any:
        if self._norms.open:
            return op.run()
        given = self.flow.asked(op)
        result = op.run()
        self.flow.ran(op, given, result)
        if not isinstance(result, Tensor):
            return result
        new = self._met(result)
        return result.copy_(new) if new is not result and op.in_place and op.name not in REBINDING else new

    def _met(self, tensor: Tensor) -> Tensor:
        """The tensor, or what the change makes of it where a block ends with it."""
        node = self.flow.find(tensor)
        if node is None:
            return tensor
        found = self._ending_at(node)
        if found is None:
            return tensor
        block, steps = found
        if steps:
            self._waiting[node] = block, steps
            return tensor
        new = self.act(block, tensor)
        self.flow.form(tensor, new, REMEDY)
        return new

    def _ending_at(self, node: int) -> tuple[str, tuple[tuple[str, str], ...]] | None:
        """The block that ends with a node, and the steps that are still to come; None for any other node."""
        join = self.flow.latest
        if join is not None and join.node == node:
            found = self.endings.get(self.keys.of(node, join.branch))
            return None if found is None else (found[0], found[1].steps)
        skip = self.flow.nodes[node].skip
        waiting = self._waiting.get(skip) if skip is not None else None
        if waiting is None or step_of(self.flow, node) != waiting[1][0]:
            return None
        return waiting[0], waiting[1][1:]
