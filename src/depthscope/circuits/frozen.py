"""A model with its attention, norms and activations held at what they did once, so that it is affine in its tokens.

Attention keeps its P; a norm keeps the size it divided by, LN(x) = (x - mean x) r gamma + beta with r as it was; an
activation f is a line through the point u where it was: x f(u) / u ("secant") or f(u) + f'(u) (x - u) ("tangent").
Where two functions of the tokens are multiplied (SwiGLU), the secant holds the activated one, the tangent neither:
a b -> a_0 b + a b_0 - a_0 b_0. sigmoid, softplus, exp and softmax are gates or sizes: they keep their values in both,
and count as constants where they are not. At the tokens themselves nothing changes; elsewhere the model is its own
affine copy.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import HookError
from depthscope.traces.attention import SdpaCall, attention_in
from depthscope.traces.operations import Operation, is_activation
from depthscope.traces.tokens import first_tokens
from depthscope.traces.watcher import Watched, unwatched

LINES = ("secant", "tangent")
# by the names of torch's functions and of modules; in-place forms end in _
CURVES = "relu relu6 gelu silu elu celu selu mish leaky_relu hardswish hardtanh tanh".split()
SCALED = ("normalize",)  # a factor on every token, held as the size of a norm is
HELD = "softmax sigmoid hardsigmoid softplus exp rsqrt sqrt std var norm linalg_vector_norm reciprocal".split()
Again = Callable[[tuple, dict], Any]  # the arguments of a later pass -> what is to be returned


class Frozen:
    """A listener that records a first pass, and gives back on every later one what was recorded, made affine.

    inside: whether the pass is within a block at the moment.
    """

    everything = True

    def __init__(self, model: nn.Module, line: str, inside: Callable[[], bool]) -> None:
        self.model, self.line, self.inside = model, line, inside
        self.recording = True
        self.silent = False  # attention gives zeros
        self._events: list[tuple[str, Again]] = []
        self._next = 0
        self._within: int = 0  # modules that are activations, which are frozen as wholes
        self._activated: dict[int, weakref.ref] = {}

    def again(self, *, silent: bool = False) -> None:
        """The next pass begins."""
        if not self.recording and self._next != len(self._events):
            raise HookError(_different(f"it ended after {self._next} of {len(self._events)} frozen functions"))
        self.recording, self.silent, self._next = False, silent, 0

    def modules(self) -> Iterable[Watched]:
        """Activations that are modules are frozen as wholes."""
        return (Watched(m, self._enters, self._leaves) for m in self.model.modules() if is_activation(m))

    def closed(self, failed: bool) -> None:
        self._within = 0

    def _enters(self, *_: Any) -> None:
        self._within += 1

    def _leaves(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        self._within -= 1
        source = first_tokens(args, kwargs)
        if not self.inside() or self._within or source is None:
            return None
        name = type(module).__name__
        with unwatched():  # a hook runs under the modes, unlike what they call
            if not self.recording:
                return self._replayed(name, (source,), {})
            self._record(name, self._curve(source, output, module.forward))
        self._activates(output)
        return None

    def operation(self, op: Operation) -> Any:
        if not self.inside() or self._within or not self._is_frozen(op):
            return op.run()
        if not self.recording:
            return self._replayed(op.name, op.args, op.kwargs, in_place=op.in_place)
        first = bool(op.args) and self._was_activated(op.args[0])  # asked of the tensor itself, of which a copy is kept
        before = tuple(a.clone() if isinstance(a, Tensor) and op.in_place else a for a in op.args)
        result = op.run()
        again = self._event(Operation(op.func, op.name, op.role, before, op.kwargs), result, first)
        self._record(op.name, self._attends(again) if _is_attention(op, result) else again)
        return result

    def _attends(self, again: Again) -> Again:
        def unless_silent(args: tuple, kwargs: dict) -> Tensor:
            result = again(args, kwargs)
            return torch.zeros_like(result) if self.silent else result

        return unless_silent

    def _is_frozen(self, op: Operation) -> bool:
        plain = op.name.rstrip("_")
        if plain in CURVES or plain in HELD or op.name in SCALED or op.role in ("norm", "attention"):
            return True
        return op.role == "product" and _are_tokens(*op.args[:2])

    def _record(self, name: str, again: Again) -> None:
        self._events.append((name, again))

    def _replayed(self, name: str, args: tuple, kwargs: dict, *, in_place: bool = False) -> Any:
        if self._next >= len(self._events) or self._events[self._next][0] != name:
            known = self._events[self._next][0] if self._next < len(self._events) else "the end"
            raise HookError(_different(f"{name} came where {known} was"))
        self._next += 1
        result = self._events[self._next - 1][1](args, kwargs)
        return args[0].copy_(result) if in_place else result

    def _event(self, op: Operation, result: Tensor, first: bool) -> Again:
        if op.role == "attention":
            return _held_attention(op)
        if op.role == "norm":
            return _held_norm(op)
        if op.role == "product":
            return self._product(op.args[0], op.args[1], first)
        if op.name.rstrip("_") in HELD:
            return lambda *_: result
        source, rest = _source(op.args, op.kwargs), op.args[1:]
        if op.name in SCALED:
            return _secant(source, result)
        others = {key: value for key, value in op.kwargs.items() if key not in ("input", "inplace")}
        again = self._curve(source, result, lambda u: op.func(u, *rest, **others))
        self._activates(result)
        return again

    def _curve(self, u: Tensor, f_u: Tensor, f: Callable[[Tensor], Tensor]) -> Again:
        """The line in the place of an activation."""
        if self.line == "secant":
            return _secant(u, f_u)
        slope = _derivative(f, u)
        offset = f_u - slope * u
        return lambda args, kwargs: slope * _source(args, kwargs) + offset

    def _activates(self, result: Any) -> None:
        if isinstance(result, Tensor):
            self._activated[id(result)] = weakref.ref(result)

    def _was_activated(self, value: Any) -> bool:
        reference = self._activated.get(id(value))
        return reference is not None and reference() is value

    def _product(self, a_0: Tensor, b_0: Tensor, first: bool) -> Again:
        """A factor that does not change from pass to pass is none of the tokens, and is left alone.

        first: whether a is the activated one.
        """
        a_0, b_0 = a_0.clone(), b_0.clone()

        def again(args: tuple, kwargs: dict) -> Tensor:
            a, b = args[:2]
            if torch.equal(a, a_0) or torch.equal(b, b_0):
                return a * b
            if self.line == "secant":
                return a_0 * b if first else a * b_0
            return a_0 * b + a * b_0 - a_0 * b_0

        return again


def _source(args: tuple, kwargs: dict) -> Tensor:
    return args[0] if args else kwargs["input"]


def _secant(u: Tensor, f_u: Tensor) -> Again:
    """x f(u) / u; where u is 0 no line through the origin exists, and f(u) stays as a constant."""
    nought = u == 0
    slope, offset = torch.where(nought, 0, f_u / u), f_u * nought if bool((nought & (f_u != 0)).any()) else 0.0
    return lambda args, kwargs: slope * _source(args, kwargs) + offset


def _is_attention(op: Operation, result: Any) -> bool:
    """Whether this was attention: also a softmax over other things than tokens, if by heads."""
    return attention_in(op, result) is not None or (op.role == "softmax" and result.ndim > 3)


def _are_tokens(a: Any = None, b: Any = None) -> bool:
    """Two tensors of one shape with a token axis."""
    both = isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_floating_point() and b.is_floating_point()
    return both and a.ndim >= 3 and a.shape == b.shape and not a.shape[-1] == 1


def _held_attention(op: Operation) -> Again:
    call = op.named()
    q, k = call["query"], call["key"]
    P = SdpaCall(call).probabilities(q, k.repeat_interleave(q.shape[-3] // k.shape[-3], -3))

    def again(args: tuple, kwargs: dict) -> Tensor:
        v = _named(op, args, kwargs)["value"]
        return P @ v.repeat_interleave(P.shape[-3] // v.shape[-3], -3)

    return again


def _named(op: Operation, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments of a later call of the same function by name."""
    return Operation(op.func, op.name, op.role, args, kwargs).named()


def _held_norm(op: Operation) -> Again:
    def centred(call: dict[str, Any]) -> Tensor:
        x, axes = call["input"], tuple(range(-len(call["normalized_shape"]), 0))
        return x - x.mean(axes, keepdim=True) if op.name == "layer_norm" else x

    call = op.named()
    x, axes = centred(call), tuple(range(-len(call["normalized_shape"]), 0))
    eps = call.get("eps")
    usual = 1e-5 if op.name == "layer_norm" else torch.finfo(x.dtype).eps
    r = (x.square().mean(axes, keepdim=True) + (usual if eps is None else eps)).rsqrt()

    def again(args: tuple, kwargs: dict) -> Tensor:
        call = _named(op, args, kwargs)
        y = centred(call) * r
        y = y if call.get("weight") is None else y * call["weight"]
        return y if call.get("bias") is None else y + call["bias"]

    return again


def _derivative(f: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    with torch.enable_grad():
        point = u.detach().clone().requires_grad_()
        return torch.autograd.grad(f(point).sum(), point)[0]


def _different(what: str) -> str:
    return (
        f"the model must compute the same functions in the same order every time; {what}. Routing that depends "
        "on the tokens (a mixture of experts, early exits) cannot be frozen: use form='attention'."
    )
