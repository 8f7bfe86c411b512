"""A whole model as a sum over path lengths: every norm and activation held as it was, nothing left out.

With attention, norms and activations frozen (_frozen.py) the model is affine in the tokens X that enter block 1. It is
run once from zeros, which gives what its biases make, then once for each path length k = 0 .. L. At the place where
attention joins the stream, the run for length k takes the branch of the run for length k - 1, and the run for length 0
that of the biases alone; so each run less that of the biases is the sum over all paths through exactly k attentions.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits._frozen import Frozen
from depthscope.circuits._joins import check_finite
from depthscope.errors import HookError
from depthscope.traces.attention import attention_in
from depthscope.traces.inputs import Batch
from depthscope.traces.look import Looked, Span, evaluated
from depthscope.traces.stream import Follow
from depthscope.traces.tokens import first_tokens, tokens_out
from depthscope.traces.untouched import untouched

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


def linearise(model: nn.Module, batch: Batch, looked: Looked, *, line: str = "secant") -> Linearised:
    """Run a model L + 7 times, frozen at its own values on this batch. line: of the activations, secant or tangent."""
    runs = _Runs(model, batch, looked, line)
    output = runs.true(None)
    check_finite(output, f"the last block of {type(model).__name__}")
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
        runs.first(X),
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

    def __init__(self, model: nn.Module, batch: Batch, looked: Looked, line: str) -> None:
        self.model, self.batch, self.looked = model, batch, looked
        self.freeze = Frozen(line, lambda: self._rows is not None and self._rows.open is not None)
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
                    f"paths: attention must join a residual stream in every block; in {type(self.model).__name__} it "
                    f"was seen to in {len(rows.joined)} of {rows.calls}. Where attention and feed-forward network are "
                    "parallel, a skip connection is missing or more than a number scales it, lengths cannot be told."
                )
        return self.first(rows.left)

    def frozen(self, start: Tensor, joins: list[Tensor] | None, *, silent: bool = False) -> tuple[Tensor, list[Tensor]]:
        """What the last block gives from other tokens, and what attention gave in each block.

        joins: what joins the stream in the place of attention; attention itself when None. silent: attention gives 0.
        """
        self.freeze.again(silent=silent)
        rows = self._run(start, joins, frozen=True)
        if len(rows.joined) != len(self.heads):
            raise HookError(
                f"paths: attention must join the residual stream in all {len(self.heads)} blocks every time; it did so "
                f"in {len(rows.joined)} when {type(self.model).__name__} ran from other tokens. Use form='attention'."
            )
        return self.first(rows.left), rows.joined

    def first(self, tokens: Tensor) -> Tensor:
        """Batch first, float64."""
        return (tokens.transpose(0, 1) if self.looked.axis == 0 else tokens).double()

    def _run(self, start: Tensor | None, joins: list[Tensor] | None, *, frozen: bool) -> "_Rows":
        rows = self._rows = _Rows(self.model, self.looked.spans, start, joins)
        with ExitStack() as stack:
            for context in (untouched(self.model), evaluated(self.model), torch.no_grad()):
                stack.enter_context(context)
            if frozen:
                stack.enter_context(self.freeze)
                for handle in self.freeze.hooks_on(self.model):
                    stack.callback(handle.remove)
            stack.enter_context(rows)  # last, so that it is asked first and sees attention before it is replaced
            self.model(*self.batch.args, **self.batch.kwargs)
        return rows


class _Rows(Follow):
    """One pass from chosen tokens on, with a chosen branch at every join."""

    def __init__(self, model: nn.Module, spans: list[Span], start: Tensor | None, joins: list[Tensor] | None) -> None:
        super().__init__(model, spans, self._act)
        self.start, self.joins = start, joins
        self.joined: list[Tensor] = []  # what attention gave
        self.heads: list[int] = []
        self.calls = 0
        self.written: Tensor | None = None
        self.replaced: tuple[Tensor, Tensor] | None = None  # the tokens that would have entered, and those that did
        self.entered = self.left = torch.empty(0)

    def __enter__(self) -> "_Rows":
        super().__enter__()
        for span in set(self.spans):
            self._handles.append(self.model.get_submodule(span.exit).register_forward_hook(self._leaves))
        return self

    def _starts(self, span: Span) -> Callable[..., Any]:
        begin = super()._starts(span)

        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            tokens = first_tokens(args, kwargs)
            if tokens is not None:
                self.calls += 1
                if self.calls == 1:
                    self.entered = tokens.detach().clone()
                    args, kwargs = self._started(span, tokens, args, kwargs)
            begin(module, args, kwargs)
            return args, kwargs

        return hook

    def _started(self, span: Span, tokens: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if self.start is None:
            return args, kwargs
        if span.entry != span.exit:  # whoever calls the parts of this block holds the tokens too: write into them
            self.written = tokens
            tokens.copy_(self.start)
            return args, kwargs
        self.replaced = (tokens, self.start.clone())
        return self._others(args), self._others(kwargs)

    def _others(self, value: Any) -> Any:
        """The same arguments with the tokens replaced; later blocks may read them too."""
        if self.replaced is not None and value is self.replaced[0]:
            return self.replaced[1]
        if isinstance(value, dict):
            return {name: self._others(one) for name, one in value.items()}
        return type(value)(self._others(one) for one in value) if type(value) in (tuple, list) else value

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.written is not None:  # it may be the user's own tensor
            self.written.copy_(self.entered)

    def _leaves(self, _: nn.Module, args: tuple, output: Any) -> None:
        tokens = tokens_out(output, tuple(self.entered.shape))
        if tokens is not None:
            self.left = tokens.detach().clone()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self.replaced is not None:
            args, kwargs = self._others(args), self._others(kwargs or {})
        now, before = self.open, self.open is not None and self.open.attended
        result = super().__torch_function__(func, types, args, kwargs)
        if now is not None and now.attended and not before:
            seen = attention_in(func, getattr(func, "__name__", ""), args, kwargs or {}, result)
            batch = None if seen is None else seen.batch_for(now.stream)
            if seen is not None and batch is not None:
                shown = seen.folded(batch)
                self.heads.append((shown.q if shown.P is None else shown.P).shape[1])  # type: ignore[union-attr]
        return result

    def _act(self, block: str, site: str, tokens: Tensor) -> Tensor:
        if site != "sa_out":
            return tokens
        self.joined.append(tokens.detach().clone())
        return tokens if self.joins is None else self.joins[len(self.joined) - 1].clone()
