"""What was computed from what in one forward pass, and which sums make a residual stream of it.

Every tensor gets a number, a node. Some functions give back the same tokens in another form: norms, views, dropout,
multiples, a bias. A sum of two tensors of one shape is a join where one operand is a form of a state and the other was
computed from that state (or from an earlier one): x + f(x). The joins of a stream form a tree, as a branch may have a
join of its own; the stream is the way from its root to the last join. Modules and their names play no part in this.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from torch import Tensor, nn

from depthscope.traces.identity import Known
from depthscope.traces.nests import PLAIN, tensors_in, ways_to_tensors
from depthscope.traces.nodes import Given, JoinNode, ModuleCall, Node, Sizes, Tree
from depthscope.traces.operations import ACTIVATIONS, FORMS, JOINS, SCALED, SHAPED_ALIKE, Operation
from depthscope.traces.parts import CUTS, beside_others, is_left_again, is_part, whole_of


class Flow:
    """Nodes, trees of joins and calls of modules, in the order of the pass."""

    def __init__(self, tick: Callable[[], int]) -> None:
        self.tick = tick
        self.nodes: list[Node] = []
        self.trees: list[Tree] = []
        self.calls: list[ModuleCall] = []
        self.attentions: dict[int, Sizes] = {}  # by node
        self.widths: dict[str, int] = {}  # channels of norms, by what they are called
        self._known: Known[int] = Known()
        self._stack: list[int] = [-1]
        self.latest: JoinNode | None = None  # the join that was made last

    def find(self, tensor: Any) -> int | None:
        """The node of a tensor."""
        return self._known.find(tensor)

    def forget(self) -> None:
        """The pass has ended: no tensor is kept."""
        self._known.clear()

    # modules

    def starts(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        """The model is given its inputs."""
        for tensor in tensors_in((*args, *kwargs.values())):
            self._known.add(tensor, len(self.nodes))
            node = Node((), None, len(self.nodes), "input", -1, self.tick(), tuple(tensor.shape), True)
            self.nodes.append(node)

    def enters(self, path: str, args: tuple, kwargs: Mapping[str, Any]) -> None:
        call = ModuleCall(path, self._stack[-1], len(self.nodes), self.tick())
        call.given = {way: self._known.find(tensor) for way, tensor in ways_to_tensors((args, kwargs)).items()}
        self._stack.append(len(self.calls))
        self.calls.append(call)

    def leaves(self, path: str, output: Any) -> None:
        call = self.calls[self._stack.pop()]
        while call.path != path:  # an inner module raised and its caller went on
            call = self.calls[self._stack.pop()]
        gave = ways_to_tensors((output,))
        for tensor in gave.values():
            if self._known.find(tensor) is None and not isinstance(tensor, nn.Parameter):  # nobody could watch
                self._made(tensor, tuple(node for node in call.given.values() if node is not None), None, "module")
        call.gave = {way: self._known.find(tensor) for way, tensor in gave.items()}
        call.last, call.left = len(self.nodes) - 1, self.tick()

    def above_call(self, call: int) -> list[int]:
        """A call and the calls around it, from the inside out."""
        found = []
        while call >= 0:
            found.append(call)
            call = self.calls[call].above
        return found

    # functions

    def asked(self, op: Operation) -> Given:
        """The nodes of a function's tensors, asked before it runs: it may write into them."""
        if op.name in SHAPED_ALIKE:
            return Given([], ())
        args = op.args[:1] if op.name in FORMS and op.name != "__setitem__" else op.args  # others give a shape alone
        places: list[int | None] = []
        plain = not op.kwargs
        for arg in args:
            met = isinstance(arg, Tensor)
            places.append(self._met(arg) if met else None)
            plain = plain and (met or type(arg) in PLAIN)
        if plain:  # as most calls are
            return Given(places, tuple([node for node in places if node is not None]))
        rest = [arg for arg in (*args, *op.kwargs.values()) if not isinstance(arg, Tensor) and type(arg) not in PLAIN]
        rest += [arg for arg in op.kwargs.values() if isinstance(arg, Tensor)]
        nodes = [*places, *map(self._met, tensors_in(rest))] if rest else places
        return Given(places, tuple(node for node in nodes if node is not None))

    def _met(self, tensor: Tensor) -> int | None:
        """The node of a tensor; a new one where it comes from where nobody could watch. Weights have none."""
        node = self._known.find(tensor)
        if node is not None or isinstance(tensor, nn.Parameter) or tensor.ndim < 2 or not tensor.is_floating_point():
            return node
        return self._made(tensor, (), None, "given")

    def ran(self, op: Operation, given: Given | None, result: Any) -> None:
        """A function ran. given: what asked() said before; None inside a norm, which is one step."""
        if given is None:
            return
        if result is None and op.name == "__setitem__":
            result = op.args[0]
        if isinstance(result, Tensor):
            made = self._made(result, given.nodes, self._form(op, given, result), op.name)
            if op.name in JOINS and len(given.nodes) > 1:
                self._joined(made, self._pairs(op, given, tuple(result.shape)))
            elif op.role == "cat":
                self._put_together(made, given.nodes)
            elif op.name in CUTS and is_left_again(self.nodes, self.trees, made):
                self._is_form(made, given.nodes[0])
        elif isinstance(result, tuple | list):
            for one in tensors_in(result):
                self._made(one, given.nodes, None, op.name)

    def form(self, source: Any, result: Any, name: str) -> None:
        """One tensor became another that holds the same tokens, by a norm or a remedy."""
        known = self._met(source) if isinstance(source, Tensor) else None
        if isinstance(result, Tensor):
            self._made(result, () if known is None else (known,), known, name)

    def attends(self, result: Any, sizes: Sizes) -> None:
        """Attention, or another mixing of tokens, gave this tensor."""
        node = self.find(result)
        if node is not None:
            self.nodes[node].heavy = True
            self.attentions[node] = sizes

    def _form(self, op: Operation, given: Given, result: Tensor) -> int | None:
        """The node that the result is a form of: a view and the like, or a tensor with something smaller on it."""
        places = given.places
        if op.name in FORMS:
            node = places[0] if places else None
            same = node is not None and result.numel() == math.prod(self.nodes[node].shape)
            return node if same else None
        if op.name == "copy_":
            return places[1] if len(places) > 1 else None
        if op.name in SCALED:
            whole = [i for i, arg in enumerate(op.args) if isinstance(arg, Tensor) and arg.shape == result.shape]
            return places[whole[0]] if len(whole) == 1 else None
        return None

    def _made(self, tensor: Tensor, parents: tuple[int, ...], skip: int | None, name: str) -> int:
        nodes = self.nodes
        state = len(nodes) if skip is None else nodes[skip].state
        from_input, tree = False, -1
        for parent in parents:
            node = nodes[parent]
            from_input = from_input or node.from_input
            tree = node.tree if node.tree > tree else tree
        call, order, heavy = self._stack[-1], self.tick(), name in ACTIVATIONS
        shape = tuple(tensor.shape)
        self._known.add(tensor, len(nodes))
        nodes.append(Node(parents, skip, state, name, call, order, shape, from_input, heavy, tree))
        return len(nodes) - 1

    # joins

    def _pairs(self, op: Operation, given: Given, shape: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        """What may be (skip, branch) in a sum: the skip has the shape of the sum, and stands where the table says."""
        found = []
        for i in JOINS[op.name]:
            node = given.places[i] if i < len(given.places) else None
            others = tuple(n for j, n in enumerate(given.places) if j != i and n is not None)
            if node is not None and others and self.nodes[node].shape == shape:
                found.append((node, others))
        if op.role == "sum" and len(found) == 1:  # the other operand is smaller: a bias, or unknown
            return []
        return self._latest_first(found)

    def _latest_first(self, pairs: list[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[int, ...]]]:
        """The later state is the stream; of two states in one tree the one after more joins.

        An average of all states so far is made after the latest state, but from the older ones.
        """
        states = [self.nodes[skip].state for skip, _ in pairs]
        tree = next((t for t in reversed(self.trees) if all(map(t.holds, states))), None) if len(pairs) > 1 else None
        lengths = {} if tree is None else tree.lengths
        ranks = [(lengths.get(state, 0), state) for state in states]
        return [pair for _, pair in sorted(zip(ranks, pairs, strict=True), reverse=True)]

    def _joined(self, made: int, pairs: list[tuple[int, tuple[int, ...]]]) -> None:
        for skip, branch in pairs:
            state = self.nodes[skip].state
            tree = next((t for t in reversed(self.trees) if t.holds(state)), None)
            if any(self._comes_from(node, state, tree) for node in branch):
                if tree is None:
                    tree = Tree(state)
                    self.trees.append(tree)
                self._add_join(tree, JoinNode(made, skip, branch, state))
                return
        if any(is_part(self.nodes, self.trees, skip) for skip, _ in pairs):
            return  # some tokens of a stream are given something, and are put together with the others later
        for skip, branch in pairs:
            tree = self.trees[self.nodes[skip].tree] if self.nodes[skip].tree >= 0 else None
            # a branch may have joins of its own, as where queries are added to what they attend to
            if tree is not None and all(self.nodes[node].tree >= self.nodes[skip].tree for node in branch):
                states, heavy = self._origin(skip, tree)
                origins = [self._origin(node, tree) for node in branch]
                if len(states) == 1 and not heavy and any(found and worked for found, worked in origins):
                    self._add_join(tree, JoinNode(made, skip, branch, states.pop(), projected=True))
                    return

    def _put_together(self, made: int, pieces: tuple[int, ...]) -> None:
        """All parts of a state in one tensor are a form of it; where something was added to some, a join."""
        whole = whole_of(self.nodes, self.trees, pieces, self.nodes[made].shape)
        state = None if whole is None else self.nodes[whole.node].state
        tree = next((t for t in reversed(self.trees) if state is not None and t.holds(state)), None)
        if whole is None or state is None or tree is None:
            self._grow(made, pieces)
        elif whole.changed:
            self._add_join(tree, JoinNode(made, whole.node, pieces, state))
        else:
            self._is_form(made, whole.node)

    def _grow(self, made: int, pieces: tuple[int, ...]) -> None:
        """The tokens that a module is given, with some of another kind beside them, are a form of them."""
        inner = beside_others(self.nodes, self.trees, pieces, self.nodes[made].shape)
        given = self.calls[self._stack[-1]].given.values() if self._stack[-1] >= 0 else ()
        if inner is not None and any(n is not None and self.nodes[n].state == self.nodes[inner].state for n in given):
            self._is_form(made, inner)

    def _is_form(self, made: int, source: int) -> None:
        self.nodes[made].skip, self.nodes[made].state = source, self.nodes[source].state

    def _add_join(self, tree: Tree, join: JoinNode) -> None:
        tree.add(join)
        self.latest = join
        node = self.nodes[join.node]
        node.skip, node.state, node.tree = None, join.node, self.trees.index(tree)

    def _comes_from(self, node: int, state: int, tree: Tree | None) -> bool:
        """Whether a node was computed from a state, or from another one of its tree."""
        least = state if tree is None else tree.root
        return any(
            self.nodes[one].state == state or (tree is not None and tree.holds(self.nodes[one].state))
            for one in self.above(node, least)
        )

    def _origin(self, node: int, tree: Tree) -> tuple[set[int], bool]:
        """The states of a tree that a node comes from, and whether attention or an activation is on the way."""
        states: set[int] = set()
        heavy, waiting, seen = False, [node], {node}
        while waiting:
            one = self.nodes[waiting.pop()]
            if tree.holds(one.state):
                states.add(one.state)
                continue
            heavy |= one.heavy
            waiting += [p for p in one.parents if p >= tree.root and p not in seen]
            seen.update(one.parents)
        return states, heavy

    def above(self, node: int, least: int) -> Iterator[int]:
        """A node and everything that it was computed from, down to the node `least`, latest first."""
        waiting, seen = [-node], {node}
        while waiting:
            one = -heappop(waiting)
            yield one
            for parent in self.nodes[one].parents:
                if parent >= least and parent not in seen:
                    seen.add(parent)
                    heappush(waiting, -parent)
