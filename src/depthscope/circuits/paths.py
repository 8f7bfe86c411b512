"""ds.paths: a model's output as a sum over path lengths, over all (1 + H)^L paths (Dong et al. 2021, section 3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.circuit import circuit_of
from depthscope.circuits.join_factors import read_factors
from depthscope.circuits.linearised import linearise
from depthscope.circuits.one_shape import check_attends_once
from depthscope.circuits.path_lengths import FORMS, PathLengths
from depthscope.circuits.sampled import draw_lengths
from depthscope.circuits.subject import Subject, subjects_of
from depthscope.circuits.weights import weights_of
from depthscope.errors import HookError, UnknownNameError, UsageError, said_by
from depthscope.metrics.sizes import relative_residual
from depthscope.registry import unknown
from depthscope.theory.paths import attend, by_length

MISSED = {torch.float16: 2e-2, torch.bfloat16: 1e-1}  # of the output, by all parts together; others: 1e-3


@said_by("paths")
def paths(
    model: nn.Module,
    inputs: Any,
    *,
    form: str = "secant",
    blocks: str | Iterable[str] | None = None,
    mask: Any = None,
    stream: str | None = None,
    draw: int = 0,
) -> PathLengths:
    """What the paths through exactly 0, 1, .. L attentions contribute to the output of the last block.

    Dropout is off, and the model is left as it was.

    Args:
        model: Any torch module.
        inputs: Inputs of the model, as for ds.scan.
        form: "secant": the whole model, with attention, norms and activations held at their values on these inputs.
            "tangent": the same, with the slopes of activations. "attention": the paper's network, which has attention
            and skips alone; each P is the one that the whole model computes.
        blocks: As for ds.scan.
        mask: As for ds.scan.
        stream: As for ds.scan; by default the stream with most blocks.
        draw: Also draw this many single paths of each length; needs form "attention".

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> X = torch.randn(2, 4, 8, generator=torch.manual_seed(0))  # (batch, n, d)
        >>> ds.paths(model, X).share.shape  # through 0, 1, 2 attentions
        torch.Size([3])
    """
    if form not in FORMS:
        raise UnknownNameError(unknown("form", form, FORMS))
    if draw and form != "attention":
        raise UsageError("single paths can be drawn of attention alone; pass form='attention' with draw.")
    if draw == 1 or draw < 0:
        raise UsageError(f"a standard error needs two paths or more; got draw={draw}.")
    rows, splits = [], []
    for subject in subjects_of(model, inputs, blocks, mask, stream):
        check_attends_once(subject)
        splits.append(_attention_alone(subject, draw) if form == "attention" else _whole_model(subject, form))
        rows.append(_measured(splits[-1], subject.mask))
    return _record(subject.model, form, splits, rows)


@dataclass(frozen=True, eq=False)
class _ByLength:
    """output (B, n, d) = constant + sum of parts (L + 1, B, n, d)."""

    output: Tensor
    constant: Tensor
    parts: Tensor
    heads: list[int]
    error: float
    response_error: float
    dtype: torch.dtype
    drawn: dict[str, Tensor]


def _whole_model(subject: Subject, form: str) -> _ByLength:
    found = linearise(subject, line=form)
    limit = MISSED.get(found.dtype, 1e-3)
    if not found.error <= limit:
        raise HookError(
            f"the frozen {subject.name} must give its own output; it misses it by {found.error:.1e} of its size, more "
            f"than {limit:g}. A function in its blocks is neither linear nor known to be frozen: use form='attention'."
        )
    if not found.uncounted <= limit:
        raise HookError(
            f"a block must attend once, and attention must join the stream by itself; {found.uncounted:.1e} of what "
            f"{subject.name} adds does otherwise, more than {limit:g}. Where a block attends twice, or another branch "
            "is added to attention before both join, lengths cannot be told."
        )
    parts = (found.output, found.constant, found.parts, found.heads)
    return _ByLength(*parts, found.error, found.response_error, found.dtype, drawn={})


def _attention_alone(subject: Subject, draw: int) -> _ByLength:
    joins = read_factors(subject)
    weights = weights_of(subject)
    circuit = circuit_of(subject, weights)
    P = [_stochastic(P, circuit.dtype) for P in circuit.P]
    W_V = [w.W_V for w in weights]
    W_O = [w.W_O * (join.branch / join.skip) for w, join in zip(weights, joins, strict=True)]
    X = circuit.X
    for join in joins:
        X = X * join.skip  # the skips' factors, all at once: every path meets each of them
    parts = by_length(X, P, W_V, W_O)
    output = circuit.X
    for P_l, w, join in zip(P, weights, joins, strict=True):
        output = join.skip * output + join.branch * attend(P_l, w.W_V, w.W_O, output)
    error = float((parts.sum(0) - output).norm() / output.norm())
    heads = [w.heads for w in weights]
    drawn = draw_lengths(X, P, W_V, W_O, parts, draw, subject.mask) if draw else {}
    return _ByLength(output, torch.zeros_like(output), parts, heads, error, float("nan"), torch.float64, drawn)


def _stochastic(P: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows that sum to 1 but for the rounding of the model's dtype, which would keep tokens apart, sum to 1."""
    total = P.sum(-1, keepdim=True)
    return torch.where((total - 1).abs() < 16 * torch.finfo(dtype).eps, P / total, P)


def _measured(split: _ByLength, mask: Tensor | None) -> dict[str, Tensor]:
    """Numbers of every sequence: (L + 1, B), or (B,) where there is one of them."""
    seen = 1.0 if mask is None else mask.to(split.output)[..., None]
    output, constant, parts = (X * seen for X in (split.output, split.constant, split.parts))

    def size(X: Tensor) -> Tensor:
        return X.square().sum((-2, -1)).sqrt()

    along = (parts * output).sum((-2, -1))
    energies = size(parts).square()
    every = None if mask is None else mask.expand(parts.shape[:-1])
    return {
        "norm": size(parts) / size(output),
        "share": along / size(output).square(),
        "cosine": along / (size(parts) * size(output)),
        "energy": energies / energies.sum(0),
        "residual": relative_residual(split.parts, mask=every),
        "constant": (constant * output).sum((-2, -1)) / size(output).square(),
        "constant_norm": size(constant) / size(output),
        "alignment": size(parts.sum(0)) / size(parts).sum(0),
        "output_residual": relative_residual(split.output, mask=mask),
    }


def _record(model: nn.Module, form: str, splits: list[_ByLength], rows: list[dict[str, Tensor]]) -> PathLengths:
    if len({tuple(s.heads) for s in splits}) > 1:
        raise UsageError("every batch must run through the same blocks; they differ. Give batches of one kind.")
    means = {name: torch.cat([row[name] for row in rows], -1).mean(-1) for name in rows[0]}
    numbers: dict[str, Any] = {name: value if value.ndim else float(value) for name, value in means.items()}
    samples = torch.tensor([len(s.output) for s in splits], dtype=torch.float64)
    weights = samples / samples.sum()
    drawn = {name: weights @ torch.stack([s.drawn[name] for s in splits]) for name in splits[0].drawn}
    return PathLengths(
        model=type(model).__name__,
        form=form,
        heads=splits[0].heads,
        tokens=splits[0].output.shape[-2],
        samples=int(samples.sum()),
        precision=8 * max(torch.finfo(s.dtype).eps for s in splits),
        error=max(s.error for s in splits),
        response_error=max(s.response_error for s in splits),
        drawn=drawn,
        **numbers,
    )
