"""What a circuit is read from: blocks that are entered by modules, and states (B, n, d) that are of one shape."""

import re
from collections import Counter
from typing import TYPE_CHECKING

from torch import Tensor

from depthscope.errors import HookError, MaskError
from depthscope.traces.events import Passage, StreamListener

if TYPE_CHECKING:
    from depthscope.circuits.subject import Subject

_LAST_NUMBER = re.compile(r"\d+(?!.*\d)")


def check_entered(subject: "Subject") -> None:
    """Every block must have a module that is given its tokens."""
    lost = next((span.block for span in subject.spans if not span.entry), None)
    if lost is not None:
        raise HookError(
            f"the tokens of a block must be given to some module of it; {lost} of {subject.name} begins with a "
            "function of torch. Put its first step into a module (a norm, for example); ds.scan measures it as it is."
        )


def check_tokens(subject: "Subject") -> None:
    """Tokens along one axis, beside the batch, channels last."""
    for block, layout in subject.stream.layouts.items():
        if len(layout.tokens) > 1 or layout.channels != 2:
            axes = {axis: "tokens" for axis in layout.tokens} | {layout.channels: "channels"}
            shape = ", ".join(axes.get(axis, "batch") for axis in range(max(axes) + 1))
            raise HookError(_not_tokens(f"those of {block} in {subject.name} are ({shape})"))


def check_shapes(subject: "Subject") -> tuple[int, int]:
    """(B, n) of the states, which all blocks must share, with their width."""
    seen = _Shapes()
    subject.listen(seen)
    if len(seen.given) != len(subject.spans) or any(shape is None for shape in seen.gave):
        raise HookError(
            f"every block must be given tokens and give them back; in {subject.name} {len(seen.given)} of "
            f"{len(subject.spans)} were given some, and {sum(shape is not None for shape in seen.gave)} gave some back."
            + _another_stream(subject)
        )
    shapes = [*seen.given, *(shape for shape in seen.gave if shape is not None)]
    if len(set(shapes)) > 1:
        first, other = shapes[0], next(shape for shape in shapes if shape != shapes[0])
        raise HookError(
            f"all blocks must have states of one shape; in {subject.name} some have {first}, others {other}: these are "
            f'stages. Choose one of them: blocks="{_largest_stage(subject, seen)}".'
        )
    if len(shapes[0]) != 3:
        raise HookError(_not_tokens(f"those of {subject.name} have the shape {shapes[0]}"))
    return shapes[0][1 - subject.axis], shapes[0][subject.axis]


def check_attends_once(subject: "Subject") -> None:
    """One self-attention in every block: the theory has no other."""
    odd = next((span for span in subject.spans if span.attentions != 1), None)
    if odd is not None:
        times = "never does so" if not odd.attentions else f"does so {odd.attentions} times"
        raise HookError(
            f"every block must attend once; {odd.block} of {subject.name} {times}. Cross-attention, "
            "second attentions and blocks without any have no place in a path or a circuit of self-attention."
            + _another_stream(subject)
        )


def check_mask(mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    """The mask (B, n), True for tokens."""
    if mask is not None and tuple(mask.shape) != shape:
        raise MaskError(
            f"mask must have one entry for each token of the blocks, shape {shape}; got {tuple(mask.shape)}. "
            "Give mask= with 1 for a token and 0 for padding."
        )
    return None if mask is None else mask.bool()


def _not_tokens(what: str) -> str:
    return (
        f"the states of a residual stream must be tokens (B, n, d); {what}. Of images, of several copies of the stream "
        "and of sequences without a batch there is no circuit, and lengths cannot be told. Give a batch, or measure "
        "them as they are: ds.scan, ds.ablate."
    )


def _another_stream(subject: "Subject") -> str:
    return f' Another stream may do: stream="{subject.others[0]}".' if subject.others else " Choose others by blocks=."


def _largest_stage(subject: "Subject", seen: "_Shapes") -> str:
    """The blocks of one shape that are most, by the pattern of their paths, where that is no pattern of others too."""
    ends = list(zip(seen.given, seen.gave, strict=True))
    common = Counter([pair for pair in ends if pair[0] == pair[1]] or ends).most_common(1)[0][0]
    stage = [span.block for span, pair in zip(subject.spans, ends, strict=True) if pair == common]
    others = [span.block for span, pair in zip(subject.spans, ends, strict=True) if pair != common]
    patterns = dict.fromkeys(_LAST_NUMBER.sub("*", path) for path in stage)
    mixed = any(_LAST_NUMBER.sub("*", path) in patterns for path in others)
    return ", ".join(dict.fromkeys(stage) if mixed else patterns)


class _Shapes(StreamListener):
    def __init__(self) -> None:
        self.given: list[tuple[int, ...]] = []
        self.gave: list[tuple[int, ...] | None] = []

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self.given.append(tuple(tokens.shape))
        return tokens

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        self.gave.append(None if tokens is None else tuple(tokens.shape))
