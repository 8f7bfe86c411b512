"""Let something else compute self-attention while a model runs, wherever the model computes it."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from depthscope.traces.attention import attention_in, is_mha, mha_body, sdpa_arguments
from depthscope.traces.look import CLOSED


class Attends(Protocol):
    """What takes over: from queries, keys and values, or from P alone where the model takes a softmax of its own."""

    @property
    def here(self) -> bool:
        """Whether the attention that is being computed is to be taken over."""
        ...

    def from_qkv(self, q: Tensor, k: Tensor, v: Tensor, call: "SdpaCall") -> Tensor: ...

    def from_pattern(self, P: Tensor, visible: Tensor) -> Tensor: ...


class Attend(TorchFunctionMode):
    """While entered, hands every self-attention (as many queries as keys) to `attends`."""

    def __init__(self, attends: Attends) -> None:
        super().__init__()
        self.attends = attends

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if is_mha(func):
            with self:
                return mha_body(func)(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if not self.attends.here:
            return func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            call = sdpa_arguments(args, kwargs)
            q, k, v = call["query"], call["key"], call["value"]
            if q.shape[-2] != k.shape[-2]:
                return func(*args, **kwargs)
            if call.get("enable_gqa") and q.shape[-3] != k.shape[-3]:
                k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
            return self.attends.from_qkv(q, k, v, SdpaCall(call))
        result = func(*args, **kwargs)
        seen = attention_in(func, name, args, kwargs, result)
        return (
            result
            if seen is None
            else self.attends.from_pattern(result, within_reach(args[0] if args else kwargs["input"]))
        )


class SdpaCall:
    """The parts of a call of scaled_dot_product_attention that are the model's own: its P, its mask, its dropout."""

    def __init__(self, call: dict[str, Any]) -> None:
        self.call = call

    def probabilities(self, q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
        """P (..., n, n) before dropout, zero for a query that sees nothing; scale None is the model's own."""
        scale = self.call.get("scale") if scale is None else scale
        scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        bias = self._bias(scores)
        if bias is None:
            return scores.softmax(-1)
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        return scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)

    def visible(self, P: Tensor) -> Tensor:
        """(..., n, n), True where a query may see a key: by the mask, because P may be zero for other reasons."""
        bias = self._bias(P)
        if bias is None:
            return torch.ones(P.shape[-2:], dtype=torch.bool, device=P.device)
        return bias if bias.dtype == torch.bool else within_reach(bias)

    def dropout(self, P: Tensor) -> Tensor:
        return torch.dropout(P, self.call.get("dropout_p") or 0.0, train=True)

    def _bias(self, scores: Tensor) -> Tensor | None:
        if self.call.get("is_causal"):
            return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        return self.call.get("attn_mask")


def within_reach(scores: Tensor) -> Tensor:
    """Which keys a row of scores, mask included, leaves open: those not far below the best."""
    return scores > scores.amax(-1, keepdim=True) - CLOSED
