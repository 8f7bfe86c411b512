"""Attention seen at the function that computes it: every family passes here, whatever its modules are called.

Models call torch's scaled_dot_product_attention (q, k, v), or take a softmax with an (n, n) result.
nn.MultiheadAttention does either one inside a single function, whose body is therefore run under the watch as well.
"""

import math
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SDPA_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True)
class AttentionSeen:
    """Either P (..., n, m), or what P is computed from: q, k, scale, bias, causal."""

    queries: int
    keys: int
    P: Tensor | None = None
    q: Tensor | None = None
    k: Tensor | None = None
    scale: float | None = None
    bias: Tensor | None = None
    causal: bool | None = None

    def batch_for(self, tokens: Tensor) -> int | None:
        """How many sequences this attention works on; None when it does not work on whole sequences of `tokens`.

        q (B, h, n, d_h) says it, and must fit tokens (B, n, d) or (n, B, d), or leave n an axis of its own where
        streams are folded into the batch. P (B h, n, n) folds the heads into the batch, so B is read off the tokens.
        """
        front = (self.q if self.q is not None else self.P).shape[:-2]  # type: ignore[union-attr]
        sizes = list(tokens.shape[:-1])
        if self.queries not in sizes:
            return None
        sizes.remove(self.queries)
        others = math.prod(sizes)
        if len(front) == 2 and others % front[0] == 0 and (others == front[0] or self.queries != front[0]):
            return front[0]
        if len(front) == 1 and len(sizes) == 1 and front[0] % sizes[0] == 0:
            return sizes[0]
        return None

    def folded(self, batch: int) -> "AttentionSeen":
        """The same with axes (B, h, n, .) everywhere."""

        def fold(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.ndim == 4 else x.reshape(batch, -1, *x.shape[-2:])

        bias = self.bias
        if bias is not None and bias.ndim == 3 and self.q is not None and self.q.ndim == 3:
            bias = bias.unsqueeze(1) if bias.shape[0] in (1, batch) else fold(bias)
        return replace(self, P=fold(self.P), q=fold(self.q), k=fold(self.k), bias=bias)


def attention_in(func: Any, name: str, args: tuple, kwargs: dict, result: Any) -> AttentionSeen | None:
    """What a torch function that just ran shows of attention, or None."""
    if name == "scaled_dot_product_attention":
        return _of_sdpa(sdpa_arguments(args, kwargs))
    if name == "softmax" and isinstance(result, Tensor):
        return _of_softmax(result, kwargs.get("dim", args[1] if len(args) > 1 else None))
    return None


def sdpa_arguments(args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments of scaled_dot_product_attention by name."""
    return {**dict(zip(SDPA_ARGUMENTS, args, strict=False)), **kwargs}


def _of_sdpa(call: dict[str, Any]) -> AttentionSeen | None:
    q, k, bias = call["query"], call["key"], call.get("attn_mask")
    if q.is_nested or q.ndim < 3:
        return None
    if bias is not None and bias.ndim < 2:
        return None
    causal = True if call.get("is_causal") else None
    return AttentionSeen(q.shape[-2], k.shape[-2], q=q, k=k, scale=call.get("scale"), bias=bias, causal=causal)


def _of_softmax(P: Tensor, dim: int | None) -> AttentionSeen | None:
    if P.ndim not in (3, 4) or not P.is_floating_point() or dim not in (-1, P.ndim - 1):
        return None
    return AttentionSeen(P.shape[-2], P.shape[-1], P=P) if P.shape[-1] == P.shape[-2] else None


def is_mha(func: Any) -> bool:
    return func is F.multi_head_attention_forward


def mha_body(func: Any) -> Any:
    """multi_head_attention_forward without its hand-over to function modes: a copy of the function, torch untouched.

    The hand-over is one test at its top; with that test answered "no", the calls inside reach the watch.
    """
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    body = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


@contextmanager
def only_functions(mode: TorchFunctionMode) -> Iterator[None]:
    """Enter a function mode again inside its own call, without what else it does on entering."""
    TorchFunctionMode.__enter__(mode)
    try:
        yield
    finally:
        TorchFunctionMode.__exit__(mode, None, None, None)


@contextmanager
def no_modes() -> Iterator[None]:
    """Let a remedy compute for itself: its own sums and softmaxes are not the model's."""
    held = []
    try:
        while torch._C._len_torch_function_stack():
            held.append(torch._C._pop_torch_function_stack())
        yield
    finally:
        for mode in reversed(held):
            torch._C._push_on_torch_function_stack(mode)


def drops(name: str, args: tuple, kwargs: dict) -> bool:
    """Whether a call of dropout really drops something."""
    if name == "scaled_dot_product_attention":
        return bool(sdpa_arguments(args, kwargs).get("dropout_p"))
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return bool(p) and bool(training)


DROPOUTS = {"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}


def without_dropout(name: str, func: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a dropout or attention call as if dropout were off."""
    if name in DROPOUTS:
        return args[0] if args else kwargs["input"]
    return func(**{**sdpa_arguments(args, kwargs), "dropout_p": 0.0})
