"""Segment memory: what the attention of every block read of the last tokens (Dai et al. 2019, 1901.02860, section 3.2).

It carries no gradient. Beside it lies what the running means of remedies need of the same tokens, put there by fix_, so
that a mean counts exactly the tokens that attention sees.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from depthscope.errors import ShapeError, UsageError

Means = list[list[Tensor]]  # of one remedy: for each call in a pass, for each of its means, the summands (B, M, w)


@dataclass(eq=False)
class SegmentMemory:
    """read: one (B, M, d) for each block. means: by the name of a fix, the summands of its means of the same tokens.

    taken: the names of the fixes that go on from here, for the time of a pass; all that have means here must.

    Examples:
        >>> model = ds.models.transformer_xl(vocabulary=50, memory=8, depth=2, d=16, h=2)
        >>> logs, memory = model(torch.randint(50, (2, 4)))
        >>> [tokens.shape for tokens in memory.read]  # (B, M, d) of each block
        [torch.Size([2, 4, 16]), torch.Size([2, 4, 16])]
    """

    read: list[Tensor]
    means: dict[str, Means] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.read[0].shape[-2]

    @property
    def batch(self) -> int:
        """Sequences held."""
        return self.read[0].shape[0]

    def rows(self, rows: slice) -> "SegmentMemory":
        """Some sequences of the batch."""
        if not isinstance(rows, slice):
            raise UsageError(
                f"SegmentMemory.rows: rows must be a slice, which keeps the batch axis; got {rows!r}. "
                "Give slice(i, i + 1) for sequence i."
            )
        part = SegmentMemory.from_tensors({name: tensor[rows] for name, tensor in self.tensors().items()})
        part.taken = self.taken  # not a copy: where a model is given a part, the fixes around it have said this here
        return part

    @classmethod
    def joined(cls, parts: Iterable["SegmentMemory"]) -> "SegmentMemory":
        """The sequences of all parts, in order."""
        parts = list(parts)
        if len({part.length for part in parts}) > 1:
            raise ShapeError(
                "SegmentMemory.joined: parts must hold equally many tokens; got "
                f"{', '.join(str(part.length) for part in parts)}. Join what was filled by segments of one length."
            )
        tensors = [part.tensors() for part in parts]
        if not tensors or any(set(other) != set(tensors[0]) for other in tensors):
            raise UsageError(
                "SegmentMemory.joined: parts must be memories of one model and its remedies, at least one; got "
                f"{len(tensors)} that hold different tensors. Join what the same model returned."
            )
        return cls.from_tensors({name: torch.cat([part[name] for part in tensors]) for name in tensors[0]})

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, the batch axis first: read.<block>, and means.<fix>.<call>.<mean>.

        A fix without running means leaves an empty tensor means.<fix>, which says that it was there.
        """
        named = {f"read.{block}": tensor for block, tensor in enumerate(self.read)}
        for fix, calls in self.means.items():
            named |= {f"means.{fix}.{i}.{j}": tensor for i, call in enumerate(calls) for j, tensor in enumerate(call)}
            if not any(calls):
                named[f"means.{fix}"] = self.read[0].new_empty(self.batch, 0)
        return named

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "SegmentMemory":
        """The memory whose tensors() these are."""
        blocks = sum(name.startswith("read.") for name in tensors)
        if not blocks or any(f"read.{block}" not in tensors for block in range(blocks)):
            raise UsageError(
                "SegmentMemory.from_tensors: the names must be those of tensors(), read.0 and so on; got "
                f"{', '.join(list(tensors)[:4]) or 'none'}."
            )
        means: dict[str, Means] = {}
        for name in sorted(tensors, key=_place):  # files keep no order
            kind, *parts = name.split(".")
            if kind == "means" and len(parts) == 1:
                means[parts[0]] = []
            elif kind == "means":
                calls = means.setdefault(parts[0], [])
                calls.extend([] for _ in range(int(parts[1]) + 1 - len(calls)))
                calls[int(parts[1])].append(tensors[name])
        return cls([tensors[f"read.{block}"] for block in range(blocks)], means)

    def fit(self, where: str, batch: int, depth: int, d: int, longest: int, like: Tensor) -> None:
        """Raise unless this is a memory of `batch` sequences for a model of `depth` blocks of width d as it is now.

        like: a parameter of the model, for its dtype and device.
        """
        got, wanted = (self.batch, len(self.read), self.read[0].shape[-1]), (batch, depth, d)
        for what, have, want in zip(("sequences", "blocks", "channels"), got, wanted, strict=True):
            if have != want:
                raise ShapeError(
                    f"{where}: memory must hold the same {what} as the call, {want}; got {have}. Give the memory that "
                    "this model returned for these sequences, memory.rows(...) of it, or None to start anew."
                )
        if self.length > longest:
            raise ShapeError(
                f"{where}: memory must not be longer than the model's, {longest} tokens; got {self.length}. "
                "Set model.memory before the pass that fills it."
            )
        mixed = torch.is_autocast_enabled(like.device.type)  # where every operation chooses a dtype for itself
        own = self.read[0]
        if own.device != like.device or (own.dtype != like.dtype and not mixed):
            raise UsageError(
                f"{where}: memory must be {like.dtype} on {like.device} as the model is; got {own.dtype} on "
                f"{own.device}. Move the model before the pass that fills it, or give None to start anew."
            )
        if lacking := sorted(set(self.means) - self.taken):
            raise UsageError(
                f"{where}: memory must be of the model as it is; it was filled with {', '.join(lacking)}, which is not "
                "in place now. Call fix_ as before, or give None to start anew."
            )


def _place(name: str) -> tuple[str, list[int]]:
    """Where the tensor of a name stands among those of its kind: call by call, mean by mean."""
    kind, *parts = name.split(".")
    return f"{kind}.{parts[0]}", [int(part) for part in parts[1:]]


@dataclass(eq=False)
class Recall:
    """What one block's attention is given of earlier tokens, and what it leaves for the next segment.

    R: the sinusoids (T + 1, d) of all distances, the farthest first. before: what it read of earlier tokens (B, M, d),
    or None. keep: how many tokens to leave. after: what it leaves (B, at most keep, d), without gradient.
    """

    R: Tensor
    before: Tensor | None = None
    keep: int = 0
    after: Tensor | None = None

    def __post_init__(self) -> None:
        self.before = None if self.before is None else self.before.detach()  # whoever made the memory

    def leave(self, X: Tensor) -> None:
        """Note that attention reads X (B, n, d) now."""
        if self.keep:
            self.after = last_tokens(self.before, X, self.keep)


def last_tokens(before: Tensor | None, X: Tensor, keep: int) -> Tensor:
    """The last `keep` of the tokens [before; X], without gradient and in storage of their own."""
    own, n = X.detach(), X.shape[-2]
    if before is None or n >= keep:
        return own[..., max(0, n - keep) :, :].clone()
    return torch.cat([before[..., max(0, before.shape[-2] + n - keep) :, :], own], -2)
