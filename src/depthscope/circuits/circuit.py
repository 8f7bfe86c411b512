"""Everything that a real forward pass says about attention: P of every head, what it read, and the heads' weights."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.subject import Subject, subject_of
from depthscope.circuits.weights import TOLERANCE, HeadWeights, apart, weights_of
from depthscope.circuits.wide import wide
from depthscope.errors import HookError
from depthscope.traces.attention import SdpaCall
from depthscope.traces.events import Passage, StreamListener
from depthscope.traces.operations import Operation
from depthscope.traces.watcher import unwatched


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
    return circuit_of(subject_of(model, inputs, blocks), weights)


def circuit_of(subject: Subject, weights: Iterable[HeadWeights] | None = None) -> Circuit:
    """The same of a model that was surveyed."""
    known = tuple(weights_of(subject) if weights is None else weights)
    record = _Record(subject)
    subject.listen(record)
    passes, mask = record.passes, subject.mask
    if not passes or any(one.P is None or one.out is None for one in passes) or len(passes) != len(known):
        raise HookError(
            f"every block must attend once and return tokens; {len(known)} blocks have weights and "
            f"{sum(one.P is not None for one in passes)} of {len(passes)} attended in {subject.name}."
        )
    limit = TOLERANCE.get(record.dtype, 5e-2)
    for number, (one, own) in enumerate(zip(passes, known, strict=True), 1):
        if one.branch is not None and not (off := _missed(one, own, mask)) <= limit:
            raise HookError(
                f"what attention adds to the stream must be sum_h P_h X W_V W_O and a bias; in block "
                f"{number} of {subject.name} it differs by {off:.1e}, more than {limit:.0e}. Does attention "
                "read values through another norm than queries?"
            )
    return Circuit(
        passes[0].source,
        tuple(one.P for one in passes),  # type: ignore[misc]
        tuple(one.source if one.read is None else one.read for one in passes),
        tuple(one.out for one in passes),  # type: ignore[misc]
        known,
        mask,
        record.dtype,
    )


@dataclass
class _Pass:
    """One block in one pass; read None: attention reads the block's input."""

    source: Tensor
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
    rows = slice(None) if mask is None else mask[0]  # padding may be anything
    branch = one.branch[rows]
    return apart(branch, said[rows]) if bool(branch.isfinite().all()) else 0.0


class _Record(StreamListener):
    """Notes P and the tokens at the ends of every block."""

    def __init__(self, subject: Subject) -> None:
        self.copy, self.dtype = subject.batch_first, torch.float64
        self.passes: list[_Pass] = []

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self.dtype = tokens.dtype
        self.passes.append(_Pass(self.copy(tokens)))
        return tokens

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        self.passes[-1].out = None if tokens is None else self.copy(tokens)

    def site(self, now: Passage, name: str, tokens: Tensor) -> Tensor:
        if name == "attn_in":
            self.passes[-1].read = self.copy(tokens)
        elif name == "sa_out" and tuple(tokens.shape) == now.shape:
            self.passes[-1].branch = self.copy(tokens)[0]
        return tokens

    def attention(self, now: Passage, op: Operation, result: Tensor) -> Tensor:
        if self.passes[-1].P is None:  # the first attention of the block
            self.passes[-1].P = self._pattern(now, op, result)
        return result

    def _pattern(self, now: Passage, op: Operation, result: Tensor) -> Tensor:
        if op.role == "attention":
            call = op.named()
            q, k = (wide(x) for x in (call["query"], call["key"]))
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            bias = call.get("attn_mask")
            with unwatched():
                P = SdpaCall({**call, "attn_mask": None if bias is None else bias.cpu()}).probabilities(q, k)
        else:
            P = wide(result)
        batch, n, _ = self.passes[-1].source.shape
        if P.shape[-2:] != (n, n) or P.numel() % (batch * n * n):
            raise HookError(
                f"attention must be from all tokens of a sequence to all of them, P (B, H, {n}, {n}); in {now.block} "
                f"it is {tuple(P.shape)}. Windows, pooled keys and keys of memory have no circuit of sequences: "
                "ds.ablate and ds.scan measure such models."
            )
        return P.reshape(batch, -1, n, n)
