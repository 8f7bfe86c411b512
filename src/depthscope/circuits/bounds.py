"""bounds(): Dong et al.'s rank-collapse bound from the weights of a real model, beside what its attention does.

The theorem is about softmax(X W_QK X^T) over all tokens. A causal mask, rotary or relative positions make rows of P
differ for equal tokens too: such a model is refused. P from the weights must be the P that was seen.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.bounds_record import BlockBound, Bounds, Chain
from depthscope.circuits.circuit import Circuit, circuit_of
from depthscope.circuits.ffn_lipschitz import Lipschitz, lipschitz_of
from depthscope.circuits.one_shape import check_attends_once
from depthscope.circuits.subject import subject_of
from depthscope.circuits.weights import HeadWeights
from depthscope.errors import AttentionNotSeenError, UsageError, said_by
from depthscope.theory.rank_collapse import attention_bound, head_norms, rank_collapse_bound, skip_bound
from depthscope.theory.softmax_perturbation import exchange_gamma, score_residual, score_spread
from depthscope.theory.split_attention import SplitTokens, split_attention

SMALL = -30  # log10 of a residual whose cube is still a number, and whose square no longer counts beside 1
NUDGE = 1e-3  # of the logarithm of the residual, for the exponent
UNLIKE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of a row of P, that the weights may not explain; others: 5e-2


@said_by("bounds")
def bounds(
    model: nn.Module,
    inputs: Any,
    *,
    blocks: str | Iterable[str] | None = None,
    mask: Any = None,
    stream: str | None = None,
) -> Bounds:
    """Dong et al.'s bound on every block's attention as it ran, and on networks of this attention alone.

    An error is raised where the theorem does not apply: causal masks, positions in attention.

    Args:
        model: Any torch module.
        inputs: Inputs of the model, as for ds.scan; the first batch is used.
        blocks: As for ds.scan.
        mask: As for ds.scan; padding is left out.
        stream: As for ds.scan; by default the stream with most blocks.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2, output=True)
        >>> X = torch.randn(2, 4, 8, generator=torch.manual_seed(0))  # (batch, n, d)
        >>> len(ds.bounds(model, X).blocks)
        2
    """
    subject = subject_of(model, inputs, blocks, mask, stream)
    check_attends_once(subject)
    circuit, ffns = circuit_of(subject), lipschitz_of(subject)
    for index, weights in enumerate(circuit.weights):
        _check_covered(circuit, index, weights, subject.name)
    starts = _tokens(circuit, circuit.X)
    if min(len(X) for X in starts) < 2 or not all(math.isfinite(_log(SplitTokens.of(X).R)) for X in starts):
        raise UsageError(
            "the tokens of every sequence must differ when they enter block 1; some sequence has one token, or "
            "all alike, or numbers that are not finite. Give other inputs."
        )
    norms = [_norms(weights) for weights in circuit.weights]
    rows = [
        _block(_tokens(circuit, circuit.reads[k]), weights, norms[k], ffns[k] if k < len(ffns) else None)
        for k, weights in enumerate(circuit.weights)
    ]
    pure = _mean([_chain(X, circuit.weights, norms, skips=False) for X in starts])
    log_ffn = [pure.bound[0]]
    for row, (a, b, _) in zip(rows, norms, strict=True):
        attended = float(attention_bound(1.0, a, b, D=math.inf, n=circuit.X.shape[1])) + 3 * log_ffn[-1]
        nothing = row.ffn_upper == 0 or attended == -math.inf  # is left, whatever follows
        log_ffn.append(-math.inf if nothing else attended + math.log10(row.ffn_upper))
    return Bounds(
        model=subject.name,
        samples=len(starts),
        tokens=circuit.X.shape[1],
        width=circuit.X.shape[2],
        heads=circuit.heads,
        blocks=rows,
        pure=pure,
        skips=_mean([_chain(X, circuit.weights, norms, skips=True) for X in starts]),
        with_ffn=log_ffn,
        notes=[*subject.notes, *_notes(rows, ffns)],
    )


Norms = tuple[float, float, float]  # a, b, and the paper's beta


def _norms(weights: HeadWeights) -> Norms:
    """Head by head: a matrix of d x d for each at a time."""
    assert weights.W_Q is not None and weights.W_K is not None and weights.scale is not None
    pairs = [
        head_norms((W_Q @ W_K.mT)[None], (W_V @ W_O)[None], scale=weights.scale)
        for W_Q, W_K, W_V, W_O in zip(weights.W_Q, weights.W_K, weights.W_V, weights.W_O, strict=True)
    ]
    beta = max(float((a * b).sqrt()) for a, b in pairs) / weights.scale
    return float(sum(a for a, _ in pairs)), float(sum(b for _, b in pairs)), beta


def _tokens(circuit: Circuit, X: Tensor) -> list[Tensor]:
    """One (n, d) for each sequence, padding left out."""
    if circuit.mask is None:
        return list(X)
    return [x[keep.bool()] for x, keep in zip(X, circuit.mask, strict=True)]


def _attend(tokens: SplitTokens, w: HeadWeights) -> SplitTokens:
    assert w.W_Q is not None and w.W_K is not None and w.b_Q is not None and w.scale is not None
    return split_attention(tokens, w.W_Q, w.W_K, w.b_Q, w.W_V, w.W_O, offset=w.offset(), scale=w.scale)


def _scores(tokens: SplitTokens, w: HeadWeights) -> Tensor:
    assert w.W_Q is not None and w.W_K is not None and w.scale is not None
    return score_residual(tokens.R, w.W_Q, w.W_K, scale=w.scale)


def _block(sequences: list[Tensor], weights: HeadWeights, norms: Norms, ffn: Lipschitz | None) -> BlockBound:
    (a, b, beta), scale = norms, weights.scale
    assert scale is not None  # 1 / sqrt(d_qk)
    rows = []
    for X in sequences:
        tokens = SplitTokens.of(X)
        E, after = _scores(tokens, weights), _attend(tokens, weights)
        D, size = float(score_spread(E).max()), 10 ** _log(tokens.R)
        ends = [_log(_attend(SplitTokens(tokens.x, math.exp(s) * tokens.R), weights).R) for s in (NUDGE, -NUDGE)]
        rows.append(
            {
                "D": D,
                "gamma": float(exchange_gamma(E).nan_to_num(1.0).max()),
                "log_in": _log(tokens.R),
                "log_out": _log(after.R),
                "log_size": _log(after.X),
                "log_bound": float(attention_bound(size, a, b, D=D, n=len(X))),
                "log_printed": float(rank_collapse_bound(size, 1, beta * scale, 1, heads=weights.heads)),
                "exponent": (ends[0] - ends[1]) * math.log(10) / (2 * NUDGE),
            }
        )
    worst = {name: max(row[name] for row in rows) for name in ("D", "gamma")}
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0] if name not in worst}
    lower, upper = (math.nan, math.inf) if ffn is None else (ffn.lower, ffn.upper)
    return BlockBound(beta=beta, ffn_lower=lower, ffn_upper=upper, **worst, **means)


def _chain(X: Tensor, layers: tuple[HeadWeights, ...], norms: list[Norms], *, skips: bool) -> Chain:
    """Run the heads' weights as a network of attention alone; bound it from its input, by the weights and D."""
    tokens, shift = SplitTokens.of(X), 0.0  # the differences are 10^shift R
    found, size = [_log(tokens.R)], [_log(tokens.X)]
    bound, spreads = [found[0]], []
    for weights, (a, b, _) in zip(layers, norms, strict=True):
        if -math.inf < _log(tokens.R) < SMALL:  # there a layer is cubic to as many digits: 10^s R -> 10^3s
            up = SMALL - _log(tokens.R)
            tokens, shift = SplitTokens(tokens.x, 10**up * tokens.R), shift - up
        spreads.append(10 ** (2 * shift) * float(score_spread(_scores(tokens, weights)).max()))
        after = _attend(tokens, weights)
        tokens, shift = (tokens.plus(after), shift) if skips else (after, 3 * shift)
        found.append(shift + _log(tokens.R))
        size.append(_log(tokens.X))
        D = {"D": spreads[-1], "n": len(X)}
        step = skip_bound(bound[-1], a, b, **D) if skips else attention_bound(1.0, a, b, **D) + 3 * bound[-1]
        bound.append(float(step))
    return Chain(found, bound, size, spreads)


def _mean(chains: list[Chain]) -> Chain:
    def column(name: str) -> list[float]:
        return torch.tensor([getattr(chain, name) for chain in chains], dtype=torch.float64).mean(0).tolist()

    spreads = [max(values) for values in zip(*(chain.D for chain in chains), strict=True)]
    return Chain(column("found"), column("bound"), column("size"), spreads)


def _log(X: Tensor) -> float:
    """log10 of |X|_{1,inf}; the two sums by themselves, because their product may underflow."""
    sums = X.abs().sum(-2).amax(), X.abs().sum(-1).amax()
    return float((sums[0].log10() + sums[1].log10()) / 2)


def _check_covered(circuit: Circuit, index: int, weights: HeadWeights, name: str) -> None:
    where = f"attention must be softmax(X W_QK X^T) over all tokens; block {index + 1} of {name}"
    if (
        weights.W_Q is None
        or weights.W_K is None
        or weights.b_Q is None
        or weights.b_K is None
        or weights.scale is None
    ):
        raise AttentionNotSeenError(
            f"{where} shows no such queries and keys: it turns them by position (Llama), normalises them, or adds "
            "positions to its scores (XLNet, DeBERTa), and the theorem says nothing about it; or it shows its softmax "
            "alone, and should call scaled_dot_product_attention. Use depthscope ablate, which measures."
        )
    for b, P in enumerate(circuit.P[index]):
        keep = slice(None) if circuit.mask is None else circuit.mask[b].bool()
        X, seen = circuit.reads[index][b][keep], P[:, keep][..., keep]
        queries, keys = X @ weights.W_Q + weights.b_Q[:, None], X @ weights.W_K + weights.b_K[:, None]
        unlike = float(((queries @ keys.mT * weights.scale).softmax(-1) - seen).abs().sum(-1).max())
        if unlike <= UNLIKE.get(circuit.dtype, 5e-2):
            continue
        if math.isnan(unlike):
            raise UsageError(f"{where} reads or makes numbers that are not finite. See where: depthscope scan.")
        causal = X.shape[0] > 1 and float(seen.triu(1).abs().max()) == 0
        why = "has a causal mask" if causal else f"adds something to its scores: a row of P differs by {unlike:.1e}"
        raise UsageError(
            f"{where} {why}. Its rows of P differ even for equal tokens, and the theorem says nothing about them. "
            "Use depthscope ablate, which measures."
        )


def _notes(rows: list[BlockBound], ffns: list[Lipschitz | None]) -> list[str]:
    notes = []
    broken = [k + 1 for k, row in enumerate(rows) if not row.applies]
    if broken:
        notes.append(
            f"The paper's precondition (scores differ by D <= 1.256) fails in {len(broken)} of {len(rows)} blocks, "
            f"first in block {broken[0]}: D = {rows[broken[0] - 1].D:.3g}. The bound holds all the same, with D in it; "
            "the printed one is not proved there."
        )
    if not any(ffns):
        notes.append("No feed-forward network was seen to join the stream by itself: no constant for it.")
    elif not all(ffn is not None and math.isfinite(ffn.upper) for ffn in ffns):
        notes.append(
            "A feed-forward network has an upper constant here when it is a matrix, one activation that torch has by "
            "name, and a matrix, with nothing after; gated ones have none at all. Without it the bound with FFN is "
            "infinite."
        )
    return notes
