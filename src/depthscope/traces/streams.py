"""The streams of a model: each with its name and its blocks, found by what is added to what."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from torch import nn

from depthscope.errors import BlocksNotFoundError, UnknownNameError
from depthscope.registry import unknown
from depthscope.traces.ends import Ends, ends_of
from depthscope.traces.families import Group, groups_of, runs_in, template
from depthscope.traces.flow import Flow
from depthscope.traces.lines import Joined, lines_of, towers
from depthscope.traces.token_axis import Frames, batch_of
from depthscope.traces.tokens import Layout

CONVOLUTIONS = {"conv1d", "conv2d", "batch_norm", "group_norm", "avg_pool2d", "max_pool2d"}
LINEAR = {"linear", "layer_norm", "rms_norm", "addmm"}
ALONE = "main"  # what the only stream of a model is called


@dataclass(frozen=True)
class Stream:
    """One residual stream: its blocks in the order they ran."""

    name: str
    blocks: list[Ends]

    @property
    def pattern(self) -> str:
        """Patterns of the paths of its blocks, which every verb accepts as blocks=."""
        return ", ".join(dict.fromkeys(template(path) for block in self.blocks for path in block.paths))

    @property
    def attends(self) -> bool:
        return any(block.attentions for block in self.blocks)

    def nodes(self) -> set[int]:
        """The ends of its blocks in the flow."""
        return {node for block in self.blocks for node in (block.source, block.result)}


def streams_of(flow: Flow, model: nn.Module, chosen: set[str] | None) -> list[Stream]:
    """All streams of a pass that mix tokens, the one with most blocks first; those of one token are left out.

    chosen: paths that the user names; joins that belong to none of them are of no interest. None is found where modules
    that attend, of the same names as the blocks, were not followed: there blocks are modules.
    """
    found: dict[tuple, list[_Found]] = {}  # by the modules of the blocks
    for joins, groups in _grouped(flow, model, chosen):
        blocks = ends_of(flow, groups)
        if blocks and len(flow.nodes[blocks[0].source].shape) > 1:
            reads = [any(flow.nodes[n].state == joined.join.before for n in joined.reads) for joined in joins]
            read = sum(reads)
            key = tuple(block.paths or (block.source,) for block in blocks)
            coupled = len(joins) > 1 and not any(reads[1:])  # two streams may begin with the same tokens
            one = _Found(read, 2 * read > len(joins), any(joined.mixes for joined in joins), blocks, coupled)
            found.setdefault(key, []).append(one)
    kept = _read_by_their_branches(model, [one for same in found.values() for one in _of_the_same_blocks(same)])
    mixing = [one.blocks for one in kept if one.mixes]
    mixing = [blocks for blocks in mixing if _has_tokens(flow, blocks)] or mixing
    deep = (
        [blocks for blocks in mixing if len(blocks) > 1] or mixing or sorted((one.blocks for one in kept), key=len)[-1:]
    )
    ranked = sorted(deep, key=lambda blocks: -len(blocks))
    if ranked and (_are_pieces(ranked) or (chosen is None and _are_missing(flow, ranked))):
        return []
    return [Stream(name, blocks) for name, blocks in zip(_names(ranked), ranked, strict=True)]


def _grouped(flow: Flow, model: nn.Module, chosen: set[str] | None) -> Iterator[tuple[list[Joined], list[Group]]]:
    """The joins of each stream and how they fall into blocks.

    Stages of which no family of modules makes the blocks (CANINE: characters, then what they are merged into) are
    streams of their own.
    """
    for tower in towers(flow, lines_of(flow)):
        joins = [joined for line in tower for joined in line.joins]
        groups = groups_of(flow, model, joins, chosen)
        if len(tower) > 1 and chosen is None and any(runs_in(group) > 1 for group in groups):
            yield from ((line.joins, groups_of(flow, model, line.joins, chosen)) for line in tower)
        else:
            yield joins, groups


class _Found(NamedTuple):
    """A stream: how many of its branches read it, whether most do, whether tokens are mixed, and its blocks.

    coupled: what is added to it is computed from another one.
    """

    read: int
    is_read: bool
    mixes: bool
    blocks: list[Ends]
    coupled: bool

    @property
    def attends(self) -> bool:
        """Whether it is a stream beyond doubt: every block attends, and most branches read what they are added to."""
        return self.is_read and all(block.attentions for block in self.blocks)


def _of_the_same_blocks(streams: list[_Found]) -> list[_Found]:
    """Of streams in the same blocks: all that attend in each (texts and images, each with weights of its own), the
    one that branches read most in front; of others only that one."""
    ranked = sorted(streams, key=lambda one: -one.read)
    return [ranked[0], *(one for one in ranked[1:] if ranked[0].attends and one.attends)]


def _read_by_their_branches(model: nn.Module, found: list[_Found]) -> list[_Found]:
    """Without sums that no branch of theirs reads, in blocks of a stream that is read: scores that are handed on.

    Where no sum is read by what is added to it, two streams change each other (Reformer), and neither is the model's.
    """
    known = {path for one in found if not one.coupled for block in one.blocks for path in block.paths}
    kept = [one for one in found if not one.coupled or not known & {p for block in one.blocks for p in block.paths}]
    coupled = next((one.blocks for one in kept if one.mixes and len(one.blocks) > 1), None)
    if coupled is None or not all(one.coupled for one in kept):
        return kept
    names = ", ".join(dict.fromkeys(template(path) for block in coupled for path in block.paths))
    raise BlocksNotFoundError(
        f"what is added to a residual stream must be computed from it; in {names} of {type(model).__name__} it is "
        "computed from another one: a reversible pair, x_1 + f(x_2) and x_2 + g(x_1). Its state is both. Wrap each "
        "layer in a module that takes and returns torch.cat([x_1, x_2], -1), run them one after another, and scan that."
    )


def _are_pieces(streams: list[list[Ends]]) -> bool:
    """Whether every stream is one block, and all have one name: one stream, which was lost between them."""
    names = {template(path) for blocks in streams for block in blocks for path in block.paths}
    return len(streams) > 1 and len(names) == 1 and all(len(blocks) == 1 for blocks in streams)


def _are_missing(flow: Flow, streams: list[list[Ends]]) -> bool:
    """Whether a module with the name of the first stream's blocks attends, and none of it is in a block.

    Attention with fewer queries than keys merges tokens between two stages (LeViT): it is no block.
    """
    names = {template(path) for block in streams[0] for path in block.paths}
    known = {node for blocks in streams for block in blocks for node in block.attentions}
    inside = (
        {n for n, sizes in flow.attentions.items() if call.first <= n <= call.last and sizes.queries == sizes.keys}
        for call in flow.calls
        if template(call.path) in names
    )
    return any(nodes and not nodes & known for nodes in inside)


def _has_tokens(flow: Flow, blocks: list[Ends]) -> bool:
    """Whether several tokens attend: a class token by itself has nobody to be like."""
    sizes = [flow.attentions[node] for block in blocks for node in block.attentions]
    return not sizes or any(one.queries > 1 for one in sizes)


def _names(streams: list[list[Ends]]) -> list[str]:
    """The shortest beginnings of the blocks' paths that tell the streams apart: encoder, decoder."""
    paths = [blocks[0].paths[0].split(".") if blocks[0].paths else [] for blocks in streams]
    if len(paths) < 2:
        return [ALONE] * len(paths)
    names = []
    for own in paths:
        others = [path for path in paths if path is not own]
        parts = next((own[: i + 1] for i in range(len(own)) if all(o[: i + 1] != own[: i + 1] for o in others)), own)
        shared = [len({*level}) == 1 for level in zip_longest(*paths)]
        names.append(".".join(part for part, same in zip(parts, shared, strict=False) if not same))
    return [name if names.count(name) == 1 and name else f"{name or ALONE}_{i + 1}" for i, name in enumerate(names)]


def stream_called(name: str | None, names: Iterable[str]) -> str | None:
    """The one of the names that is meant: itself, or a part of it that no other has; None is none in particular."""
    known = list(names)
    if name is None or name in known:
        return name
    fits = [one for one in known if str(name) in one]
    if len(fits) != 1 or not isinstance(name, str):
        raise UnknownNameError(unknown("stream", str(name), known))
    return fits[0]


def frames_of(flow: Flow, streams: list[Stream], known: Frames) -> Frames:
    """What the attention of the streams tells of their token axes, beside what is known already."""
    frames = known.again()
    pairs = [(block, flow.attentions[node]) for s in streams for block in s.blocks for node in block.attentions]
    own = [pair for pair in pairs if pair[1].queries == pair[1].keys]
    for block, sizes in (*own, *pairs):  # attention over a memory, or to other tokens, tells where its queries are
        shape = flow.nodes[block.source].shape
        batch = batch_of(shape, sizes.front, sizes.queries) if frames.axis_of(shape) is None else None
        if batch is not None and not (known.batch_first and shape[0] != batch):
            frames.add(batch, sizes.queries)
    ends = {node for stream in streams for node in stream.nodes()}
    for shape in {flow.nodes[node].shape for node in ends}:
        if frames.axis_of(shape) is None:
            states = {flow.nodes[node].state for node in ends if flow.nodes[node].shape == shape}
            frames.images[shape] = _guessed(flow, shape, states)
            frames.assumed = True
    return frames


def of_several_tokens(flow: Flow, streams: list[Stream], frames: Frames) -> list[Stream]:
    """The streams in which tokens can be alike: a class token that attends by itself, in blocks of its own, is none."""
    return [stream for stream in streams if _tokens(flow, stream, frames) > 1] or streams


def _tokens(flow: Flow, stream: Stream, frames: Frames) -> int:
    shape = flow.nodes[stream.blocks[0].source].shape
    layout = frames.layout_of(shape)
    return 2 if layout is None else math.prod(shape[axis] for axis in layout.tokens)


def _guessed(flow: Flow, shape: tuple[int, ...], states: set[int]) -> Layout:
    """Where attention does not tell (windows, mixing without attention): batch first, channels where matrices read.

    Linear maps read channels along the last axis, convolutions along the second; norms know how many there are, however
    the tokens were turned. All else are tokens, or places of an image. states: of the ends of blocks with this shape.
    """
    forms = {i for i, one in enumerate(flow.nodes) if one.state in states}
    reads = ((one.name, flow.nodes[p].shape) for one in flow.nodes for p in one.parents if p in forms)
    widths = [width for name, read in reads if (width := _width(flow, name, read, shape)) is not None]
    votes = Counter(axis for axis in range(1, len(shape)) for width in widths if shape[axis] == width)
    channels = max(votes, key=lambda axis: (votes[axis], axis), default=len(shape) - 1)
    return Layout(tuple(axis for axis in range(1, len(shape)) if axis != channels) or (0,), channels)


def _width(flow: Flow, name: str, read: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """The channels of a tensor that a function reads along its channels; matrices may read turned tensors otherwise."""
    if name.startswith("norm "):
        return flow.widths.get(name, read[-1])
    if read != shape:
        return None
    return read[1] if name in CONVOLUTIONS else read[-1] if name in LINEAR else None
