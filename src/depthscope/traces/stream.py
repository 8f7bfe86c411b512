"""Follow the residual stream through the blocks of a running model, and change it at a named site.

The stream starts at the block's input. A sum that has the stream (a norm or a multiple of it) as one operand moves it
on: the first sum after attention is sa_sum, its other operand sa_out, the next sum ffn_sum. A norm of the stream before
attention makes the block pre-norm. No names of modules are needed, and nothing is stored.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depthscope.traces.attention import attention_in, is_mha, mha_body, only_functions
from depthscope.traces.known import is_norm
from depthscope.traces.look import Span
from depthscope.traces.tokens import first_tokens, is_scalar
from depthscope.traces.watch import LINEAR, NORMS, PRODUCTS, SUMS

INNER = ("attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum")
Act = Callable[[str, str, Tensor], Tensor]  # (block, site, tokens) -> tokens


@dataclass(eq=False)
class Passage:
    """One block that is running: its stream, what stands for it, and how far it has come."""

    block: str
    stream: Tensor
    standing: list[Tensor] = field(default_factory=list)
    attentions: int = 1  # how many the block has; the feed-forward network follows the last
    heard: int = 0  # how many of them have run
    pre_norm: bool = False
    matrices: int = 0  # since attention, before the first sum
    sums: int = 0
    entered_ffn: bool = False
    attention_got: list[tuple[Tensor, Tensor]] = field(
        default_factory=list
    )  # what attention was to read, and what it got

    def moves_to(self, stream: Tensor) -> Tensor:
        self.stream, self.standing = stream, []
        return stream

    @property
    def attended(self) -> bool:
        return self.heard > 0

    @property
    def awaits_branch(self) -> bool:
        """Attention is done and has not joined the stream."""
        return self.attended and not self.sums and not self.is_parallel

    @property
    def is_parallel(self) -> bool:
        """Attention and feed-forward network are summed before they join the stream, as in GPT-NeoX."""
        return self.matrices > 1

    def is_stream(self, value: Any) -> bool:
        return value is self.stream or any(value is other for other in self.standing)


class Follow(TorchFunctionMode):
    """While entered, hands the tokens at every inner site of the blocks to `act` and goes on with what it gives."""

    passage = Passage  # what is kept of a block while it runs
    norms_first = False  # whether a scan that watches sees a norm's output as it is after this mode, not before

    def __init__(self, model: nn.Module, spans: list[Span], act: Act) -> None:
        super().__init__()
        self.model, self.spans, self.act = model, spans, act
        self.open: Any = None  # the passage through the block that is running
        self._norms = 0
        self._handles: list[Any] = []

    def __enter__(self) -> "Follow":
        for span in set(self.spans):
            first, last = self.model.get_submodule(span.entry), self.model.get_submodule(span.exit)
            self._handles.append(first.register_forward_pre_hook(self._starts(span), with_kwargs=True))
            self._handles.append(last.register_forward_hook(self._ends, always_call=True))
        inside = {id(m): m for root in self._roots() for m in self.model.get_submodule(root).modules()}
        for module in inside.values():
            if is_norm(module):
                self._handles.append(module.register_forward_pre_hook(self._norm_starts))
                ends = module.register_forward_hook(self._norm_ends, with_kwargs=True, prepend=self.norms_first)
                self._handles.append(ends)
            elif isinstance(module, nn.MultiheadAttention) or next(module.children(), None) is None:
                self._handles.append(module.register_forward_pre_hook(self._reads, with_kwargs=True))
        super().__enter__()
        return self

    def _roots(self) -> set[str]:
        """The modules that hold all of a block: the block, or what its first and last module have above them."""
        return {span.entry if span.entry == span.exit else _above(span.entry, span.exit) for span in self.spans}

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.open, self._norms = None, 0

    # modules

    def _starts(self, span: Span) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple, kwargs: dict) -> None:
            tokens = first_tokens(args, kwargs)
            self.open = None if tokens is None else self.passage(span.block, tokens, attentions=span.attentions or 1)

        return hook

    def _ends(self, *_: Any) -> None:
        self.open = None

    def _norm_starts(self, *_: Any) -> None:
        self._norms += 1

    def _norm_ends(self, _: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        self._norms -= 1
        source = first_tokens(args, kwargs)
        return None if self._norms or not isinstance(output, Tensor) else self._normed(source, output)

    def _reads(self, _: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """A matrix that reads the stream itself before attention: in post-norm blocks this is attention's input."""
        now = self.open
        if now is None or now.attended or now.pre_norm or not any(now.is_stream(v) for v in (*args, *kwargs.values())):
            return None
        return tuple(self._read(now, v) for v in args), {k: self._read(now, v) for k, v in kwargs.items()}

    def _read(self, now: Passage, value: Any) -> Any:
        """What attention reads in place of the stream, or of a multiple of it; queries, keys and values the same."""
        if not now.is_stream(value):
            return value
        known = next((new for old, new in now.attention_got if old is value), None)
        if known is None:
            known = self.act(now.block, "attn_in", value)
            now.attention_got.append((value, known))
        return known

    # functions

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if is_mha(func):
            with only_functions(self):
                return mha_body(func)(*args, **kwargs)
        name = getattr(func, "__name__", "")
        now = self.open
        if now is None:
            return func(*args, **kwargs)
        if name in SUMS or name in PRODUCTS:
            args, kwargs = by_place(args, kwargs)
        stands = [now.is_stream(a) for a in args[:2]] if name in SUMS or name in PRODUCTS else []
        if name in SUMS and any(stands):
            return self._join(now, func, args, kwargs, stands)
        if name in NORMS and not self._norms:
            return self._norm(func, args, kwargs)
        result = func(*args, **kwargs)
        if name in PRODUCTS:
            if any(stands) and any(is_scalar(a) for a in args[:2]):
                now.standing.append(result)
        elif attention_in(func, name, args, kwargs, result) is not None:
            now.heard += 1
        elif name in LINEAR and now.attended and not now.sums:
            now.matrices += 1
        return result

    def _join(self, now: Passage, func: Any, args: tuple, kwargs: dict, stands: list[bool]) -> Any:
        """A sum that has the stream as one operand. stands: which operands are the stream."""
        before = args[:2]
        if now.awaits_branch and stands.count(True) == 1:
            args = (*(a if s else self._branch(now, a) for a, s in zip(before, stands, strict=True)), *args[2:])
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or not all(isinstance(a, Tensor) and a.shape == result.shape for a in before):
            return result
        return self._summed(now, result, in_place=is_in_place(func))

    def _norm(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """A norm that is called as a function, by no module that is one."""
        return self._normed(args[0], func(*args, **kwargs))

    def _branch(self, now: Passage, branch: Any) -> Any:
        """What attention gives back, when it is about to join the stream."""
        tokens = isinstance(branch, Tensor) and branch.shape == now.stream.shape
        return self.act(now.block, "sa_out", branch) if tokens else branch

    def _summed(self, now: Passage, result: Tensor, *, in_place: bool) -> Tensor:
        if not now.attended:
            return now.moves_to(result)
        now.sums += 1
        new = result
        if now.is_parallel:  # X + SA(X) + FFN(X) has one sum, and no stream between the two
            return now.moves_to(new)
        if now.sums == 1:
            new = self.act(now.block, "sa_sum", new)
        if now.sums == now.attentions and now.pre_norm:  # what the feed-forward network's norm reads, residual included
            new, now.entered_ffn = self.act(now.block, "ffn_in", new), True
        elif now.sums == now.attentions + 1:
            new = self.act(now.block, "ffn_sum", new)
        if in_place and new is not result:
            new = result.copy_(new)
        return now.moves_to(new)

    def _normed(self, source: Any, result: Tensor) -> Tensor:
        now = self.open
        if now is None or not now.is_stream(source):
            return result
        if not now.attended:
            now.pre_norm = True
            result = self.act(now.block, "attn_in", result)
            now.standing.append(result)
            return result
        if (
            now.sums == now.attentions and not now.entered_ffn and not now.is_parallel
        ):  # post-norm: the norm's output is the stream
            now.entered_ffn = True
            return now.moves_to(self.act(now.block, "ffn_in", result))
        now.standing.append(result)
        return result


def by_place(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of a sum or product with both operands in args, as in torch.add(a, other=b)."""
    named = [name for name in ("input", "other") if name in kwargs]
    rest = {name: value for name, value in kwargs.items() if name not in named}
    return (*args, *(kwargs[name] for name in named)), rest


def is_in_place(func: Any) -> bool:
    """Whether a sum is written into its first operand."""
    return getattr(func, "__name__", "") in ("add_", "__iadd__")


def _above(one: str, other: str) -> str:
    """The path that two paths share."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return ".".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
