"""Where the blocks of a stream begin and end.

A block that is a module around its joins begins with the tokens it is given, and ends with those it hands on. Any other
block ends where the next begins: at the last form of the stream that skip and branch of the next join both start from.
In pre-norm blocks that is the sum itself, in post-norm blocks its norm. The last block ends as those before it do.
"""

from dataclasses import dataclass

from depthscope.traces.families import Group, template
from depthscope.traces.flow import Flow
from depthscope.traces.lines import Joined
from depthscope.traces.nodes import REMEDY, ModuleCall
from depthscope.traces.operations import JOINS


@dataclass(frozen=True)
class Ends:
    """One block: its modules, its first and last node, its time on the clock, its joins and attentions.

    call: the module around it, None where there is none.
    """

    paths: tuple[str, ...]
    source: int
    result: int
    start: int
    end: int
    joins: int
    attentions: tuple[int, ...]
    call: ModuleCall | None = None


def ends_of(flow: Flow, groups: list[Group]) -> list[Ends]:
    """The ends of all blocks of a stream, in their order."""
    forks = [_fork(flow, group.joins[0]) for group in groups]
    found: list[Ends] = []
    for i, group in enumerate(groups):
        call = _around(flow, group)
        first, last = group.joins[0], group.joins[-1]
        given = _given(flow, call, first)
        gave = _gave(flow, call, last)
        source = forks[i] if given is None else given
        if gave is not None:
            result = gave
        elif i + 1 < len(groups) and flow.nodes[forks[i + 1]].state == last.node:
            result = forks[i + 1]
        else:
            result = _as_before(flow, group, found)
        whole = call if given is not None and gave is not None else None
        start = whole.entered if whole else flow.nodes[source].order
        end = whole.left if whole else flow.nodes[result].order
        attentions = tuple(node for joined in group.joins for node in joined.attentions)
        found.append(Ends(group.paths, source, result, start, end, len(group.joins), attentions, whole))
    return found


def _around(flow: Flow, group: Group) -> ModuleCall | None:
    """The call of a module in which all joins of a block take place."""
    calls = {call for _, call in group.members}
    call = flow.calls[calls.pop()] if len(calls) == 1 and -1 not in calls else None
    return call if call and all(call.first <= joined.node <= call.last for joined in group.joins) else None


def _given(flow: Flow, call: ModuleCall | None, first: Joined) -> int | None:
    """The tensor given to a block that is the stream: a form of what its first join starts from.

    Where something in the block hides that, the first one of its shape: a block never begins inside its module. Where
    other tokens join those of the stream inside of the block (memory in front of them), the one that has fewer or more.
    """
    given = [n for n in (call.given.values() if call else ()) if n is not None]
    before, shape = first.join.before, flow.nodes[first.node].shape
    fits = [n for n in given if flow.nodes[n].state == before]
    fits += [n for n in given if flow.nodes[n].shape == shape]
    fits += [n for n in given if _differs_in_one(flow.nodes[n].shape, shape) and n in flow.above(before, n)]
    fits += [n for n in given if _is_sum_over(flow, before, n)]
    return fits[0] if fits else None


def _is_sum_over(flow: Flow, node: int, given: int) -> bool:
    """Whether a tensor is a sum of two that were both made of what a block was given: a branch, and a skip that merges
    tokens or widens channels, before any stream was seen."""
    sum_ = flow.nodes[node]
    return sum_.name in JOINS and len(sum_.parents) > 1 and all(given in flow.above(p, given) for p in sum_.parents)


def _gave(flow: Flow, call: ModuleCall | None, last: Joined) -> int | None:
    """The same of what a block hands on."""
    gave = [n for n in (call.gave.values() if call else ()) if n is not None]
    shape = flow.nodes[last.node].shape
    fits = [n for n in gave if flow.nodes[n].state == last.node]
    fits += [n for n in gave if flow.nodes[n].shape == shape]
    fits += [n for n in gave if _differs_in_one(flow.nodes[n].shape, shape) and last.node in flow.above(n, last.node)]
    return fits[0] if fits else None


def _differs_in_one(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes are those of more and of fewer tokens: one axis that is not the last is of another size."""
    pairs = list(zip(shape, other, strict=False))
    return len(shape) == len(other) and shape[-1] == other[-1] and sum(a != b for a, b in pairs) == 1


def _fork(flow: Flow, first: Joined) -> int:
    """The last form of the stream before a join that its skip and all of its branch start from."""
    join = first.join
    starts = [n for n in first.reads if flow.nodes[n].state == join.before]
    ways = [set(forms_of(flow, node)) for node in (starts if join.projected else [join.skip, *starts])]
    return max(set.intersection(*ways), default=join.before) if ways else join.before


def forms_of(flow: Flow, node: int) -> list[int]:
    """A form of a state, what that is a form of, and so on to the state itself."""
    way = [node]
    while (skip := flow.nodes[way[-1]].skip) is not None:
        way.append(skip)
    return way


def _as_before(flow: Flow, group: Group, before: list[Ends]) -> int:
    """The end of the last block: after its last sum the same functions act, in modules of the same names, as before.

    Before it is the end of another block, or, in the only block, what the last sum but one became. Remedies may act on
    some blocks alone, and in other places: what they made counts wherever it was made.
    """
    now, step = group.joins[-1].node, step_of
    end: int | None = None
    if before:
        end = before[-1].result
    elif len(group.joins) > 1 and flow.nodes[fork := _fork(flow, group.joins[-1])].state == group.joins[-2].node:
        end, step = fork, _function  # of one block, whose modules have other names
    forms = forms_of(flow, end)[-2::-1] if end is not None else []
    for wanted in [step(flow, node) for node in forms if flow.nodes[node].name != REMEDY]:
        now = _remedied(flow, now)
        after = (n for n in range(now + 1, len(flow.nodes)) if flow.nodes[n].skip == now and step(flow, n) == wanted)
        now = next(after, now)
    return _remedied(flow, now)


def _remedied(flow: Flow, node: int) -> int:
    """What remedies have made of a form of the stream."""
    found = (n for n in range(node + 1, len(flow.nodes)) if flow.nodes[n].skip == node and flow.nodes[n].name == REMEDY)
    after = next(found, None)
    return node if after is None else _remedied(flow, after)


def _function(flow: Flow, node: int) -> tuple[str, str]:
    """The function alone: "norm" of "norm blocks.0.a"."""
    return flow.nodes[node].name.partition(" ")[0], ""


def step_of(flow: Flow, node: int) -> tuple[str, str]:
    call = flow.nodes[node].call
    return template(flow.nodes[node].name), template(flow.calls[call].path) if call >= 0 else ""
