"""A stream on trial: the model runs as it is, then with some tokens changed where the blocks begin; who moves?

Nothing is read off masks, kernels or names of modules. Both passes begin with the same inputs and the same random
state, so tokens that do not depend on the changed ones come out equal, bit for bit, or but for rounding.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.checks import measurable
from depthscope.traces.caches import is_cache
from depthscope.traces.cut_weights import forward_of
from depthscope.traces.identity import Known
from depthscope.traces.inputs import fresh
from depthscope.traces.operations import Operation
from depthscope.traces.places import called_parts, tokens_gave, tokens_given
from depthscope.traces.slow_path import slow_path
from depthscope.traces.survey import hooks_away
from depthscope.traces.tokens import replaced
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watched, Watcher, unwatched

ROUNDING = 2e-6  # of a token's length: what moves less has not moved; half an eps where that is more (float16)
SHARE = 1e-5  # the same of what attention gives, where the residual stream does not dilute it
HELD = 1 << 27  # numbers of patterns that are held at most
PATTERNS = ("softmax", "exp", "exp_")  # functions that make attention patterns (n, n)
PRODUCTS = ("matmul", "__matmul__", "bmm")  # that bring patterns to the values
HARMLESS = {*PRODUCTS, "einsum", "dropout", "to", "type", "type_as", "float", "half", "bfloat16", "double", "view"}
HARMLESS |= {"reshape", "transpose", "permute", "contiguous", "clone", "detach", "expand", "unsqueeze", "squeeze"}
HARMLESS |= {"unflatten", "flatten", "mT", "__getitem__", "isnan", "any", "all"}

States = list[tuple[str, Tensor]]  # ("stream" or "attention", tokens first)


class Trial:
    """The passes of one sequence. moved(...) says how far tokens move when others are changed.

    parts: the modules that blocks are made of, in order; what they give back is the stream. axis: of the tokens.
    row: the sequence that is looked at, None for all. fix: a remedy that takes part; None for the plain model.
    hold: patterns of attention stay those of the first pass, so that content alone flows.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Iterable[str],
        axis: int,
        args: tuple,
        kwargs: dict[str, Any],
        *,
        row: int | None = None,
        fix: Any = None,
        hold: bool = False,
    ) -> None:
        self.model, self.axis, self.args, self.kwargs = model, axis, args, kwargs
        self.parts = [part for path in blocks for part in called_parts(model, path)]
        self.row, self.fix, self.hold, self.passes = row, fix, hold, 0
        self.tokens: Tensor | None = None  # those that enter the first block
        self.held: list[Tensor] = []
        self.retouched = False  # patterns are changed after the softmax: masked, for example
        self.base = self._run(())

    @property
    def n(self) -> int:
        """How many tokens a sequence has; 0 where no block was given tokens."""
        return 0 if self.tokens is None else self.tokens.shape[self.axis]

    def moved(self, changed: Sequence[int], watched: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """How far each watched token moves, of its length: the stream, what attention gives; the most over all blocks.

        None where the stream is not finite.
        """
        after = self._run(changed)
        rows = torch.as_tensor(list(watched), device=self.base[0][1].device if self.base else None)
        found = {kind: torch.zeros(len(watched), dtype=torch.float64) for kind in ("stream", "attention")}
        for (kind, a), (_, b) in zip(self.base, after, strict=False):
            if a.shape != b.shape:
                continue
            a, b = (x.index_select(0, rows.to(x.device)).flatten(1).cpu().double() for x in (a, b))
            if not bool(a.isfinite().all() and b.isfinite().all()):
                if kind == "stream":
                    return None
                continue
            length = torch.linalg.vector_norm(a, dim=1)
            apart = torch.linalg.vector_norm(a - b, dim=1)
            least = max(1e-3 * float(length.square().mean().sqrt()), 1e-30)
            found[kind] = torch.maximum(found[kind], apart / length.clamp_min(least))
        return found["stream"], found["attention"]

    @property
    def rounding(self) -> float:
        """What the stream may move by and still counts as still."""
        dtype = self.tokens.dtype if self.tokens is not None else torch.float32
        return max(ROUNDING, torch.finfo(dtype).eps / 2 if torch.finfo(dtype).bits < 32 else 0.0)

    def _run(self, changed: Sequence[int]) -> States:
        listener = _Looker(self, changed)
        self.passes += 1
        kept = None if self.fix is None else (lambda hook: getattr(hook, "depthscope_fix", None) is self.fix)
        with ExitStack() as stack:
            for quiet in (untouched(self.model), hooks_away(self.model, kept), unwatched(), torch.no_grad()):
                stack.enter_context(quiet)
            stack.enter_context(slow_path())
            args, kwargs = fresh(*uncached(self.args, self.kwargs))
            stack.enter_context(Watcher(listener))
            (forward_of(self.model) if self.fix is None else self.model)(*args, **kwargs)
        return listener.states


class _Looker:
    """A listener that changes tokens at the first block and keeps what the blocks, and attention, make of them."""

    everything = True

    def __init__(self, trial: Trial, changed: Sequence[int]) -> None:
        self.trial, self.changed = trial, changed
        self.states: States = []
        self.begun, self.square, self.met = False, 0, 0
        self.sources: list[Tensor | None] = []
        self.patterns: Known[bool] = Known()

    def modules(self) -> Iterator[Watched]:
        for part in dict.fromkeys(self.trial.parts):
            module = self.trial.model.get_submodule(part)
            yield Watched(module, before=self._enters, first=True)  # before a remedy at block_in
            yield Watched(module, after=self._leaves)  # after one at block_out

    def closed(self, failed: bool) -> None:
        self.patterns.clear()

    def _enters(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        tokens = tokens_given(module, args, kwargs)
        self.sources.append(tokens)
        if self.begun or tokens is None:
            return None
        self.begun, self.square = True, tokens.shape[self.trial.axis]
        if not self.changed:
            self.trial.tokens = tokens.detach()
            return None
        new = changed_tokens(tokens, self.trial.axis, self.changed)
        self.sources[-1] = new

        return replaced(args, tokens, new), replaced(kwargs, tokens, new)

    def _leaves(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        source = self.sources.pop() if self.sources else None
        found = None if source is None else tokens_gave(module, output, tuple(source.shape))
        axis, row, first = self.trial.axis, self.trial.row, self.trial.tokens
        if found is None or first is None or found.ndim != first.ndim or found.shape[axis] != self.square:
            return
        batch = 1 if axis == 0 else 0
        if row is not None and found.ndim > 2 and found.shape[batch] == first.shape[batch]:
            found = found.narrow(batch, row, 1)
        self.states.append(("stream", found.detach().movedim(axis, 0).clone()))

    def operation(self, op: Operation) -> Any:
        if not self.begun:
            return op.run()
        if op.role == "attention":
            return self._attended(op.run())
        if op.name in PATTERNS:
            return self._pattern(op.run())
        operands = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, Tensor)]
        uses = [self.patterns.find(a) is not None for a in operands]  # asked before it may be written into
        result = op.run()
        if any(uses):
            if op.name in PRODUCTS:
                return self._attended(result) if uses[0] else result
            self.trial.retouched |= op.name not in HARMLESS
            if isinstance(result, Tensor) and self._is_square(result):
                self.patterns.add(result, True)
        return result

    def _is_square(self, result: Tensor) -> bool:
        return result.ndim >= 3 and tuple(result.shape[-2:]) == (self.square, self.square)

    def _pattern(self, result: Any) -> Any:
        """A pattern (n, n): kept in the first pass, and in the place of the new one in the others, where it is held."""
        if not isinstance(result, Tensor) or not self._is_square(result):
            return result
        held, self.met = self.trial.held, self.met + 1
        if self.trial.hold and not self.changed:
            if sum(pattern.numel() for pattern in held) < HELD:
                held.append(result.clone())
        elif self.trial.hold and self.met <= len(held) and held[self.met - 1].shape == result.shape:
            result = held[self.met - 1].clone()
        self.patterns.add(result, True)
        return result

    def _attended(self, result: Any) -> Any:
        """What attention over the whole sequence gives, (..., n, d_h)."""
        first, row = self.trial.tokens, self.trial.row
        if isinstance(result, Tensor) and result.ndim >= 3 and result.shape[-2] == self.square and first is not None:
            found, batch = result.detach(), 1 if first.ndim == 2 else first.shape[1 if self.trial.axis == 0 else 0]
            if row is not None and found.shape[0] % batch == 0:
                found = found.unflatten(0, (batch, -1))[row]
            self.states.append(("attention", found.movedim(-2, 0).clone()))
        return result


def changed_tokens(tokens: Tensor, axis: int, changed: Sequence[int]) -> Tensor:
    """The same with one random vector, of the size that tokens have, in the place of those at `changed`."""
    draw = torch.Generator().manual_seed(18)
    vector = torch.randn(tokens.movedim(axis, 0).shape[-1], generator=draw, dtype=torch.float64)
    size = measurable(tokens).double().square().mean().sqrt()
    size = torch.where(size > 0, size, torch.ones_like(size))
    new = tokens.clone()
    new.movedim(axis, 0)[list(changed)] = (size * vector.to(size)).to(tokens.dtype).to(tokens.device)
    return new


def uncached(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments with copies of the key-value caches among them, which every pass makes longer."""

    def own(value: Any) -> Any:
        return copy.deepcopy(value) if is_cache(value) else value

    return tuple(map(own, args)), {name: own(value) for name, value in kwargs.items()}
