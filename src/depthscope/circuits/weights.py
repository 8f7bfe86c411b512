"""The weights of every attention head of a model, read by probing: what it does to known vectors tells its matrices.

SA(X) = sum_h P_h (X W_V,h + 1 b_V,h^T) W_O,h + 1 b_O^T. Rows of the identity are fed where attention reads, and where
the heads give; one pass of R tokens reads R rows of every matrix of every block. Random rows, which must come out as
the matrices say, hold the reading to account: a branch that is not affine is an error.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.low_rank import factors
from depthscope.circuits.norm_scale import norm_scale
from depthscope.circuits.probe import Feed, Probe, Seen
from depthscope.circuits.subject import Subject, subject_of
from depthscope.errors import HookError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # of what comes out for a random row, relative; others: 5e-2
MANY = 10**6  # rows, of which a pass takes as many as it has places
Run = Callable[..., Probe]


@dataclass(frozen=True)
class HeadWeights:
    """One block's attention in float64: W_V (H, d, d_v), W_O (H, d_v, d), b_V (H, d_v), b_O (d,).

    W_Q, W_K (H, d, d_qk) with b_Q, b_K (H, d_qk) and the factor `scale` on the scores; None where the model shows its P
    alone (XLNet, DeBERTa), turns queries by their position (Llama) or normalises them (ViT-22B). gamma_in (d,): the
    scale of the norm that attention reads through (pre-norm); gamma_out (d,): of the norm after its sum (post-norm).
    """

    W_V: Tensor
    W_O: Tensor
    b_V: Tensor
    b_O: Tensor
    W_Q: Tensor | None = None
    W_K: Tensor | None = None
    b_Q: Tensor | None = None
    b_K: Tensor | None = None
    scale: float | None = None
    gamma_in: Tensor | None = None
    gamma_out: Tensor | None = None

    @property
    def heads(self) -> int:
        return self.W_V.shape[0]

    def product(self) -> Tensor:
        """W_h = W_V,h W_O,h, (H, d, d)."""
        return self.W_V @ self.W_O

    def offset(self) -> Tensor:
        """What attention adds to every token whatever they are, (d,): rows of P sum to 1."""
        return torch.einsum("hv,hvd->d", self.b_V, self.W_O) + self.b_O


def read_weights(model: nn.Module, inputs: Any, *, blocks: str | Iterable[str] | None = None) -> list[HeadWeights]:
    """The weights of all heads, block by block in the order in which they run; the model is left as it was.

    inputs: any that the model can run on; their values do not matter, more tokens need fewer passes. blocks: a pattern
    where the finder should not choose. Hooks of your own run too, on the tokens that are fed.
    """
    return weights_of(subject_of(model, inputs, blocks))


def weights_of(subject: Subject) -> list[HeadWeights]:
    """The same of a model that was surveyed."""
    site = "attn_in"

    def run(**fed: Any) -> Probe:
        probe = Probe(subject.axis, Feed(site=site, **fed))
        subject.listen(probe)
        return probe

    nothing = torch.zeros(1, 1)
    still = run(tokens=nothing, mixed=nothing)
    if not still.places:  # attention reads by no module
        site = "block_in"
        still = run(tokens=nothing, mixed=nothing)
    _check_seen(still, subject.name)
    found = (_by_values if all(seen.heads for seen in still.blocks) else _by_patterns)(still, run)
    _check_affine(found, run, subject.mask)
    return found


def _by_values(still: Probe, run: Run) -> list[HeadWeights]:
    """Where values are seen: rows of the identity give W_Q, W_K, W_V as they are, and W_O behind the heads."""
    widest = max(max(seen.count * seen.values, still.width) for seen in still.blocks)
    passes = [run(tokens=rows, mixed=rows) for rows in torch.eye(widest, dtype=torch.float64).split(still.places)]
    row = torch.randn(1, still.width, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(still.dtype)
    alike = run(tokens=row.expand(MANY, -1)).blocks
    limit = TOLERANCE.get(still.dtype, 5e-2)
    return [
        _from_rows(zero, [p.blocks[index] for p in passes], alike[index], row.double(), limit)
        for index, zero in enumerate(still.blocks)
    ]


def _from_rows(zero: Seen, rows: list[Seen], alike: Seen, row: Tensor, limit: float) -> HeadWeights:
    """alike: what one random row (1, d) at all places gives; queries and keys that are no affine map of it are left."""
    assert zero.heads is not None and zero.out is not None and alike.heads is not None
    b_Q, b_K, b_V = (x[0] for x in zero.heads)
    W_Q, W_K, W_V = (
        (torch.cat([seen.heads[i] for seen in rows])[: row.shape[1]] - b).transpose(0, 1)  # type: ignore[index]
        for i, b in enumerate((b_Q, b_K, b_V))
    )
    b_O = zero.out[0]
    W_O = (torch.cat([seen.out for seen in rows])[: zero.count * zero.values] - b_O).unflatten(0, (zero.count, -1))  # type: ignore[misc]
    shown: dict[str, Any] = {"W_Q": W_Q, "W_K": W_K, "b_Q": b_Q, "b_K": b_K, "scale": zero.scale}
    said = [torch.einsum("rd,hdq->rhq", row.to(W), W) + b for W, b in ((W_Q, b_Q), (W_K, b_K))]
    if any(_varies(x) for x in (*alike.heads[:2], *zero.heads[:2])):
        shown = {}  # one row at many places gives many queries: they are turned by position
    elif any(apart(x, y) > limit for x, y in zip(alike.heads, said, strict=False)):
        shown = {}  # a norm of queries and keys
    return HeadWeights(W_V, W_O, b_V, b_O, **shown, **_norms(zero))


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest entry; 0 where both are nothing, as a W_O that starts at zero."""
    size = max(float(one.abs().max()), float(other.abs().max()))
    return float((one - other).abs().max()) / size if size else 0.0


def _varies(rows: Tensor) -> bool:
    return bool((rows - rows[:1]).abs().max() > 1e-5 * rows.abs().max())


def _by_patterns(still: Probe, run: Run) -> list[HeadWeights]:
    """Where only P is seen: head by head, with P = I, the output is X W_h + b_V,h W_O,h + b_O."""
    d, heads = still.width, max(seen.count for seen in still.blocks)
    products: list[list[Tensor]] = [[] for _ in still.blocks]
    offsets: list[list[Tensor]] = [[] for _ in still.blocks]
    for head in range(heads):
        empty = run(tokens=torch.zeros(1, 1), head=head).blocks
        passes = [run(tokens=rows, head=head).blocks for rows in torch.eye(d, dtype=torch.float64).split(still.places)]
        for index, zero in enumerate(empty):
            offsets[index].append(zero.out[0] - still.blocks[index].out[0])  # type: ignore[index]
            products[index].append(torch.cat([seen[index].out for seen in passes])[:d] - zero.out[0])  # type: ignore[index, misc]
    found = []
    for seen, Ws, bs in zip(still.blocks, products, offsets, strict=True):
        W_V, W_O = factors(torch.stack(Ws[: seen.count]))
        b_V = torch.linalg.lstsq(W_O.mT, torch.stack(bs[: seen.count]).unsqueeze(-1)).solution.squeeze(-1)
        found.append(HeadWeights(W_V, W_O, b_V, seen.out[0], **_norms(seen)))  # type: ignore[index]
    return found


def _norms(seen: Seen) -> dict[str, Any]:
    if seen.norm_before is not None:
        return {"gamma_in": norm_scale(seen.norm_before)}
    return {} if seen.norm_after is None else {"gamma_out": norm_scale(seen.norm_after)}


def _check_seen(still: Probe, model: str) -> None:
    blind = [k + 1 for k, seen in enumerate(still.blocks) if seen.out is None or not seen.count]
    if blind or not still.blocks:
        what = f"block {blind[0]} shows none" if blind else "no block shows any"
        raise HookError(
            f"attention must be seen, and its branch must join a residual stream; {what} in "
            f"{model}. Read the weights before ds.without_ takes skips out; see: depthscope doctor."
        )


def _check_affine(found: list[HeadWeights], run: Run, mask: Tensor | None) -> None:
    """One random token everywhere, fed to attention as it is: P does nothing to it, and the matrices must do all.

    mask (B, n): padding, whose rows of P may be anything, is left out.
    """
    d = found[0].b_O.shape[0]
    row = torch.randn(1, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    probe = run(tokens=row.expand(MANY, -1))
    for index, (weights, seen) in enumerate(zip(found, probe.blocks, strict=True)):
        truth = seen.out if mask is None else seen.out[mask.flatten()]  # type: ignore[index]
        said = torch.einsum("rd,hdv,hve->re", row, weights.W_V, weights.W_O) + weights.offset()
        error = apart(truth, said)  # type: ignore[arg-type]
        limit = TOLERANCE.get(probe.dtype, 5e-2)
        if not error <= limit:
            raise HookError(
                "attention must give X W_V W_O and a bias for tokens that are all alike; in block "
                f"{index + 1} it differs by {error:.1e}, more than {limit:.0e}. Something in the branch "
                "(a norm, a gate, a remedy) is not affine, or values depend on positions."
            )
