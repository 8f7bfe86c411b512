"""The follower of the residual stream: it goes through the blocks of a running model and tells a listener.

The stream starts at the block's input. A sum that has the stream (a norm or a multiple of it) as one operand moves it
on: the first sum after attention is sa_sum, its other operand sa_out, the next sum ffn_sum. A norm of the stream before
attention makes the block pre-norm. No names of modules are needed, and nothing is stored.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.traces.attention import attention_in
from depthscope.traces.events import Join, Norm, Passage, StreamListener
from depthscope.traces.lineage import Lineage
from depthscope.traces.operations import PAIRS, PRODUCTS, Operation, is_norm, is_scalar
from depthscope.traces.places import tokens_gave, tokens_given
from depthscope.traces.spans import Span
from depthscope.traces.tokens import first_tokens, replaced
from depthscope.traces.watcher import OuterNorms, Watched, Watcher

INNER = ("attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum")


def following(
    model: nn.Module, spans: list[Span], listener: StreamListener, running: nn.Module | None = None
) -> Watcher:
    """While entered, the listener hears what happens to the stream in the blocks of the model.

    running: the block that has been called already, where one is.
    """
    return Watcher(Follower(model, spans, listener), running)


class Follower:
    """A listener of operations that speaks of streams: it knows the blocks, and where each of them has got to."""

    def __init__(self, model: nn.Module, spans: list[Span], listener: StreamListener) -> None:
        self.model, self.spans, self.listener = model, spans, listener
        self._norms = OuterNorms(self._norm_ends)
        self._lineage = Lineage()
        self._begun: Counter[str] = Counter()  # by the module that blocks are entered by
        self._joined = 0  # sums with the stream in the block that is open
        self._awaited: int | None = None  # how many of them are to come, once its last module has left

    @property
    def everything(self) -> bool:
        """On the way from attention to the stream, and where the listener wants to hear all."""
        return self.listener.hears_everything or self._lineage.active

    def modules(self) -> Iterable[Watched]:
        entered: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            entered[span.entry].append(span)
        for entry, spans in entered.items():
            yield Watched(self.model.get_submodule(entry), before=self._begins(entry, spans))
        for path in {span.exit for span in self.spans if span.exit is not None}:
            yield Watched(self.model.get_submodule(path), after=self._ends, always=True)
        inside = {id(m): m for root in self._roots() for m in self.model.get_submodule(root).modules()}
        whole = [self.model.get_submodule(span.entry) for span in self.spans if span.entry == span.exit]
        for module in (m for m in inside.values() if m not in whole):  # a block is not what reads its own input
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks of this kind
            if is_norm(module):
                yield self._norms.watched(module, first=self.listener.norms_first)
            elif isinstance(module, nn.MultiheadAttention) or _may_read(module):
                yield Watched(module, before=self._reads)
        for path in {span.last for span in self.spans if span.exit is None and span.last}:  # after hooks of norms
            yield Watched(self.model.get_submodule(path), after=self._last_left(path))

    def _roots(self) -> set[str]:
        """The modules that hold all of a block: the block, or what its first and last module have above them."""
        return {span.entry if span.entry == span.exit else _above(span.entry, span.exit or "") for span in self.spans}

    def closed(self, failed: bool) -> None:
        self._norms.open = 0
        now = self.listener.open
        known = now is not None and not failed and not _steps(now.span)
        self._leaves_open(now.stream if now is not None and known else None)
        self.listener.open = None
        self._lineage.end()
        self._begun.clear()

    # modules

    def _begins(self, entry: str, spans: list[Span]) -> Callable[..., Any]:
        """spans: those that are entered by this module, in the order in which they run."""

        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            now = self.listener.open
            if now is not None and now.span.entry == entry and self._joined < now.span.joins:
                return None  # a module that serves its block again
            tokens = tokens_given(module, args, kwargs)
            self._leaves_open(tokens if now is None or tokens is None or _steps(now.span) else now.stream)
            self.listener.open = None
            self._lineage.end()
            if tokens is None:
                return None
            passage = Passage(spans[min(self._begun[entry], len(spans) - 1)], tokens)
            self._begun[entry] += 1
            self._joined, self._awaited = 0, None
            new = self.listener.begins(passage, tokens)
            passage.stream = new
            self.listener.open = passage
            if new is tokens:
                return None
            return replaced(args, tokens, new), replaced(kwargs, tokens, new)

        return hook

    def _ends(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        now = self.listener.open
        if now is not None:
            self.listener.ends(now, None if output is None else tokens_gave(module, output, now.shape))
        self.listener.open = None

    def _leaves_open(self, tokens: Tensor | None) -> None:
        """A block that is no module ends with its last sum, or the norm of it, at the latest where the next begins."""
        now = self.listener.open
        if now is not None and now.span.exit is None:
            self.listener.open = None
            self._lineage.end()
            same = tokens is not None and tuple(tokens.shape) == now.shape
            self.listener.ends(now, tokens if same else None)

    def _last_left(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            now = self.listener.open
            if now is None or now.span.last != path or self._joined < now.span.joins - now.span.sums:
                return
            self._awaited = now.span.sums
            if not now.span.sums:
                self._leaves_open(tokens_gave(module, output, now.shape))

        return hook

    def _one_joined(self, now: Passage) -> None:
        self._joined += 1
        if self._awaited is not None:
            self._awaited -= 1
            if self._awaited == 0 and not _steps(now.span):
                self._leaves_open(now.stream)

    def _norm_ends(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        if self.listener.open is None or not isinstance(output, Tensor):
            return None
        return self._normed(Norm(first_tokens(args, kwargs), module, lambda: output))

    def _reads(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """A matrix that reads the stream itself before attention: in post-norm blocks this is attention's input."""
        now = self.listener.open
        if now is None or not any(now.is_stream(v) for v in (*args, *kwargs.values())):
            return None
        now.read_at = now.moves
        self.listener.reads(now)
        if now.attended or now.pre_norm:
            return None
        return tuple(self._read(now, v) for v in args), {k: self._read(now, v) for k, v in kwargs.items()}

    def _read(self, now: Passage, value: Any) -> Any:
        """What attention reads in place of the stream, or of a multiple of it; queries, keys and values the same."""
        if not now.is_stream(value):
            return value
        known = next((new for old, new in now.attention_got if old is value), None)
        if known is None:
            known = self.listener.site(now, "attn_in", value)
            now.attention_got.append((value, known))
        return known

    # functions

    def operation(self, op: Operation) -> Any:
        now = self.listener.open
        op = self.listener.before(now, op)
        if now is None:
            return op.run()
        if op.role in PAIRS:
            return self._pair(now, op)
        if any(map(now.is_stream, op.args)):
            now.read_at = now.moves
        if op.role == "norm" and not self._norms.open:
            return self._normed(Norm(op.named().get("input"), op, op.run))
        made = self._lineage.asked(op)
        result = self.listener.operation(now, op)
        if op.role in ("attention", "softmax") and attention_in(op, result) is not None:
            now.heard, now.matrices, now.awaits_values = now.heard + 1, 0, op.role == "softmax"
            result = self.listener.attention(now, op, result)
            self._lineage.begin(result)
        elif now.awaits_values:  # a product with weights mixes heads
            now.awaits_values = not (any(made) and op.name in PRODUCTS and op.role is None)
        elif op.role == "matrix" and now.attended and not now.sums:
            now.matrices += 1
        self._trace(now, op, result, made)
        return result

    def _trace(self, now: Passage, op: Operation, result: Any, made: tuple[bool, ...]) -> None:
        if made:
            self._lineage.follow(op, result, made)
            now.joint |= self._lineage.mixed and not now.sums

    def _pair(self, now: Passage, op: Operation) -> Any:
        stands = [now.is_stream(a) for a in op.args[:2]]
        if op.role == "sum" and any(stands):
            return self._join(now, op, stands)
        made = self._lineage.asked(op)
        result = self.listener.operation(now, op)
        if op.role == "product" and any(stands):
            if any(map(is_scalar, op.args[:2])):
                now.standing.append(result)
            else:
                self._lineage.know_stream(result)  # weighed by channel, as Admin's skip: no branch, whatever it is
        self._trace(now, op, result, made)
        return result

    def _join(self, now: Passage, op: Operation, stands: list[bool]) -> Any:
        """A sum that has the stream as one operand. stands: which operands are the stream."""
        before = op.args[:2]
        attended = any(map(self._lineage.made, before))
        if attended:
            now.attention_joins()
        if now.awaits_branch and stands.count(True) == 1:
            op = op.with_args(*(a if s else self._branch(now, a) for a, s in zip(before, stands, strict=True)))
        result = self.listener.join(now, Join(op, stands))
        if not isinstance(result, Tensor) or not all(isinstance(a, Tensor) and a.shape == result.shape for a in before):
            return result
        if attended:
            now.late |= now.sums >= now.heard  # something else has joined between this attention and here
            self._lineage.end()
        new = self._summed(now, result, in_place=op.in_place)
        self._one_joined(now)
        return new

    def _branch(self, now: Passage, branch: Any) -> Any:
        """What attention gives back, when it is about to join the stream."""
        tokens = isinstance(branch, Tensor) and branch.shape == now.stream.shape
        return self.listener.site(now, "sa_out", branch) if tokens else branch

    def _summed(self, now: Passage, result: Tensor, *, in_place: bool) -> Tensor:
        if not now.attended:
            return now.moves_to(result)
        now.aside |= now.sums == now.attentions and now.read_at != now.moves
        now.sums += 1
        new = result
        if now.is_parallel:  # X + SA(X) + FFN(X) has one sum, and no stream between the two
            return now.moves_to(new)
        if now.sums == 1:
            new = self.listener.site(now, "sa_sum", new)
        if now.sums == now.attentions and now.pre_norm:  # what the feed-forward network's norm reads, residual included
            new, now.entered_ffn = self.listener.site(now, "ffn_in", new), True
        elif now.sums == now.attentions + 1:
            new = self.listener.site(now, "ffn_sum", new)
        if in_place and new is not result:
            new = result.copy_(new)
        return now.moves_to(new)

    def _normed(self, norm: Norm) -> Any:
        now = self.listener.open
        assert now is not None
        result = self.listener.norm(now, norm)
        if not now.is_stream(norm.source):
            return result
        now.norms, now.read_at = now.norms + 1, now.moves
        if not now.attended:
            now.pre_norm, now.norms_before = True, now.norms_before + 1
            result = self.listener.site(now, "attn_in", result)
            now.standing.append(result)
            return result
        if now.sums == now.attentions and not now.entered_ffn and not now.is_parallel:
            # post-norm: the norm's output is the stream; a first block may be pre-norm and have no norm before
            # attention, as ModernBERT's, so that the sum itself may still come back as the stream
            now.entered_ffn, before = True, now.stream
            new = now.moves_to(self.listener.site(now, "ffn_in", result))
            now.standing.append(before)
            return new
        now.standing.append(result)
        return result


def _steps(span: Span) -> bool:
    """Whether a block that is no module ends with something that acts on its last sum."""
    return span.ending is not None and bool(span.ending.steps)


def _may_read(module: nn.Module) -> bool:
    """A module without children that multiplies by weights, or has none; with scalars alone it is a wiring."""
    sizes = [p.ndim for p in module.parameters()]
    return next(module.children(), None) is None and (not sizes or max(sizes) > 1)


def _above(one: str, other: str) -> str:
    """The path that two paths share."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return ".".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
