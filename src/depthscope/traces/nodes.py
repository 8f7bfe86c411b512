"""What a pass is made of: tensors as nodes, sums with the stream as joins, trees of joins, calls of modules."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

REMEDY = "remedy"  # the name of a form that a remedy made


@dataclass(eq=False, slots=True)
class Node:
    """A tensor of the pass. state: the node that it is a form of, itself where it is none. call: who was running."""

    parents: tuple[int, ...]
    skip: int | None  # the parent that it is a form of
    state: int
    name: str  # of the function
    call: int
    order: int  # on the clock of the log
    shape: tuple[int, ...]
    from_input: bool
    heavy: bool = False  # made by attention, or by an activation
    tree: int = -1  # of the joins that it comes from


@dataclass(eq=False, slots=True)
class JoinNode:
    """A sum with the stream. skip, branch: its operands. before: the state that skip is a form of, or comes from."""

    node: int
    skip: int
    branch: tuple[int, ...]
    before: int
    projected: bool = False  # skip is a matrix or a pooling of the stream, not the stream itself


@dataclass(eq=False)
class Tree:
    """Joins that start from one root, by the node of their sum."""

    root: int
    joins: dict[int, JoinNode] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)  # joins from the root to each

    def holds(self, state: int) -> bool:
        return state == self.root or state in self.joins

    def add(self, join: JoinNode) -> None:
        self.joins[join.node] = join
        self.lengths[join.node] = self.lengths.get(join.before, 0) + 1


@dataclass(eq=False)
class ModuleCall:
    """One call of a module: nodes from first to last ran inside it.

    given, gave: the tensors in and out by the way to them, as nodes; None for unknown ones.
    """

    path: str
    above: int  # the call around it, -1 for none
    first: int
    entered: int  # on the clock of the log
    given: dict[Any, int | None] = field(default_factory=dict)
    gave: dict[Any, int | None] = field(default_factory=dict)
    last: int = -1
    left: int = -1


class Sizes(NamedTuple):
    """Of attention: the axes before the queries, and how many queries and keys there are."""

    front: tuple[int, ...]
    queries: int
    keys: int


class Given(NamedTuple):
    """The nodes of a function's arguments: of each in its place, None where it has none; and all of them."""

    places: list[int | None]
    nodes: tuple[int, ...]
