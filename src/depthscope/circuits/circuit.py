"""Everything that a real forward pass says about attention: P of every head, what it read, and the heads' weights."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.weights import TOLERANCE, HeadWeights, apart, looked_at, read_weights
from depthscope.errors import HookError
from depthscope.traces.attend import SdpaCall
from depthscope.traces.attention import attention_in, sdpa_arguments
from depthscope.traces.look import Span, evaluated
from depthscope.traces.stream import Follow
from depthscope.traces.tokens import first_tokens, tokens_out
from depthscope.traces.untouched import untouched


@dataclass(frozen=True)
class Circuit:
    """One batch in float64: X (B, n, d) that enters block 1, and for each block P (B, H, n, n), what attention read,
    what left the block (B, n, d), and the weights of its heads. mask (B, n): True for tokens, None for all."""

    X: Tensor
    P: tuple[Tensor, ...]
    reads: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    weights: tuple[HeadWeights, ...]
    mask: Tensor | None
    dtype: torch.dtype

    @property
    def depth(self) -> int:
        return len(self.P)

    @property
    def heads(self) -> int:
        return self.P[0].shape[1]


def read_circuit(
    model: nn.Module,
    inputs: Any,
    *,
    blocks: str | Iterable[str] | None = None,
    weights: Iterable[HeadWeights] | None = None,
) -> Circuit:
    """Run the model once on the first batch of inputs and keep what its attention did; dropout is off.

    weights: what read_weights gave for the same model, where they are at hand, or where ablations, which hide the
    branch of attention, have been made since.
    """
    known = tuple(read_weights(model, inputs, blocks=blocks) if weights is None else weights)
    batch, looked = looked_at(model, inputs, blocks)
    record = _Record(model, looked.spans, looked.axis)
    with untouched(model), evaluated(model), torch.no_grad(), record:
        model(*batch.args, **batch.kwargs)
    passes = record.passes
    if not passes or any(one.P is None or one.out is None for one in passes) or len(passes) != len(known):
        raise HookError(
            f"circuits: every block must attend once and return tokens; {len(known)} blocks have weights and "
            f"{sum(one.P is not None for one in passes)} of {len(passes)} attended in {type(model).__name__}."
        )
    limit = TOLERANCE.get(record.dtype, 5e-2)
    for number, (one, own) in enumerate(zip(passes, known, strict=True), 1):
        if one.branch is not None and not (off := _missed(one, own, batch.mask)) <= limit:
            raise HookError(
                f"circuits: what attention adds to the stream must be sum_h P_h X W_V W_O and a bias; in block "
                f"{number} of {type(model).__name__} it differs by {off:.1e}, more than {limit:.0e}. Does attention "
                "read values through another norm than queries?"
            )
    return Circuit(
        passes[0].source,
        tuple(one.P for one in passes),  # type: ignore[misc]
        tuple(one.source if one.read is None else one.read for one in passes),
        tuple(one.out for one in passes),  # type: ignore[misc]
        known,
        batch.mask,
        record.dtype,
    )


@dataclass
class _Pass:
    """One block in one pass; read None: attention reads the block's input."""

    source: Tensor
    shape: tuple[int, ...]
    read: Tensor | None = None
    P: Tensor | None = None
    out: Tensor | None = None
    branch: Tensor | None = None  # (n, d), what attention added in the first sequence


def _missed(one: _Pass, own: HeadWeights, mask: Tensor | None) -> float:
    """How far the branch of the first sequence is from what P, the tokens read and the weights say, relative.

    0 where it is not finite: there is nothing to compare, and the circuit shows it.
    """
    assert one.P is not None and one.branch is not None
    read = (one.source if one.read is None else one.read)[0]
    said = torch.einsum("hnv,hve->ne", one.P[0] @ (read @ own.W_V), own.W_O) + own.offset()
    rows = slice(None) if mask is None else mask[0].to(said.device)  # padding may be anything
    branch = one.branch[rows]
    return apart(branch, said[rows]) if bool(branch.isfinite().all()) else 0.0


class _Record(Follow):
    """Notes P and the tokens at the ends of every block."""

    def __init__(self, model: nn.Module, spans: list[Span], axis: int) -> None:
        super().__init__(model, spans, self._act)
        self.axis, self.dtype = axis, torch.float64
        self.passes: list[_Pass] = []

    def __enter__(self) -> "_Record":
        super().__enter__()
        for span in set(self.spans):
            self._handles.append(self.model.get_submodule(span.exit).register_forward_hook(self._leaves))
        return self

    def _starts(self, span: Span) -> Callable[..., Any]:
        start = super()._starts(span)

        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            start(module, args, kwargs)
            tokens = first_tokens(args, kwargs)
            if tokens is not None:
                self.dtype = tokens.dtype
                self.passes.append(_Pass(self._first(tokens), tuple(tokens.shape)))

        return hook

    def _leaves(self, _: nn.Module, args: tuple, output: Any) -> None:
        tokens = tokens_out(output, self.passes[-1].shape)
        self.passes[-1].out = None if tokens is None else self._first(tokens)

    def _first(self, tokens: Tensor) -> Tensor:
        """Batch first, float64, a copy: models write in place."""
        return (tokens.transpose(0, 1) if self.axis == 0 else tokens).detach().to(torch.float64, copy=True)

    def _act(self, block: str, site: str, tokens: Tensor) -> Tensor:
        if site == "attn_in":
            self.passes[-1].read = self._first(tokens)
        elif site == "sa_out" and tuple(tokens.shape) == self.passes[-1].shape:
            self.passes[-1].branch = self._first(tokens)[0]
        return tokens

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        now = self.open
        result = super().__torch_function__(func, types, args, kwargs)
        if now is not None and now.attended and self.passes[-1].P is None:  # the first attention of the block
            self.passes[-1].P = self._pattern(func, args, kwargs or {}, result)
        return result

    def _pattern(self, func: Any, args: tuple, kwargs: dict, result: Tensor) -> Tensor:
        name, batch = getattr(func, "__name__", ""), len(self.passes[-1].source)
        if name == "scaled_dot_product_attention":
            call = sdpa_arguments(args, kwargs)
            q, k = (x.detach().double() for x in (call["query"], call["key"]))
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            P = SdpaCall(call).probabilities(q, k)
        else:
            seen = attention_in(func, name, args, kwargs, result)
            assert seen is not None and seen.P is not None
            P = seen.P.detach().double()
        return P.reshape(batch, -1, *P.shape[-2:])
