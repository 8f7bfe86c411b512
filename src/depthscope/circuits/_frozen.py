"""A model with its attention, norms and activations held at what they did once, so that it is affine in its tokens.

Attention keeps its P; a norm keeps the size it divided by, LN(x) = (x - mean x) r gamma + beta with r as it was; an
activation f is a line through the point u where it was: x f(u) / u ("secant") or f(u) + f'(u) (x - u) ("tangent").
Where two functions of the tokens are multiplied (SwiGLU), the secant holds the activated one, the tangent neither:
a b -> a_0 b + a b_0 - a_0 b_0. sigmoid, softplus, exp and softmax are gates or sizes: they keep their values in both,
and count as constants where they are not. At the tokens themselves nothing changes; elsewhere the model is its own
affine copy.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depthscope.errors import HookError
from depthscope.traces.attend import SdpaCall
from depthscope.traces.attention import attention_in, no_modes, sdpa_arguments
from depthscope.traces.tokens import first_tokens
from depthscope.traces.watch import PRODUCTS

LINES = ("secant", "tangent")
# by the names of torch's functions and of modules; in-place forms end in _
CURVES = "relu relu6 gelu silu elu celu selu mish leaky_relu hardswish hardtanh tanh".split()
SCALED = ("normalize",)  # a factor on every token, held as the size of a norm is
HELD = "softmax sigmoid hardsigmoid softplus exp rsqrt sqrt std var norm linalg_vector_norm reciprocal".split()
NORM_ARGUMENTS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
}
Again = Callable[[tuple, dict], Any]  # the arguments of a later pass -> what is to be returned


class Frozen(TorchFunctionMode):
    """Records on its first pass, and gives back on every later one what was recorded, made affine.

    inside: whether the pass is within a block at the moment.
    """

    def __init__(self, line: str, inside: Callable[[], bool]) -> None:
        super().__init__()
        self.line, self.inside = line, inside
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

    def hooks_on(self, root: nn.Module) -> list[Any]:
        """Hooks on the activations under a module that are modules themselves."""
        handles = []
        for module in root.modules():
            if is_activation(module):
                handles.append(module.register_forward_pre_hook(self._enters))
                handles.append(module.register_forward_hook(self._leaves, with_kwargs=True))
        return handles

    def _enters(self, *_: Any) -> None:
        self._within += 1

    def _leaves(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        self._within -= 1
        source = first_tokens(args, kwargs)
        if not self.inside() or self._within or source is None:
            return None
        name = type(module).__name__
        with no_modes():  # a hook runs under the modes, unlike what they call
            if not self.recording:
                return self._replayed(name, (source,), {})
            self._record(name, self._curve(source, output, module.forward))
        self._activates(output)
        return None

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self.inside() or self._within or not self._is_frozen(name, args):
            return func(*args, **kwargs)
        if not self.recording:
            return self._replayed(name, args, kwargs)
        first = bool(args) and self._was_activated(args[0])  # asked of the tensor itself, of which a copy is kept
        before = tuple(a.clone() if isinstance(a, Tensor) and _writes(name, kwargs) else a for a in args)
        result = func(*args, **kwargs)
        again = self._event(func, name, before, kwargs, result, first)
        self._record(name, self._attends(again) if _is_attention(func, name, args, kwargs, result) else again)
        return result

    def _attends(self, again: Again) -> Again:
        def unless_silent(args: tuple, kwargs: dict) -> Tensor:
            result = again(args, kwargs)
            return torch.zeros_like(result) if self.silent else result

        return unless_silent

    def _is_frozen(self, name: str, args: tuple) -> bool:
        plain = name.rstrip("_")
        if plain in CURVES or plain in HELD or name in (*SCALED, *NORM_ARGUMENTS, "scaled_dot_product_attention"):
            return True
        return name in PRODUCTS and _are_tokens(*args[:2])

    def _record(self, name: str, again: Again) -> None:
        self._events.append((name, again))

    def _replayed(self, name: str, args: tuple, kwargs: dict) -> Any:
        if self._next >= len(self._events) or self._events[self._next][0] != name:
            known = self._events[self._next][0] if self._next < len(self._events) else "the end"
            raise HookError(_different(f"{name} came where {known} was"))
        self._next += 1
        result = self._events[self._next - 1][1](args, kwargs)
        return args[0].copy_(result) if _writes(name, kwargs) else result

    def _event(self, func: Any, name: str, args: tuple, kwargs: dict, result: Tensor, first: bool) -> Again:
        if name == "scaled_dot_product_attention":
            return _held_attention(sdpa_arguments(args, kwargs))
        if name in NORM_ARGUMENTS:
            return _held_norm(name, args, kwargs)
        if name in PRODUCTS:
            return self._product(args[0], args[1], first)
        if name.rstrip("_") in HELD:
            return lambda *_: result
        source, rest = _source(args, kwargs), args[1:]
        if name in SCALED:
            return _secant(source, result)
        others = {key: value for key, value in kwargs.items() if key not in ("input", "inplace")}
        again = self._curve(source, result, lambda u: func(u, *rest, **others))
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


def _writes(name: str, kwargs: dict) -> bool:
    """Whether a function writes into its first argument."""
    return bool(kwargs.get("inplace")) or name == "__imul__" or (name.endswith("_") and not name.endswith("__"))


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation: nn.GELU, NewGELUActivation, ..., by the name of its class, as for norms."""
    name = type(module).__name__.lower()
    words = ("relu", "gelu", "silu", "mish", "tanh", "swish", "activation")
    bare = next(module.children(), None) is None and next(module.parameters(), None) is None
    return bare and any(word in name for word in words)


def _is_attention(func: Any, name: str, args: tuple, kwargs: dict, result: Any) -> bool:
    """Whether this was attention: also a softmax over other things than tokens, if by heads."""
    return attention_in(func, name, args, kwargs, result) is not None or (name == "softmax" and result.ndim > 3)


def _are_tokens(a: Any = None, b: Any = None) -> bool:
    """Two tensors of one shape with a token axis."""
    both = isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_floating_point() and b.is_floating_point()
    return both and a.ndim >= 3 and a.shape == b.shape and not a.shape[-1] == 1


def _held_attention(call: dict[str, Any]) -> Again:
    q, k = call["query"], call["key"]
    P = SdpaCall(call).probabilities(q, k.repeat_interleave(q.shape[-3] // k.shape[-3], -3))

    def again(args: tuple, kwargs: dict) -> Tensor:
        v = sdpa_arguments(args, kwargs)["value"]
        return P @ v.repeat_interleave(P.shape[-3] // v.shape[-3], -3)

    return again


def _held_norm(name: str, args: tuple, kwargs: dict) -> Again:
    def named(args: tuple, kwargs: dict) -> dict[str, Any]:
        return {**dict(zip(NORM_ARGUMENTS[name], args, strict=False)), **kwargs}

    def centred(call: dict[str, Any]) -> Tensor:
        x, axes = call["input"], tuple(range(-len(call["normalized_shape"]), 0))
        return x - x.mean(axes, keepdim=True) if name == "layer_norm" else x

    call = named(args, kwargs)
    x, axes = centred(call), tuple(range(-len(call["normalized_shape"]), 0))
    eps = call.get("eps")
    usual = 1e-5 if name == "layer_norm" else torch.finfo(x.dtype).eps
    r = (x.square().mean(axes, keepdim=True) + (usual if eps is None else eps)).rsqrt()

    def again(args: tuple, kwargs: dict) -> Tensor:
        call = named(args, kwargs)
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
        f"paths: the model must compute the same functions in the same order every time; {what}. Routing that depends "
        "on the tokens (a mixture of experts, early exits) cannot be frozen: use form='attention'."
    )
