"""How the joins of a stream fall into blocks: by the modules that made their branches, else by their own rhythm.

A family is a set of modules with one name but for its numbers, one module that is called again and again, or siblings
of one class. It groups joins when each of them belongs to one member: the member that runs around the join, or in which
the branch ran (`for attn, ff in layers: x = attn(x) + x; x = ff(x) + x`, where no module is a block).
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, takewhile

from torch import nn

from depthscope.traces.flow import Flow
from depthscope.traces.lines import Joined
from depthscope.traces.nodes import Node
from depthscope.traces.operations import FORMS, ROLES, SCALED

_NUMBER = re.compile(r"\d+")
IDLE = FORMS | SCALED | {"lerp", "lerp_", "stack", "sum"}  # functions that only put states together
MATRICES = {name for name, role in ROLES.items() if role == "matrix"} | {"conv3d", "bilinear"}
PRODUCTS = {name for name, role in ROLES.items() if role == "weights"} | {"__rmatmul__"}  # with weights, or of tokens
Member = tuple[str, int]  # the path, and the call where the module is called, else -1


@dataclass(eq=False)
class Group:
    """The joins of one block, and the modules it belongs to."""

    members: list[Member]
    joins: list[Joined]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for path, _ in self.members))


def template(path: str) -> str:
    """encoder.layer.11 -> encoder.layer.*: modules that differ only in their numbers are one family."""
    return _NUMBER.sub("*", path)


def groups_of(flow: Flow, model: nn.Module, joins: list[Joined], chosen: set[str] | None) -> list[Group]:
    """The blocks of a stream. chosen: paths that the user names; joins that belong to none of them are left out."""
    belongs = _members(flow, model, joins, chosen)
    if chosen is not None:
        found = groups_of(flow, model, joins, None)
        named = {path for members in belongs["chosen"].values() for path, _ in members}
        if len(found) > 1 and {path for group in found for path in group.paths} == named:
            return found  # what the finder itself would say, as in scan.blocks
    families = [family for family in belongs if _partitions(flow, joins, belongs[family], chosen is not None)]
    grouped = {family: _grouped(flow, joins, belongs[family]) for family in families}
    fitting = [family for family in families if all(runs_in(group) <= 1 for group in grouped[family])]
    fitting = [family for family in fitting if not any(_is_finer(flow, grouped[f], grouped[family]) for f in fitting)]
    runs = {family: max(map(runs_in, grouped[family]), default=0) for family in families}
    ranked = sorted(
        fitting or families, key=lambda name: (len(grouped[name]) < 2, runs[name], name.count("."), -len(grouped[name]))
    )
    best = grouped[ranked[0]] if ranked else []
    if len(best) > 1 or chosen is not None:
        return _halves_joined(flow, best)
    by_rhythm = _by_rhythm(flow, joins)
    return best if best and len(by_rhythm) < 2 else by_rhythm


def _members(
    flow: Flow, model: nn.Module, joins: list[Joined], chosen: set[str] | None
) -> dict[str, dict[int, set[Member]]]:
    """For each family, the members that every join (by its number on the line) belongs to."""
    found: dict[str, dict[int, set[Member]]] = defaultdict(lambda: defaultdict(set))
    calls_of: dict[int, set[int]] = {}
    for index, joined in enumerate(joins):
        calls = {flow.nodes[node].call for node in (joined.node, *_own(flow, joined))} - {-1}
        calls_of[index] = {above for call in calls for above in flow.above_call(call)}
    counts: dict[str, int] = defaultdict(int)
    for call in set().union(*calls_of.values()) if calls_of else ():
        counts[flow.calls[call].path] += 1
    names = {flow.calls[call].path for calls in calls_of.values() for call in calls}
    beside = cache(partial(_kinds_in, model))
    kinds = {path: _family_of(path, counts.get(path, 0), chosen, beside) for path in _with_lists(names)}
    for index, calls in calls_of.items():
        for call in calls:
            path = flow.calls[call].path
            places = [(path, call), *((above, -1) for above in _lists_above(path) if above not in names)]
            for place in places:
                family = kinds.get(place[0])
                if family is not None:
                    found[family][index].add(place)
    return found


def _own(flow: Flow, joined: Joined) -> set[int]:
    """The nodes of a branch that are newer than the latest state it reads: values of block 1 are not of block 5."""
    since = max((flow.nodes[node].state for node in joined.reads), default=-1)
    return {node for node in joined.inside if node > since} or joined.inside


def _with_lists(names: set[str]) -> set[str]:
    """The paths of calls, and of all that holds them: entries of lists are never called themselves."""
    return names | {above for path in names for above in _lists_above(path)}


def _lists_above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _kinds_in(model: nn.Module, path: str) -> dict[str, type]:
    """The classes of the parts of a module, by their names in it."""
    return {name: type(part) for name, part in model.get_submodule(path).named_children()}


def _family_of(path: str, calls: int, chosen: set[str] | None, beside: Callable[[str], dict[str, type]]) -> str | None:
    """The name of the family that a module belongs to, None where it is alone. beside: the classes under a path."""
    if chosen is not None:
        return "chosen" if path in chosen else None
    if not path:
        return None
    above, _, last = path.rpartition(".")
    if _NUMBER.search(last):
        return template(path)
    if calls > 1:
        return path
    kinds = beside(above)
    kind = kinds[last]
    if kind.__module__.startswith("torch.nn"):
        return None
    return f"{above}.<{kind.__name__}>" if list(kinds.values()).count(kind) > 1 else None


def _partitions(flow: Flow, joins: list[Joined], belongs: dict[int, set[Member]], named: bool) -> bool:
    """Whether each join has one member, but for joins before the first and after the last attention that has one."""
    if any(len(members) > 1 for members in belongs.values()):
        return False
    if named:
        return True
    mixing = [i for i, joined in enumerate(joins) if joined.mixes] or list(range(len(joins)))
    inside = range(mixing[0], mixing[-1] + 1)
    strays = [i for i in inside if i not in belongs and _is_work(flow, joins[i])]
    return not strays or _are_between(flow, joins, belongs, strays)


def _is_work(flow: Flow, joined: Joined) -> bool:
    """Whether a branch computes something: old states that are added again, or an average of them, are no block."""
    return any(flow.nodes[n].name not in IDLE for n in joined.inside)


def _are_between(flow: Flow, joins: list[Joined], belongs: dict[int, set[Member]], strays: list[int]) -> bool:
    """Whether joins that belong to no member lie between blocks: a convolution after the first of twelve layers.

    They mix no tokens by attention and are not after every block, and all other joins, attention and networks, take
    place inside of modules that are called.
    """
    calls = {i: flow.calls[call] for i, members in belongs.items() for _, call in members if call >= 0}
    around = all(i in calls and calls[i].first <= joins[i].node <= calls[i].last for i in belongs)
    members = {member for members in belongs.values() for member in members}
    whole = around and not all(joins[i].mixes for i in belongs)
    return whole and not any(joins[i].mixes for i in strays) and len(strays) < len(members) - 1


def _grouped(flow: Flow, joins: list[Joined], belongs: dict[int, set[Member]]) -> list[Group]:
    """Neighbours with the same member are one block."""
    pairs = [(next(iter(belongs[i])), joined) for i, joined in enumerate(joins) if i in belongs]
    found = []
    for member, run in groupby(pairs, key=lambda pair: pair[0]):
        group = Group([member], [joined for _, joined in run])
        found += _cut_into_runs(flow, group) if member[1] == -1 else [group]
    return found


def _is_finer(flow: Flow, groups: list[Group], others: list[Group]) -> bool:
    """Whether groups cut others, in which no mixing was seen, into blocks: those are stages, of other sizes each."""
    silent = not any(joined.mixes for group in others for joined in group.joins)
    sizes = {flow.nodes[group.joins[-1].node].shape for group in others}
    return silent and len(groups) > len(others) and (len(sizes) > 1 or all(len(group.joins) > 1 for group in groups))


def runs_in(group: Group) -> int:
    """How often attention begins again in a block, after something else: more than once, and it is several blocks."""
    return sum(1 for mixes, _ in groupby(group.joins, key=lambda joined: joined.mixes) if mixes)


def _cut_into_runs(flow: Flow, group: Group) -> list[Group]:
    """An entry of a list that is walked several times without being called is a block each time."""
    return [Group(group.members, part) for part in _from_attention(flow, group.joins)]


def _from_attention(flow: Flow, joins: list[Joined]) -> list[list[Joined]]:
    """Parts that each begin with attention after something else, or with the first join.

    After a part that has both, a join without attention that starts a stage belongs to what merges tokens there.
    """
    found: list[list[Joined]] = []
    for i, joined in enumerate(joins):
        if i and not joins[i - 1].mixes and _starts_stage(flow, joins[i - 1], joined):
            continue
        begins = joined.mixes and i and not joins[i - 1].mixes and any(j.mixes for j in joins[:i])
        if begins or not found:
            found.append([])
        found[-1].append(joined)
    return found


def _halves_joined(flow: Flow, groups: list[Group]) -> list[Group]:
    """Entries that are attention alone, each with the entries without attention that follow it, are blocks.

    After a block that has both, an entry without attention that starts a stage belongs to what merges tokens there.
    """
    attends = [any(joined.mixes for joined in group.joins) for group in groups]
    alone = [g for g, a in zip(groups, attends, strict=True) if a and len(g.joins) == 1 and _is_alone(flow, g.joins[0])]
    if all(attends) or len(alone) < sum(attends) or not alone:
        return groups
    first, period = _rhythm(attends) or (0, 0)
    found: list[Group] = []
    for i, group in enumerate(groups):
        again = attends[i] and (i == 0 or not attends[i - 1]) and any(attends[:i])
        starts = (i >= first and (i - first) % period == 0) if period else again
        if found and not attends[i - 1] and _starts_stage(flow, groups[i - 1].joins[-1], group.joins[0]):
            continue
        if starts or not found:
            found.append(Group([], []))
        found[-1].members += group.members
        found[-1].joins += group.joins
    return found


def _starts_stage(flow: Flow, last: Joined, joined: Joined) -> bool:
    """Whether a join without attention starts from other tokens than the one before it made: they were merged."""
    before = joined.join.before
    return not joined.mixes and before != last.node and flow.nodes[before].shape != flow.nodes[last.node].shape


def _rhythm(beats: list[bool]) -> tuple[int, int] | None:
    """Where the shortest rhythm that repeats to the end begins, and its length; None where there is none.

    Beats before the first that mixes tokens may be none of a block: a convolution, say.
    """
    first = beats.index(True) if True in beats else 0
    for lead, period in ((lead, period) for lead in range(first + 1) for period in range(1, len(beats) // 2 + 1)):
        rest = beats[lead:]
        repeats = len(rest) % period == 0 and rest == rest[:period] * (len(rest) // period)
        if repeats and len(rest) > period and any(rest[:period]):
            return lead, period
    return None


def _is_alone(flow: Flow, joined: Joined) -> bool:
    """Whether a branch is attention without a network: no activation of what a matrix made, between it and the sum."""
    if not joined.attentions:
        return False
    last = max(joined.attentions)
    after = {n for n in joined.inside if n > last and _comes_after(flow, n, last)}
    matrices = [n for n in after if _is_matrix(flow.nodes[n])]
    return not any(flow.nodes[n].heavy and any(m in flow.above(n, m) for m in matrices) for n in after)


def _is_matrix(node: Node) -> bool:
    """Whether weights were multiplied with: they are no nodes, so that a product with them has one parent."""
    return node.name in MATRICES or (node.name in PRODUCTS and len(node.parents) == 1)


def _comes_after(flow: Flow, node: int, attention: int) -> bool:
    return attention in flow.above(node, attention)


def _by_rhythm(flow: Flow, joins: list[Joined]) -> list[Group]:
    """Where no modules tell: the shortest rhythm of attention and networks that repeats, else from attention on."""
    beats = [joined.mixes for joined in joins]
    found = _rhythm(beats)
    if found is None:
        parts = _from_attention(flow, joins[beats.index(True) if True in beats else 0 :])
    else:
        lead, period = found
        parts = [joins[i : i + period] for i in range(lead, len(joins), period)]
    named = [_paths(flow, part) for part in parts]
    above = [_numbered_above(paths) for paths in named]
    if all(above) and len(set(above)) == len(above):
        named = [[path] for path in above if path]
    return [Group([(path, -1) for path in paths], part) for paths, part in zip(named, parts, strict=True)]


def _numbered_above(paths: list[str]) -> str | None:
    """The entry of a list that holds all of some modules, None where there is none."""
    levels = zip(*(path.split(".") for path in paths), strict=False)
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels)]
    while shared and not _NUMBER.search(shared[-1]):
        shared.pop()
    return ".".join(shared) or None


def _paths(flow: Flow, joins: list[Joined]) -> list[str]:
    """The outermost modules in which the branches ran."""
    calls = {flow.nodes[n].call for joined in joins for n in joined.inside} - {-1}
    around = set(flow.above_call(flow.nodes[joins[0].node].call))
    outer = {next(c for c in reversed(flow.above_call(call)) if c not in around) for call in calls - around}
    return list(dict.fromkeys(flow.calls[c].path for c in sorted(outer)))
