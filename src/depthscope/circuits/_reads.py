"""How attention reads the stream and joins it again: the size that the norm divides by, and the factor of the skip."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.weights import looked_at
from depthscope.errors import HookError
from depthscope.traces.look import Span, evaluated
from depthscope.traces.stream import Follow, Passage
from depthscope.traces.untouched import untouched
from depthscope.traces.watch import SUMS


@dataclass
class Reads:
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
class Norm:
    """rate: mean over tokens of 1 / size, where a norm divides by a size; centres: whether it takes the mean of the
    channels away first; error: how much of what attention reads this does not explain, relative."""

    rate: float
    centres: bool
    error: float


def read_reads(model: nn.Module, inputs: Any, blocks: str | Iterable[str] | None = None) -> list[Reads]:
    """What a pass over the first batch shows, block by block in the order in which they run."""
    batch, looked = looked_at(model, inputs, blocks)
    watch = _Watch(model, looked.spans, looked.axis)
    with untouched(model), evaluated(model), torch.no_grad(), watch:
        model(*batch.args, **batch.kwargs)
    return list(watch.seen.values())


class _Watch(Follow):
    """Notes the stream where attention reads it, the sum that attention joins, and what a norm makes of that."""

    def __init__(self, model: nn.Module, spans: list[Span], axis: int) -> None:
        super().__init__(model, spans, self._act)
        self.axis = axis
        self.seen: dict[Passage, Reads] = {}
        self._branch_in: Tensor | None = None
        self._gamma: Tensor | None = None  # of the norm that is running as a function
        self._sum_read: Any = None  # the sum that a norm has read

    def _first(self, tokens: Tensor) -> Tensor:
        return (tokens.transpose(0, 1) if self.axis == 0 else tokens).detach().to(torch.float64, copy=True)

    def _act(self, block: str, site: str, tokens: Tensor) -> Tensor:
        seen = self.seen.setdefault(self.open, Reads())
        if site == "attn_in" and seen.read is None:
            seen.stream, seen.read = self._first(self.open.stream), self._first(tokens)
        elif site == "sa_out":
            self._branch_in = self._first(tokens)
        return tokens

    def _reads(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        now, given = self.open, (*args, *kwargs.values())
        if now is not None and not now.attended and not now.pre_norm and not any(v is now.stream for v in given):
            if any(now.is_stream(v) for v in given):
                raise HookError(
                    f"spectrum: attention must read the stream or a norm of it; block {now.block} hands it a multiple. "
                    "Put that factor into the weights."
                )
        return super()._reads(module, args, kwargs)

    def _join(self, now: Passage, func: Any, args: tuple, kwargs: dict, stands: list[bool]) -> Any:
        x = self._first(now.stream) if now.awaits_branch else None  # a copy: some models add in place
        result = super()._join(now, func, args, kwargs, stands)
        if x is not None and self._branch_in is not None:
            seen = self.seen.setdefault(now, Reads())
            seen.branch = float(kwargs.get("alpha", 1.0)) if stands[0] else 1.0  # alpha is the second operand's
            rest = self._first(result) - seen.branch * self._branch_in
            seen.skip = float(_share(rest, x))
            seen.unexplained = float((rest - seen.skip * x).norm() / rest.norm().clamp(min=1e-300))
            self._branch_in = None
        return result

    def _norm(self, func: Any, args: tuple, kwargs: dict) -> Any:
        weight = args[2] if len(args) > 2 else kwargs.get("weight")
        self._gamma = (torch.ones_like(args[0][0, 0]) if weight is None else weight).detach().double()
        try:
            return super()._norm(func, args, kwargs)
        finally:
            self._gamma = None

    def _normed(self, source: Any, result: Tensor) -> Tensor:
        now = self.open
        if now is not None and now.is_stream(source):
            seen = self.seen.setdefault(now, Reads())
            if not now.attended:
                seen.gamma_in = self._gamma
            elif now.sums and not now.pre_norm and seen.normed is None:
                self._sum_read = source
                seen.summed, seen.normed, seen.gamma_out = self._first(source), self._first(result), self._gamma
        return super()._normed(source, result)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = (*args, *(kwargs or {}).values())
        if self._sum_read is not None and self.open is not None and getattr(func, "__name__", "") in SUMS:
            if any(value is self._sum_read for value in given):
                self.seen[self.open].goes_on = True
        return super().__torch_function__(func, types, args, kwargs)

    def _ends(self, *_: Any) -> None:
        super()._ends()
        self._sum_read = None


def norm_in(stream: Tensor, read: Tensor, gamma: Tensor, mask: Tensor | None = None) -> Norm:
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
        found.append(Norm(float(rate.mean()), centres, float(error)))
    return min(found, key=lambda norm: norm.error)


def _share(whole: Tensor, part: Tensor) -> Tensor:
    """How much of the part is in the whole: the factor of the least square."""
    return (whole * part).sum() / part.square().sum().clamp(min=1e-300)
