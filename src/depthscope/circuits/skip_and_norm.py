"""How attention reads the stream and joins it again: the size that the norm divides by, and the factor of the skip."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.circuits.subject import Subject
from depthscope.circuits.wide import wide
from depthscope.errors import HookError
from depthscope.traces.events import Join, Norm, Passage, StreamListener
from depthscope.traces.operations import Operation


@dataclass
class SkipAndNorm:
    """Of one block, in float64: the stream (B, n, d), what attention reads of it, and the sum skip X + branch SA(X).

    summed, normed: what the first norm behind that sum reads and gives, in post-norm blocks; goes_on: the sum goes on
    beside it, so that the norm is the feed-forward network's (ModernBERT's first block has no other). gamma_in,
    gamma_out (d,): scales of norms that are called as functions, by no module; those of modules are in HeadWeights.
    """

    stream: Tensor | None = None
    read: Tensor | None = None
    skip: float = 1.0
    branch: float = 1.0  # of torch.add(X, SA(X), alpha=branch)
    unexplained: float = 0.0  # how much of the sum is neither the branch nor a multiple of the stream, relative
    summed: Tensor | None = None
    normed: Tensor | None = None
    goes_on: bool = False
    gamma_in: Tensor | None = None
    gamma_out: Tensor | None = None


@dataclass(frozen=True)
class NormFit:
    """rate: mean over tokens of 1 / size, where a norm divides by a size; centres: whether it takes the mean of the
    channels away first; error: how much of what attention reads this does not explain, relative."""

    rate: float
    centres: bool
    error: float


def read_skips_and_norms(subject: Subject) -> list[SkipAndNorm]:
    """What a pass over the batch shows, block by block in the order in which they run."""
    listener = _Reader(subject)
    subject.listen(listener)
    return list(listener.seen.values())


class _Reader(StreamListener):
    """Notes the stream where attention reads it, the sum that attention joins, and what a norm makes of that."""

    def __init__(self, subject: Subject) -> None:
        self.copy = subject.batch_first
        self.seen: dict[Passage, SkipAndNorm] = {}
        self._branch: Tensor | None = None
        self._sum_read: Any = None  # the sum that a norm has read

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self._sum_read = None
        return tokens

    def site(self, now: Passage, name: str, tokens: Tensor) -> Tensor:
        seen = self.seen.setdefault(now, SkipAndNorm())
        if name == "attn_in":
            if not now.pre_norm and tokens is not now.stream:
                raise HookError(
                    f"attention must read the stream or a norm of it; block {now.block} gives it a multiple. "
                    "Put that factor into the weights."
                )
            if seen.read is None:
                seen.stream, seen.read = self.copy(now.stream), self.copy(tokens)
        elif name == "sa_out":
            self._branch = self.copy(tokens)
        return tokens

    def join(self, now: Passage, join: Join) -> Any:
        seen = self.seen.setdefault(now, SkipAndNorm())
        if self._sum_read is not None and any(a is self._sum_read for a in join.pair):
            seen.goes_on = True
        x = self.copy(now.stream) if self._branch is not None else None  # a copy: some models add in place
        result = join.run()
        if x is not None and self._branch is not None:
            seen.branch = join.branch_factor
            rest = self.copy(result) - seen.branch * self._branch
            seen.skip = float(_share(rest, x))
            seen.unexplained = float((rest - seen.skip * x).norm() / rest.norm().clamp(min=1e-300))
            self._branch = None
        return result

    def norm(self, now: Passage, norm: Norm) -> Tensor:
        result = norm.run()
        if now.is_stream(norm.source):
            seen = self.seen.setdefault(now, SkipAndNorm())
            if not now.attended:
                seen.gamma_in = _scale_of(norm)
            elif now.sums and not now.pre_norm and seen.normed is None:
                self._sum_read = norm.source
                seen.summed, seen.normed = self.copy(norm.source), self.copy(result)
                seen.gamma_out = _scale_of(norm)
        return result


def _scale_of(norm: Norm) -> Tensor | None:
    """gamma of a norm that is called as a function; None for a module, whose scale is in HeadWeights."""
    if not isinstance(norm.by, Operation):
        return None
    weight = norm.by.named().get("weight")
    return wide(torch.ones_like(norm.source[0, 0]) if weight is None else weight)


def norm_in(stream: Tensor, read: Tensor, gamma: Tensor, mask: Tensor | None = None) -> NormFit:
    """Which norm makes `read` of the stream: gamma (x - mean) / std (LayerNorm) or gamma x / rms (RMSNorm), + beta.

    stream, read (B, n, d), gamma (d,), mask (B, n): True for tokens. beta is what all tokens have in common. The rate
    is fitted for each token, because beside small tokens the norm's epsilon counts.
    """
    x, y = (stream.flatten(0, 1), read.flatten(0, 1)) if mask is None else (stream[mask], read[mask])
    found = []
    for centres in (True, False):
        kept = x - x.mean(-1, keepdim=True) if centres else x
        along = gamma * kept
        said = along / kept.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-300)
        beta = (y - _share(y - y.mean(0), said - said.mean(0)) * said).mean(0)
        rate = ((y - beta) * along).sum(-1) / along.square().sum(-1).clamp(min=1e-300)  # as it is, with epsilon
        error = (y - beta - rate.unsqueeze(-1) * along).norm() / (y - y.mean(0)).norm().clamp(min=1e-300)
        found.append(NormFit(float(rate.mean()), centres, float(error)))
    return min(found, key=lambda norm: norm.error)


def _share(whole: Tensor, part: Tensor) -> Tensor:
    """How much of the part is in the whole: the factor of the least square."""
    return (whole * part).sum() / part.square().sum().clamp(min=1e-300)
