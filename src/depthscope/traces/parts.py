"""Parts of a state: tokens that were cut off, and are put together again with those that were left.

A class token that a network of its own reads, patches that alone are given something, two halves of the channels:
`x = cat([x[:, :1], x[:, 1:] + f(y)])` is the stream x with a branch on some of its tokens.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from depthscope.traces.nodes import Node, Tree
from depthscope.traces.operations import JOINS

CUTS = {*"__getitem__ narrow split split_with_sizes chunk tensor_split select index_select unbind".split()}


class Whole(NamedTuple):
    """What parts were cut from: the node. changed: whether something was added to one of them."""

    node: int
    changed: bool


def whole_of(nodes: list[Node], trees: list[Tree], pieces: Sequence[int], shape: tuple[int, ...]) -> Whole | None:
    """What all of some tensors are parts of, where together they have its shape again; None where there is no such."""
    found = [_cut_from(nodes, trees, piece) for piece in pieces]
    if len(found) < 2 or any(one is None for one in found):
        return None
    wholes = [one for one in found if one is not None]
    same = len({nodes[one.node].state for one in wholes}) == 1 and nodes[wholes[0].node].shape == shape
    return Whole(wholes[0].node, any(one.changed for one in wholes)) if same else None


def beside_others(nodes: list[Node], trees: list[Tree], pieces: Sequence[int], shape: tuple[int, ...]) -> int | None:
    """The tensor of a stream that most of a larger one is made of, beside tokens of another kind; None for others."""
    most = next((piece for piece in pieces if 2 * prod(nodes[piece].shape) > prod(shape)), None)
    if most is None or not any(tree.holds(nodes[most].state) for tree in trees):
        return None
    before = nodes[most].shape
    more = len(before) == len(shape) > 2 and sum(a != b for a, b in zip(before, shape, strict=True)) == 1
    return most if more and before[-1] == shape[-1] else None


def is_left_again(nodes: list[Node], trees: list[Tree], part: int) -> bool:
    """Whether a part is what is left of a stream without tokens that were put beside it: it has the shape of before."""
    whole = _parent(nodes, part)
    state = None if whole is None else nodes[whole].state
    tree = next((tree for tree in reversed(trees) if state in tree.joins), None)
    if tree is None or state is None:
        return False
    before = tree.joins[state].before
    return nodes[part].shape == nodes[before].shape != nodes[state].shape


def is_part(nodes: list[Node], trees: list[Tree], piece: int) -> bool:
    """Whether a tensor was cut from a state of a stream: what is added to it joins that stream, and no other."""
    whole = _parent(nodes, nodes[piece].state)
    return whole is not None and any(tree.holds(nodes[whole].state) for tree in trees)


def _cut_from(nodes: list[Node], trees: list[Tree], piece: int) -> Whole | None:
    """The tensor that one was cut from: itself, or what something was added to since."""
    state = nodes[piece].state
    if (whole := _parent(nodes, state)) is not None:
        return Whole(whole, False)
    root = next((tree.root for tree in reversed(trees) if state in tree.joins), None)
    bases = [root] if root is not None else nodes[state].parents if nodes[state].name in JOINS else ()
    wholes = (_parent(nodes, nodes[base].state) for base in bases)
    added = next((whole for whole in wholes if whole is not None), None)
    return None if added is None else Whole(added, True)


def _parent(nodes: list[Node], state: int) -> int | None:
    one = nodes[state]
    return one.parents[0] if one.name in CUTS and one.parents else None
