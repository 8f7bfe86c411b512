"""One forward pass, watched: which modules ran, which token tensors they handed on, every attention.

Each tensor worth measuring is given to a callback the moment it is seen and then let go, so a watch keeps numbers and
no activations. What is a block is decided afterwards, from the log (blocks.py, steps.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depthscope.traces.attention import (
    DROPOUTS,
    AttentionSeen,
    attention_in,
    drops,
    is_mha,
    mha_body,
    only_functions,
    without_dropout,
)
from depthscope.traces.head import watch_reads
from depthscope.traces.known import Known, is_norm
from depthscope.traces.log import Add, Attention, Call, Log, State
from depthscope.traces.tokens import Frames, first_tokens, is_scalar, tokens_last, tokens_out

SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
PRODUCTS = {"mul", "mul_", "__mul__", "__rmul__"}
LINEAR = {"linear", "addmm"}
NORMS = {"layer_norm", "rms_norm"}

MeasureState = Callable[[Tensor, Any, bool], Any]  # tokens (..., n, d), numbers so far, at a block's end? -> numbers
MeasureAttention = Callable[[AttentionSeen, Tensor | None], Any]  # the attention, the tokens (B, n, d) it reads


class Watch(TorchFunctionMode):
    """Hooks on every module and eyes on every torch function, for one forward pass."""

    def __init__(
        self,
        model: nn.Module,
        candidates: set[str],
        on_state: MeasureState,
        on_attention: MeasureAttention,
        *,
        frames: Frames | None = None,
        silence_dropout: bool = False,
        on_call: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.candidates = model, candidates
        self.on_state, self.on_attention = on_state, on_attention
        self.silence_dropout, self.on_call = silence_dropout, on_call
        self.log = Log(frames=Frames() if frames is None else frames)
        self._clock = 0
        self._stack: list[Call] = []
        self._norms_open = 0
        self._known = Known()
        self._waiting: list[tuple[Tensor, Tensor, State, bool]] = []
        self._latest: Tensor | None = None
        self._bias = 0.0
        self._handles: list[Any] = []
        self._followed: list[Any] = []  # hooks on tensors, for their gradients; they outlive the forward pass

    def __enter__(self) -> "Watch":
        try:
            self._hook_modules()
        except BaseException:
            self.remove_hooks()
            raise
        super().__enter__()
        return self

    def _hook_modules(self) -> None:
        for path, module in self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks of this kind
            self._handles.append(module.register_forward_pre_hook(self._before(path, module), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after(path, module), with_kwargs=True))
            self._handles += watch_reads(path, module, self.log, self._tick)

    def remove_hooks(self) -> None:
        """Take all hooks off modules and tensors."""
        for handle in (*self._handles, *self._followed):
            handle.remove()
        self._handles.clear()
        self._followed.clear()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if error[0] is None:
            self._settle(assume=not self.log.frames)
        self._known.clear()
        self._waiting.clear()
        self._latest = None

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    @property
    def _path(self) -> str:
        return self._stack[-1].path if self._stack else ""

    @property
    def _between(self) -> bool:
        """Outside every call that may be a block: what passes here may be the state between two blocks."""
        return not any(call.path in self.candidates for call in self._stack)

    # modules

    def _before(self, path: str, module: nn.Module) -> Callable[..., None]:
        norm, candidate = is_norm(module), path in self.candidates

        def hook(_: nn.Module, args: tuple, kwargs: dict) -> None:
            call = Call(path, self._tick())
            if candidate or (norm and not self._norms_open):
                tokens = first_tokens(args, kwargs)
                if tokens is not None and (candidate or self._is_stream(tokens)):
                    whole = candidate or self._between
                    call.leads = whole or self._known.find(tokens) is not None  # a norm of something else is no stream
                    call.source = self._see(tokens, path, whole=whole, leads=call.leads)
            self._norms_open += norm
            self._stack.append(call)

        return hook

    def _after(self, path: str, module: nn.Module) -> Callable[..., None]:
        norm, candidate = is_norm(module), path in self.candidates
        leaf = next(module.children(), None) is None
        weighs = leaf and any(p.ndim >= 2 for p in module.parameters())

        def hook(_: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            call = self._stack.pop()
            while call.path != path:  # an inner module raised and its caller went on
                call = self._stack.pop()
            self._norms_open -= norm
            call.left = self._tick()
            if weighs:
                self.log.weights.append((call.left, path))
            if not leaf:
                self.log.repeats[path] = self.log.repeats.get(path, 0) + 1
            tokens = tokens_out(output, call.source.shape) if call.source is not None else None
            if tokens is not None:
                call.result = self._see(tokens, path, whole=candidate or self._between, leads=call.leads)
                self._bias = 0.0 if norm else self._bias
                (self.log.calls if candidate else self.log.norms).append(call)
                if candidate and self.on_call is not None:
                    self.on_call(len(self.log.calls))
            if candidate and self._between:
                self._settle(assume=not self.log.frames)

        return hook

    def _is_stream(self, tokens: Tensor) -> bool:
        """Whether a norm works on the tokens of the block around it, not on queries and keys."""
        for call in reversed(self._stack):
            if call.source is not None and call.path in self.candidates:
                return tuple(tokens.shape) == call.source.shape
        return tokens.ndim == 3

    def remedied(self, before: Tensor, after: Tensor) -> None:
        """A remedy has put one tensor in the place of another."""
        if after is before:
            return
        call = Call(self._path, self._tick(), leads=self._known.find(before) is not None)
        call.source = self._see(before, self._path, whole=self._between, leads=False)
        call.result = self._see(after, self._path, whole=self._between, leads=call.leads)
        call.left = self._tick()
        self.log.remedies.append(call)

    # states

    def _see(self, tensor: Tensor, path: str, *, whole: bool, leads: bool = True) -> State:
        """The State of a tensor; measured now, or as soon as it is known which axis holds the tokens.

        leads: attention that comes next reads these tokens.
        """
        known = self._known.find(tensor)
        state = known[0] if known is not None and known[1] == 1.0 else self._new(tensor, path)
        self._latest = tensor if leads else self._latest
        self._measure(tensor, tensor, state, whole)
        return state

    def _new(self, tensor: Tensor, path: str) -> State:
        state = State(path, self._tick(), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        self._known.add(tensor, state)
        return state

    def _measure(self, tensor: Tensor, values: Tensor, state: State, whole: bool) -> None:
        """Measure the values a tensor had when it was seen."""
        state.axis = self.log.frames.axis_of(state.shape)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if state.axis is None:
                copy = values.clone() if values is tensor else values  # it may be written into before that is known
                self._waiting.append((tensor, copy, state, whole))
                return
            state.numbers = self.on_state(tokens_last(values, state.axis), state.numbers, whole)
        if torch.is_grad_enabled() and tensor.requires_grad and not state.numbers.followed:
            state.numbers.followed = True
            self._followed.append(tensor.register_hook(state.numbers.take_gradient))

    def _settle(self, *, assume: bool) -> None:
        """Measure what waited for the token axis; with nothing to go by, tokens are the last axis but one."""
        waiting, self._waiting = self._waiting, []
        if assume and waiting:
            self.log.frames.assume(waiting[0][0].shape)
        for tensor, values, state, whole in waiting:
            if self.log.frames.axis_of(state.shape) is not None:
                self._measure(tensor, values, state, whole)

    # functions

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if is_mha(func):
            with only_functions(self):
                return mha_body(func)(*args, **kwargs)
        known = [self._known.find(a) for a in args[:2]] if name in SUMS or name in PRODUCTS else []
        dropped = (name in DROPOUTS or name == "scaled_dot_product_attention") and drops(name, args, kwargs)
        self.log.dropout |= dropped
        if dropped and self.silence_dropout:
            result = without_dropout(name, func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if name in SUMS:
            self._sum(args, known, result)
        elif name in PRODUCTS:
            self._product(args, known, result)
        elif name in LINEAR:
            self._remember_bias(name, args, kwargs)
        elif name in NORMS:
            self._norm(args, result)
        else:
            seen = attention_in(func, name, args, kwargs, result)
            if seen is not None:
                self._attention(seen)
        return result

    def _sum(self, args: tuple, known: list, result: Tensor) -> None:
        if not any(known) or not all(isinstance(a, Tensor) and a.shape == result.shape for a in args[:2]):
            return
        state = self._new(result, self._path)
        self._latest = result
        self._measure(result, result, state, self._between)
        self.log.adds.append(Add(self._path, state.order, [k or (None, 1.0) for k in known], state, self._bias))

    def _norm(self, args: tuple, result: Tensor) -> None:
        """A norm that is called as a function, by no module that is one."""
        if self._norms_open or not isinstance(args[0], Tensor) or not self._is_stream(args[0]):
            return
        call = Call(self._path, self._tick(), leads=self._between or self._known.find(args[0]) is not None)
        call.source = self._see(args[0], self._path, whole=self._between, leads=call.leads)
        call.result = self._see(result, self._path, whole=self._between, leads=call.leads)
        call.left = self._tick()
        self._bias = 0.0
        self.log.norms.append(call)

    def _product(self, args: tuple, known: list, result: Tensor) -> None:
        """A state times a number is that state, scaled (DeepNorm's alpha); a branch that is scaled forgets its bias."""
        if not any(known) and isinstance(result, Tensor) and result.ndim >= 3:
            self._bias = 0.0
        for entry, other in zip(known, args[1::-1], strict=False):
            if entry is not None and is_scalar(other) and tuple(result.shape) == entry[0].shape:
                self._known.add(result, entry[0], entry[1] * float(other))

    def _remember_bias(self, name: str, args: tuple, kwargs: dict) -> None:
        bias = args[0] if name == "addmm" else kwargs.get("bias", args[2] if len(args) > 2 else None)
        fits = isinstance(bias, Tensor) and self._latest is not None and bias.shape == self._latest.shape[-1:]
        self._bias = float(bias.detach().double().square().sum()) if fits else 0.0  # type: ignore[union-attr]

    def _attention(self, seen: AttentionSeen) -> None:
        tokens = self._latest
        batch = seen.batch_for(tokens) if tokens is not None and seen.queries == seen.keys else None
        doubted = self.log.frames.batch_first and tokens is not None and tokens.shape[0] != batch
        if tokens is None or batch is None or doubted:
            self.log.other_attention += 1
            return
        self.log.frames.add(batch, seen.queries)
        self._settle(assume=False)
        X = tokens_last(tokens, self.log.frames.axis_of(tuple(tokens.shape)) or 0)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            fits = tuple(X.shape[:-1]) == (batch, seen.queries)
            numbers = self.on_attention(seen.folded(batch), X if fits else None)
        self.log.attentions.append(Attention(self._path, self._tick(), seen.queries, numbers))
