"""Blocks as they will run again: the modules by which tokens enter and leave, or the sum after which a block ends."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import nn

from depthscope.traces.ends import Ends, forms_of, step_of
from depthscope.traces.flow import Flow
from depthscope.traces.nodes import ModuleCall
from depthscope.traces.places import remember, remember_parts

JoinKey = tuple[str, str, int]  # the module in which a sum is made, the one that gave its branch, and which of these


@dataclass(frozen=True)
class Ending:
    """Where a block ends that is no module: after a sum, and the functions that act on it (a norm)."""

    join: JoinKey
    steps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Span:
    """One block as it runs: the module that its tokens enter by, and the one that they leave by; mostly the same.

    block: its path, or the first of them. entry is "" where no module is given its tokens. exit is None where the block
    is no module: then it ends as `ending` says. attentions: how many it has, cross-attention included.
    """

    block: str
    entry: str
    exit: str | None
    attentions: int = 0
    ending: Ending | None = None
    last: str = ""  # the module that runs last in a block that is none, and
    sums: int = 0  # how many sums with the stream follow it
    joins: int = 0  # how many there are in such a block


class JoinKeys:
    """The keys of joins in the order they are made; the same in every pass of a model, whatever it is given."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._counts: Counter[tuple[str, str]] = Counter()

    def of(self, node: int, branch: tuple[int, ...]) -> JoinKey:
        """The key of the latest join; to be asked once for each."""
        flow = self.flow
        where = [flow.nodes[one].call for one in (node, max(branch))]
        pair = tuple(flow.calls[call].path if call >= 0 else "" for call in where)
        self._counts[pair] += 1  # type: ignore[index]
        return (*pair, self._counts[pair])  # type: ignore[return-value,index]


def spans_of(flow: Flow, model: nn.Module, blocks: list[Ends]) -> list[Span]:
    """The blocks of a stream; which tensor of a block that is a module is the stream, is remembered."""
    keys: dict[int, JoinKey] = {}
    counting = JoinKeys(flow)
    joins = sorted((join for tree in flow.trees for join in tree.joins.values()), key=lambda join: join.node)
    for join in joins:
        keys[join.node] = counting.of(join.node, join.branch)
    found = []
    for i, block in enumerate(blocks):
        name = block.paths[0] if block.paths else f"block_{i + 1}"
        if block.call is not None:
            call = block.call
            remember(model.get_submodule(call.path), _way(call.given, block.source), _way(call.gave, block.result))
            found.append(Span(name, call.path, call.path, len(block.attentions)))
            continue
        steps = tuple(step_of(flow, node) for node in reversed(forms_of(flow, block.result)[:-1]))
        ending = Ending(keys[flow.nodes[block.result].state], steps)
        after = _last(flow, block)
        sums = sum(after[0] < node <= block.result for node in keys)
        entry = _entry(flow, model, block)
        if block.paths and entry and after[1]:
            _remember_parts(model, name, (entry, after[1]))
        found.append(Span(name, entry, None, len(block.attentions), ending, after[1], sums, block.joins))
    return found


def _last(flow: Flow, block: Ends) -> tuple[int, str]:
    """The last module that runs in a block, and the node it ended with."""
    calls = [(c.last, c.path) for c in flow.calls if c.first > block.source and c.last <= block.result]
    norms = [
        (number, node.name.removeprefix("norm "))
        for number, node in enumerate(flow.nodes[: block.result + 1])
        if number > block.source and node.name.startswith("norm ")
    ]
    return max([*calls, *norms], key=lambda one: one[0], default=(block.source, ""))


def _entry(flow: Flow, model: nn.Module, block: Ends) -> str:
    """The first module that is given the tokens of a block, and ends in it; "" where there is none."""
    calls = [c for c in flow.calls if c.first > block.source and c.last <= block.result]
    calls = [c for c in calls if block.source in c.given.values()]
    readers = [(c.entered, c.path, c) for c in calls]
    norms = [
        (node.order, node.name.removeprefix("norm "), None)
        for node in flow.nodes[block.source + 1 : block.result + 1]
        if node.name.startswith("norm ") and block.source in node.parents
    ]
    first: tuple[int, str, ModuleCall | None] | None = min([*readers, *norms], key=lambda one: one[0], default=None)
    if first is None:
        return ""
    if first[2] is not None:
        remember(model.get_submodule(first[1]), _way(first[2].given, block.source), None)
    return first[1]


def _way(tensors: dict[Any, int | None], node: int) -> tuple:
    return next(way for way, one in tensors.items() if one == node)


def _remember_parts(model: nn.Module, block: str, parts: tuple[str, str]) -> None:
    """Only where they are parts of the block: another model may hold it under another name."""
    if all(part.startswith(block + ".") for part in parts):
        inside = dict.fromkeys(part.removeprefix(block + ".") for part in parts)
        remember_parts(model.get_submodule(block), tuple(inside))
