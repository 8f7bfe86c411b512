"""One pass of copies of a sequence through a model, in which values may be moved and are read, block by block."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from depthscope.traces.operations import Operation
from depthscope.traces.places import called_parts
from depthscope.traces.tokens import first_tokens
from depthscope.traces.watcher import Watched

Places = tuple[str, ...]  # the paths of one block
Move = Callable[[int, int, Tensor, Tensor], None]  # block, source, what it gives (c, n, d) to write into, what it read
Read = Callable[[int, int, Tensor, bool], None]  # block, target, what it reads (c, n, d), whether it is a sum


@dataclass
class ProbePass:
    """A listener: copies of one sequence run through the blocks, and begin every block alike."""

    model: nn.Module
    blocks: list[Places]  # in the order in which they run
    wanted: set[int]
    move: Move
    read: Read
    seen: int = -1  # the number of the block that runs, or ran last
    inside: bool = False
    sources: int = 0
    targets: int = 0
    shape: tuple[int, ...] = ()
    after: dict[tuple[int, int], int] = field(default_factory=dict)  # block, target -> the source that comes next

    everything = False

    def modules(self) -> Iterator[Watched]:
        firsts = {called_parts(self.model, places[0])[0] for places in self.blocks}
        lasts = {called_parts(self.model, places[-1])[-1] for places in self.blocks}
        for path in sorted(firsts | lasts):
            before = self._begins if path in firsts else None
            yield Watched(self.model.get_submodule(path), before, self._ends if path in lasts else None, first=True)

    def closed(self, failed: bool) -> None: ...

    def _begins(self, _: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        self.seen += 1
        self.inside, self.sources, self.targets = self.seen in self.wanted, 0, 0
        tokens = first_tokens(args, kwargs)
        if tokens is None:
            self.inside = False
            return None
        self.shape = tuple(tokens.shape[:2])
        alike = tokens[:1].expand_as(tokens).clone()

        def swap(value: Any) -> Any:
            return alike if value is tokens else value

        return tuple(map(swap, args)), {name: swap(value) for name, value in kwargs.items()}

    def _ends(self, *_: Any) -> None:
        self.inside = False

    def operation(self, op: Operation) -> Any:
        if not self.inside or op.role not in ("matrix", "weights", "norm", "sum"):
            return op.run()
        if op.role == "sum":
            pair = [self._tokens(operand) for operand in op.args[:2]]
            if all(one is not None and one.shape == pair[0].shape for one in pair):  # type: ignore[union-attr]
                for operand in op.args[:2]:
                    self._reads(operand, joins=True)
            return op.run()
        given = op.named().get("input")
        if op.role != "norm":
            self._reads(given, joins=False)
        result = op.run()
        if self._tokens(result) is None:
            return result
        before, moved = self._tokens(given), result.clone()
        if before is None or op.role == "norm":
            before = self._tokens(result)
        self.move(self.seen, self.sources, self._tokens(moved), before)  # type: ignore[arg-type]
        self.sources += 1
        return moved

    def _reads(self, value: Any, *, joins: bool) -> None:
        tokens = self._tokens(value)
        if tokens is not None:
            self.read(self.seen, self.targets, tokens, joins)
            self.after[self.seen, self.targets] = self.sources  # a matrix that reads here gives this source
            self.targets += 1

    def _tokens(self, value: Any) -> Tensor | None:
        """A tensor as (copies, n, d) where it is one, or (n, copies, d)."""
        if not isinstance(value, Tensor) or value.ndim != 3:
            return None
        if tuple(value.shape[:2]) == self.shape:
            return value
        return value.transpose(0, 1) if tuple(value.shape[1::-1]) == self.shape else None
