"""Which of the modules that ran are the blocks: the repeated, token to token, attention holding steps of a model."""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from depthscope.errors import BlocksNotFoundError, ShapeError
from depthscope.registry import unknown
from depthscope.traces.families import template
from depthscope.traces.followed import is_own_leaf, uncalled_lists
from depthscope.traces.installed import OWN
from depthscope.traces.log import Attention, Call, Log, State
from depthscope.traces.modules import has_parts, modules_in
from depthscope.traces.operations import is_norm
from depthscope.traces.streams import ALONE, Stream

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Block:
    """One application of a block: its module path(s), its time in the log, the states at its ends."""

    paths: tuple[str, ...]
    start: int
    end: int
    source: State
    result: State
    attentions: tuple[int, ...] | None = None  # by their nodes in the flow, where the stream was followed

    @property
    def name(self) -> str:
        return " + ".join(self.paths)

    def holds(self, order: int) -> bool:
        return self.start <= order <= self.end

    def attends(self, attention: Attention) -> bool:
        """Whether an attention is of this block."""
        if self.attentions is None or attention.node is None:  # nobody followed it, or it was probed afterwards
            return self.holds(attention.order)
        return attention.node in self.attentions


@dataclass(frozen=True)
class Found:
    """The blocks in the order they ran, the pattern of their paths, and what a reader should know of the choice."""

    pattern: str
    blocks: list[Block]
    notes: list[str]
    stream: str = ALONE


def candidates(model: nn.Module, blocks: str | Iterable[str] | None) -> set[str]:
    """Paths of the modules that may be blocks: numbered ones that hold weights, or those the user names."""
    if blocks is not None:
        return _chosen(model, patterns_in(blocks))
    return {
        path
        for path, module in modules_in(model).items()
        if _NUMBER.search(path.rpartition(".")[2])
        and not path.startswith(OWN)
        and not is_norm(module)
        and not isinstance(module, nn.ModuleList | nn.ModuleDict)
        and (has_parts(module) or is_own_leaf(module))
    }


def patterns_in(blocks: str | Iterable[str]) -> list[str]:
    """The patterns that a user gives, in a list or in one text with commas, as scan.blocks has them."""
    given = [blocks] if isinstance(blocks, str) else list(blocks)
    return [part.strip() for pattern in given for part in str(pattern).split(",")]


def _chosen(model: nn.Module, patterns: list[str]) -> set[str]:
    paths = [path for path, _ in model.named_modules() if path]
    chosen: set[str] = set()
    for pattern in patterns:
        # a star stands for one name of the path, so that "layers.*" means the layers and not what is in them
        matches = [p for p in paths if p.count(".") == pattern.count(".") and fnmatch.fnmatchcase(p, pattern)]
        if not matches:
            raise BlocksNotFoundError(
                f"blocks={pattern!r} must match modules of the model; "
                + unknown("module", pattern, {template(p) for p in paths}).replace("is called", "matches")
            )
        chosen.update(matches)
    return chosen


def blocks_by_name(model: nn.Module, blocks: str | Iterable[str] | None, stream: str | None = None) -> list[str]:
    """The blocks of a model that has not run: the outermost numbered family of one class with most members.

    stream: a part of their paths, where a model has several families.
    """
    if blocks is not None:
        return sorted(candidates(model, blocks), key=_natural)
    families: dict[str, list[str]] = {}
    for path in sorted(candidates(model, None) | set(uncalled_lists(model)), key=_natural):
        families.setdefault(template(path), []).append(path)
    alike = {key: paths for key, paths in families.items() if len({type(model.get_submodule(p)) for p in paths}) == 1}
    outer = [k for k in alike if not any(_hides(model, alike, other, k) for other in alike)]
    outer = [k for k in outer if stream is None or stream in k]
    if not outer:
        raise BlocksNotFoundError(none_found(model))
    most = max(len(alike[k]) for k in outer)
    largest = [k for k in outer if len(alike[k]) == most]
    if len(largest) > 1 and most > 1:
        raise BlocksNotFoundError(
            f"the blocks must be one family of modules; {' and '.join(largest)} have {most} members each. "
            f'Pass blocks="{largest[0]}" for one of them.'
        )
    return alike[largest[0]]


def _hides(model: nn.Module, families: dict[str, list[str]], outer: str, inner: str) -> bool:
    """Whether a family holds another, which is thus a part of its blocks.

    A lone module whose name ends in a number (dinov2) is no block when what it holds is several modules with norms.
    """
    if outer == inner or not inner.startswith(outer + "."):
        return False
    alone = len(families[outer]) == 1 < len(families[inner]) and outer.rpartition(".")[2] != "*"
    return not (alone and any(map(is_norm, model.get_submodule(families[inner][0]).modules())))


def _natural(path: str) -> list[tuple[int, str]]:
    """layers.2 before layers.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]


def blocks_in(log: Log, stream: Stream, states: Mapping[int, State]) -> Found | None:
    """The blocks of a stream with the states at their ends; None where one was not measured, or not as it should be."""
    found: list[Block] = []
    for ends in stream.blocks:
        source, result = states.get(ends.source), states.get(ends.result)
        if source is None or result is None or not (_is_whole(log, source) and _is_whole(log, result)):
            return None
        # a state is on the clock a moment after its node, and a norm has ended a moment after its state
        start, end = (ends.start, ends.end) if ends.call else (ends.start, result.order + 1)
        start = max(start, found[-1].end) if found else start  # the sum that ends a block is of that block alone
        found.append(Block(ends.paths, start, end, source, result, ends.attentions))
    return Found(stream.pattern, found, [], stream.name)


def _is_whole(log: Log, state: State) -> bool:
    """Whether all was measured, along the axes that are known now."""
    return state.numbers is not None and state.numbers.whole and state.layout == log.frames.layout_of(state.shape)


def find_blocks(log: Log, model: nn.Module, *, named: bool) -> Found:
    """Choose the family with most attention, the outermost among equals; pair halves that come as separate entries.

    named: the candidates are the user's own choice.
    """
    families: dict[str, list[Block]] = {}
    for call in sorted(log.calls, key=lambda c: c.entered):
        if _measured(call) and call.source.shape == call.result.shape:  # type: ignore[union-attr]
            key = "blocks" if named else template(call.path)
            block = Block((call.path,), call.entered, call.left, call.source, call.result)  # type: ignore[arg-type]
            families.setdefault(key, []).append(block)
    for key, entries in ({} if named else _uncalled(log, model)).items():
        families[key] = entries
    families = {key: _outermost(blocks) for key, blocks in families.items()}
    if not families:
        short = next((call.source.shape for call in log.calls if call.source and call.source.tokens == 1), None)
        if short is not None:
            raise ShapeError(
                f"every sequence must have at least two tokens; got states of shape {short}. "
                "Similarity compares tokens: give longer inputs."
            )
        raise BlocksNotFoundError(none_found(model))

    def attention_count(key: str) -> int:
        return sum(_has_attention(log, block) for block in families[key])

    ranked = sorted(families, key=lambda k: (-attention_count(k), k.count("."), -len(families[k])))
    best = ranked[0]
    blocks = _paired(log, families[best])
    notes = _others(log, best, families, ranked)
    if len(blocks) < len(families[best]):
        notes.append(f"{best}: attention and feed-forward network are separate entries; each pair is one block")
    pattern = template(families[best][0].paths[0]) if named else best
    return Found(pattern, blocks, notes)


def _measured(call: Call) -> bool:
    return (
        call.result is not None
        and call.source is not None
        and call.result.numbers is not None
        and call.source.numbers is not None
    )


def _has_attention(log: Log, block: Block) -> bool:
    return any(block.holds(a.order) and a.kind != "cross" for a in log.attentions)


def _outermost(blocks: list[Block]) -> list[Block]:
    """Drop calls that run inside another call of the same family."""
    kept: list[Block] = []
    for block in blocks:
        if not kept or block.start > kept[-1].end:
            kept.append(block)
    return kept


def _uncalled(log: Log, model: nn.Module) -> dict[str, list[Block]]:
    """Entries of a list that are lists themselves: they are never called, but what is in them is.

    The state after an entry is the last token tensor that anything under it returned.
    """
    families: dict[str, list[Block]] = {}
    for path in uncalled_lists(model):
        inside = path + "."
        seen = (*log.calls, *log.norms, *log.remedies)
        calls = [c for c in seen if c.path.startswith(inside) and _measured(c)]
        if not calls:
            continue
        first = min(calls, key=lambda c: c.entered)
        adds = [a.result for a in log.adds if a.path.startswith(inside) and a.result.numbers is not None]
        results = [*(c.result for c in calls), *adds]
        width = first.source.shape[1:]  # type: ignore[union-attr]
        last = max((s for s in results if s is not None and s.shape[1:] == width), key=lambda s: s.order)
        end = max([c.left for c in calls] + [s.order for s in adds])
        families.setdefault(template(path), []).append(Block((path,), first.entered, end, first.source, last))  # type: ignore[arg-type]
    return {key: sorted(blocks, key=lambda b: b.start) for key, blocks in families.items()}


def _paired(log: Log, entries: list[Block]) -> list[Block]:
    """Join an entry that is attention alone with the entries without attention that follow it."""
    attends = [_has_attention(log, e) for e in entries]
    halves = any(attends) and not all(attends)
    if not halves or not all(_is_attention_alone(log, e) for e, a in zip(entries, attends, strict=True) if a):
        return entries
    groups: list[list[Block]] = []
    for i, entry in enumerate(entries):
        starts = attends[i] and (i == 0 or not attends[i - 1])
        if starts or not groups:
            groups.append([])
        groups[-1].append(entry)
    return [
        Block(tuple(p for e in g for p in e.paths), g[0].start, g[-1].end, g[0].source, g[-1].result) for g in groups
    ]


def _is_attention_alone(log: Log, entry: Block) -> bool:
    """After its attention the entry uses at most one more matrix: the output projection."""
    last = max(a.order for a in log.attentions if entry.holds(a.order))
    return sum(entry.holds(order) and order > last for order in log.matrices) <= 1


def _others(log: Log, best: str, families: dict[str, list[Block]], ranked: list[str]) -> list[str]:
    """Attention holding families outside the chosen one, which the user may have meant."""
    notes: list[str] = []
    named: list[str] = []
    chosen = families[best]
    for key in ranked[1:]:
        outside = [b for b in families[key] if not any(c.start <= b.start and b.end <= c.end for c in chosen)]
        around = any(b.start <= chosen[0].start and chosen[-1].end <= b.end for b in outside)
        inner = any(key.startswith(other + ".") for other in named)
        if outside and not around and not inner and any(_has_attention(log, b) for b in outside):
            named.append(key)
            notes.append(f'{best} was measured; {key} holds attention too: pass blocks="{key}" to measure it')
    return notes


def none_found(model: nn.Module, calls: Mapping[str, int] | None = None) -> str:
    """What to say of a model without repeated blocks. calls: how often each module with children was called."""
    seen = sorted({template(p) for p, m in model.named_modules() if p and next(m.children(), None) is not None})
    repeated = sorted((path for path, count in (calls or {}).items() if count > 1), key=lambda path: path.count("."))
    if calls and repeated:
        hint = f'{repeated[0]} was called {calls[repeated[0]]} times: pass blocks="{repeated[0]}".'
    else:
        hint = 'Name them, for example blocks="encoder.layers.*", and give inputs with a batch axis, (B, n, d) inside.'
    return (
        "a model must have repeated blocks that take tokens (B, n, d) and return the same shape; none was seen "
        f"in {type(model).__name__}. Modules with children: {', '.join(seen[:12]) or 'none'}. {hint}"
    )
