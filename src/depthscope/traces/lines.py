"""The residual streams of a pass: for each tree of joins the way to its last one, with what every join brings.

A line is one such way. Lines of which one starts from nothing but another are stages of one stream: patches that are
merged, a sequence that is pooled. A line inside the branch of another is a part of that branch.
"""

from dataclasses import dataclass

from depthscope.traces.flow import Flow
from depthscope.traces.nodes import JoinNode, Tree

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "baddbmm", "einsum", "mv", "linear"}


@dataclass(eq=False)
class Joined:
    """A join on a line. inside: the nodes of its branch. reads: the forms of the stream that the branch starts from."""

    join: JoinNode
    inside: set[int]
    reads: list[int]
    attentions: list[int]  # nodes inside that attend
    mixes: bool  # whether the branch mixes tokens: it attends or, in a line that never does, multiplies what it made

    @property
    def node(self) -> int:
        return self.join.node


@dataclass(eq=False)
class Line:
    """The joins of a stream in their order; states: their sums and the root."""

    joins: list[Joined]

    @property
    def states(self) -> set[int]:
        return {self.joins[0].join.before, *(joined.node for joined in self.joins)}


def lines_of(flow: Flow) -> list[Line]:
    """The lines of a pass that attend somewhere, in the order of their first joins; parts of branches are left out.

    A line that attends several times is a stream of its own, even where it ends in a branch of another (an encoder that
    a decoder looks at, a second tower), and that branch begins where the line ends.
    """
    ways = [way for tree in flow.trees for way in _ways(flow, tree)]
    lines = [_line(flow, way, set()) for way in ways]
    deep = [line for line in lines if sum(joined.mixes for joined in line.joins) > 1]
    streams = set().union(*(line.states for line in deep))
    again = zip(ways, lines, strict=True)
    lines = [line if streams <= line.states else _line(flow, way, streams) for way, line in again]
    chosen = [line for line in lines if any(joined.mixes for joined in line.joins)] or lines
    inner = {node for line in chosen for joined in line.joins for node in joined.inside}
    outer = [line for line in chosen if not all(joined.node in inner for joined in line.joins)]
    return sorted(outer, key=lambda line: line.joins[0].node)


def _ways(flow: Flow, tree: Tree) -> list[list[JoinNode]]:
    """The joins of a tree as ways: the longest from the root, then what is left, each from where it leaves another."""
    left = dict(tree.joins)
    found = []
    while left:
        length: dict[int, int] = {}
        for node, join in left.items():  # in the order of the pass
            length[node] = length.get(join.before, 0) + 1
        last = max(left, key=lambda node: (length[node], node))
        way: list[JoinNode] = []
        while last in left:
            way.append(left[last])
            last = way[-1].before
        way = _around_bottleneck(flow, way[::-1], left)
        for join in way:
            del left[join.node]
        found.append(way)
    return found


def _around_bottleneck(flow: Flow, way: list[JoinNode], left: dict[int, JoinNode]) -> list[JoinNode]:
    """A way that ends in the narrow stream of a bottleneck goes round it: x + up(inner(down(x))), as in MobileBERT.

    The narrow stream may have more joins than the sum around it, which only the last block could show: in the others
    the way goes on from that sum.
    """
    for i, join in enumerate(way):
        if join.projected:
            rounds = (j for j in left.values() if j.before == join.before and not j.projected and j.node > way[-1].node)
            outer = next((j for j in rounds if any(way[-1].node in flow.above(n, join.node) for n in j.branch)), None)
            if outer is not None:
                return [*way[:i], outer]
    return way


def _line(flow: Flow, way: list[JoinNode], streams: set[int]) -> Line:
    """streams: states of all lines that are streams of their own."""
    states = {way[0].before, *(join.node for join in way)}
    joins = [_region(flow, join, states, states | streams) for join in way]
    taken: set[int] = set()
    for joined in joins:  # what several branches read, as the values of the first block, belongs to the first of them
        joined.inside -= taken
        joined.attentions = sorted(joined.inside & flow.attentions.keys())
        taken |= joined.inside
    attends = any(joined.attentions for joined in joins)
    for joined in joins:
        joined.mixes = bool(joined.attentions) if attends else any(_mixes(flow, node) for node in joined.inside)
    return Line(joins)


def _mixes(flow: Flow, node: int) -> bool:
    """Whether a function may mix tokens: a product of two tensors that the pass has made, or a Fourier transform."""
    name = flow.nodes[node].name
    return name.startswith("fft_") or (name in PRODUCTS and len(set(flow.nodes[node].parents)) > 1)


def _region(flow: Flow, join: JoinNode, states: set[int], stops: set[int]) -> Joined:
    """The branch of a join, back to the stream: nodes older than the stream's root came from elsewhere."""
    least = min(states)
    inside: set[int] = set()
    reads: list[int] = []
    starts = [*join.branch, join.skip] if join.projected else list(join.branch)
    waiting, seen = list(starts), set(starts)
    while waiting:
        number = waiting.pop()
        node = flow.nodes[number]
        if node.state in states:
            reads.append(number)
        elif node.state not in stops:
            inside.add(number)
            new = [parent for parent in node.parents if parent >= least and parent not in seen]
            seen.update(new)
            waiting += new
    since = min((flow.nodes[n].state for n in reads), default=join.before)
    inside = {n for n in inside if n > since}  # what is older is shared, as the positions that T5's first block makes
    return Joined(join, inside, reads, [], False)


def towers(flow: Flow, lines: list[Line]) -> list[list[Line]]:
    """Lines that follow each other, put together: each starts from nothing but those before, and from the last one."""
    found: list[list[Line]] = []
    for line in lines:
        before = next((tower for tower in reversed(found) if _continues(flow, line, tower)), None)
        if before is None:
            found.append([line])
        else:
            before.append(line)
    return found


def _continues(flow: Flow, line: Line, tower: list[Line]) -> bool:
    """Whether all that a line starts from, as far as it depends on the inputs, comes from the end of a tower.

    Earlier states of the tower may have a part in it, as where a network in the form of a U joins its two arms.
    """
    last = tower[-1].joins[-1].node
    earlier = set().union(*(one.states for one in tower))
    waiting, seen = [line.joins[0].join.before], set()
    reached = False
    while waiting:
        number = waiting.pop()
        node = flow.nodes[number]
        if number in seen or not node.from_input:
            continue
        seen.add(number)
        if node.state == last:
            reached = True
        elif node.state in earlier:
            continue
        elif not node.parents or number < last:
            return False
        else:
            waiting += node.parents
    return reached
