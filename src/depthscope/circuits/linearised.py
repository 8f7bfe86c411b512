"""A whole model as a sum over path lengths: every norm and activation held as it was, nothing left out.

With attention, norms and activations frozen (frozen.py) the model is affine in the tokens X that enter block 1. It is
run once from zeros, which gives what its biases make, then once for each path length k = 0 .. L. At the place where
attention joins the stream, the run for length k takes the branch of the run for length k - 1, and the run for length 0
that of the biases alone; so each run less that of the biases is the sum over all paths through exactly k attentions.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from depthscope.circuits.frozen import Frozen
from depthscope.circuits.join_factors import check_finite
from depthscope.circuits.subject import Subject
from depthscope.errors import HookError
from depthscope.traces.attention import attention_in
from depthscope.traces.events import Passage, StreamListener
from depthscope.traces.operations import Operation
from depthscope.traces.tokens import replaced
from depthscope.traces.watcher import Watcher

NUDGE = 0.01  # of the tokens' size, for the response


@dataclass(frozen=True, eq=False)
class Linearised:
    """output (B, n, d) of the last block = constant + the sum of parts (L + 1, B, n, d), float64.

    constant: all that does not come from the tokens that enter block 1, biases mostly. error: |constant + sum of parts
    - output| / |output|, rounding alone. uncounted: how much joins the stream as attention and is none, or went through
    an attention that joins elsewhere, relative. response_error: by how much the frozen model misses the change of the
    output when the tokens that enter are nudged by 1%, relative to that change.
    """

    X: Tensor
    output: Tensor
    constant: Tensor
    parts: Tensor
    heads: list[int]
    dtype: torch.dtype  # in which the model ran
    error: float
    uncounted: float
    response_error: float


def linearise(subject: Subject, *, line: str = "secant") -> Linearised:
    """Run a model L + 7 times, frozen at its own values on this batch. line: of the activations, secant or tangent."""
    runs = _Runs(subject, line)
    output = runs.true(None)
    check_finite(output, f"the last block of {subject.name}")
    X = runs.entered
    constant, joined = runs.frozen(torch.zeros_like(X), None)
    parts, before = [], joined
    for k in range(len(joined) + 1):
        part, before = runs.frozen(X if k == 0 else torch.zeros_like(X), before)
        parts.append(part - constant)
    total = constant + sum(parts)
    X_near = X + NUDGE * X.square().mean().sqrt() * _noise(X)
    change = runs.true(X_near) - output
    missed = runs.frozen(X_near, None)[0] - output - change
    return Linearised(
        subject.batch_first(X),
        output,
        constant,
        torch.stack(parts),
        runs.heads,
        X.dtype,
        _size(total - output) / _size(output),
        _uncounted(runs, X, joined, parts[0], output),
        _size(missed) / _size(change),
    )


def _uncounted(runs: "_Runs", X: Tensor, joined: list[Tensor], skipped: Tensor, output: Tensor) -> float:
    """With attention silent, no token may reach what joins as attention, and paths of length 0 must stay the same."""
    (left, branches), (left_0, branches_0) = (
        runs.frozen(start, joined, silent=True) for start in (X, torch.zeros_like(X))
    )
    others = [
        _size(one - other) / max(_size(true), 1e-300)
        for one, other, true in zip(branches, branches_0, runs.branches, strict=True)
    ]
    return max(*others, _size(left - left_0 - skipped) / _size(output))


def _noise(X: Tensor) -> Tensor:
    return torch.randn(X.shape, generator=torch.Generator().manual_seed(0)).to(X)


def _size(X: Tensor) -> float:
    return float(X.norm())


class _Runs:
    """Passes of one model over one batch; the first is recorded, those called frozen follow the record."""

    def __init__(self, subject: Subject, line: str) -> None:
        self.subject = subject
        self.freeze = Frozen(subject.model, line, lambda: self._rows is not None and self._rows.open is not None)
        self._rows: _Rows | None = None
        self.entered = torch.empty(0)
        self.heads: list[int] = []
        self.branches: list[Tensor] = []  # what attention gave, unfrozen

    def true(self, start: Tensor | None) -> Tensor:
        """What the last block gives, in float64; the first time it is recorded."""
        record = start is None
        rows = self._run(start, None, frozen=record)
        if record:
            self.entered, self.heads, self.branches = rows.entered, rows.heads, rows.joined
            if not rows.joined or not len(rows.joined) == len(rows.heads) == rows.calls:
                raise HookError(
                    f"attention must join a residual stream in every block; in {self.subject.name} it "
                    f"was seen to in {len(rows.joined)} of {rows.calls}. Where attention and feed-forward network are "
                    "parallel, a skip connection is missing or more than a number scales it, lengths cannot be told."
                )
        return self.subject.batch_first(rows.left)

    def frozen(self, start: Tensor, joins: list[Tensor] | None, *, silent: bool = False) -> tuple[Tensor, list[Tensor]]:
        """What the last block gives from other tokens, and what attention gave in each block.

        joins: what joins the stream in the place of attention; attention itself when None. silent: attention gives 0.
        """
        self.freeze.again(silent=silent)
        rows = self._run(start, joins, frozen=True)
        if len(rows.joined) != len(self.heads):
            raise HookError(
                f"attention must join the residual stream in all {len(self.heads)} blocks every time; it did so "
                f"in {len(rows.joined)} when {self.subject.name} ran from other tokens. Use form='attention'."
            )
        return self.subject.batch_first(rows.left), rows.joined

    def _run(self, start: Tensor | None, joins: list[Tensor] | None, *, frozen: bool) -> "_Rows":
        rows = self._rows = _Rows(start, joins)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())  # tokens of the user's own are put back
            stack.callback(rows.put_back)
            if frozen:  # first, so that it is asked last: attention is seen before it is replaced
                stack.enter_context(Watcher(self.freeze))
            self.subject.listen(rows)
        return rows


class _Rows(StreamListener):
    """One pass from chosen tokens on, with a chosen branch at every join."""

    def __init__(self, start: Tensor | None, joins: list[Tensor] | None) -> None:
        self.start, self.joins = start, joins
        self.joined: list[Tensor] = []  # what attention gave
        self.heads: list[int] = []
        self.calls = 0
        self.written: Tensor | None = None
        self.old: Tensor | None = None  # the tokens that would have entered, for which `new` stands wherever they are
        self.new: Tensor | None = None
        self.entered = self.left = torch.empty(0)

    @property
    def hears_everything(self) -> bool:  # type: ignore[override]
        """Later blocks may read the tokens that entered too."""
        return self.old is not None

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            return tokens if self.old is None or self.new is None else replaced(tokens, self.old, self.new)
        self.entered = tokens.detach().clone()
        if self.start is None:
            return tokens
        if now.span.entry != now.span.exit:  # whoever calls the parts of this block holds the tokens too
            self.written = tokens
            return tokens.copy_(self.start)
        self.old, self.new = tokens, self.start.clone()
        return self.new

    def before(self, now: Passage | None, op: Operation) -> Operation:
        if self.old is None or self.new is None:
            return op
        args, kwargs = (replaced(value, self.old, self.new) for value in (op.args, op.kwargs))
        return Operation(op.func, op.name, op.role, args, kwargs)

    def attention(self, now: Passage, op: Operation, result: Tensor) -> Tensor:
        seen = attention_in(op, result) if now.heard == 1 else None
        batch = None if seen is None else seen.batch_for(now.stream)
        if seen is not None and batch is not None:
            shown = seen.folded(batch)
            self.heads.append((shown.q if shown.P is None else shown.P).shape[1])  # type: ignore[union-attr]
        return result

    def site(self, now: Passage, name: str, tokens: Tensor) -> Tensor:
        if name != "sa_out":
            return tokens
        self.joined.append(tokens.detach().clone())
        return tokens if self.joins is None else self.joins[len(self.joined) - 1].clone()

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        if tokens is not None and tokens.shape == self.entered.shape:
            self.left = tokens.detach().clone()

    def put_back(self) -> None:
        """Tokens that were written into may be the user's own."""
        if self.written is not None:
            self.written.copy_(self.entered)
