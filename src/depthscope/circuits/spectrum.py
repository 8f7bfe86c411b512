"""spectrum(): does each block of a real model make tokens alike (smooth) or keep them apart (sharpen)?

The eigenvalues of H = W_V W_O and those of attention A decide which part of X -> X + A X H wins with depth (Dovonon
et al. 2024). Both are read from the model as it is; feed-forward networks are no part of the theory.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.attention_eigenvalues import attention_eigenvalues
from depthscope.circuits.attention_layer import Layer, layer_of
from depthscope.circuits.circuit import Circuit, circuit_of
from depthscope.circuits.frequencies import grid_in, patch_energies, response, token_energies
from depthscope.circuits.growth_of_differences import growth_apart
from depthscope.circuits.one_shape import check_attends_once
from depthscope.circuits.skip_and_norm import read_skips_and_norms
from depthscope.circuits.spectrum_record import Spectrum
from depthscope.circuits.subject import subject_of
from depthscope.errors import HookError, UsageError, said_by
from depthscope.metrics.sizes import hfc_lfc
from depthscope.theory.layer_spectrum import LayerSpectrum, layer_spectrum
from depthscope.traces.installed import fixes_in


@said_by("spectrum")
def spectrum(
    model: nn.Module,
    inputs: Any,
    *,
    blocks: str | Iterable[str] | None = None,
    mask: Any = None,
    stream: str | None = None,
    tie: float = 1e-6,
    on_block: Callable[[int], None] | None = None,
) -> Spectrum:
    """Eigenvalues, verdict and frequency response of every block, from one batch.

    For a block, A is the mean of its heads' attention and H the sum of theirs. For a head both are its own, and its
    verdict is about the d_v channels that it reads and writes. Every sequence is judged by its own attention, and the
    block's margin is that of the median sequence. margin_apart is computed with every head's own attention, for the
    same sequence; a note says where the two disagree.

    Args:
        model: Any torch module.
        inputs: Inputs of the model, as for ds.scan; the first batch is used.
        blocks: As for ds.scan.
        mask: As for ds.scan; padding is left out.
        stream: As for ds.scan; by default the stream with most blocks.
        tie: A block whose |margin| is not above this neither smooths nor sharpens.
        on_block: Is called with n before block n is judged.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> X = torch.randn(2, 4, 8, generator=torch.manual_seed(0))  # (batch, n, d)
        >>> ds.spectrum(model, X).margin.shape  # (depth,)
        torch.Size([2])
    """
    subject = subject_of(model, inputs, blocks, mask, stream)
    check_attends_once(subject)
    batch = subject.batch
    _check_lengths(batch.mask)
    circuit = circuit_of(subject)
    reads = read_skips_and_norms(subject)
    if len(reads) != circuit.depth:
        raise HookError(f"every block must join the stream once; {len(reads)} of {circuit.depth} did.")
    found = []
    for index in range(circuit.depth):
        if on_block is not None:
            on_block(index + 1)
        layer = layer_of(circuit.weights[index], reads[index], circuit.mask)
        found.append(_judged(layer, _patterns(circuit, index), circuit.weights[index].product().sum(0), tie))
    fixed = "the model has remedies: what they do outside attention's branch is not in the verdict"
    notes = [*subject.notes, *([fixed] if fixes_in(subject.model) else [])]
    notes += [f"block {i + 1}: {note}" for i, one in enumerate(found) for note in one["notes"]]
    kind, responses = _responses(circuit, grid_in(batch.args, batch.kwargs, circuit.X.shape[-2]))
    states = (circuit.X, *circuit.outs)
    return Spectrum(
        model=subject.name,
        tokens=circuit.X.shape[-2],
        width=circuit.X.shape[-1],
        samples=len(circuit.X),
        placement=[one["placement"] for one in found],
        hfc_lfc=torch.stack([hfc_lfc(X, mask=circuit.mask).double().mean() for X in states]),
        frequencies=kind,
        response=responses,
        tie=tie,
        notes=notes,
        **{name: _stacked([one[name] for one in found]) for name in found[0] if name not in ("placement", "notes")},
    )


def _check_lengths(mask: Tensor | None) -> None:
    lengths = [2] if mask is None else mask.bool().sum(-1).tolist()
    if min(lengths) < 2:
        raise UsageError(
            f"every sequence must have two tokens or more beside its padding; sequence "
            f"{lengths.index(min(lengths)) + 1} has {min(lengths)}. Leave it out: there is nothing to be alike with."
        )


def _patterns(circuit: Circuit, index: int) -> list[Tensor]:
    """P (H, n, n) of each sequence, without padding."""
    P = circuit.P[index]
    if circuit.mask is None:
        return list(P)
    return [one[:, keep][:, :, keep] for one, keep in zip(P, circuit.mask.bool(), strict=True)]


def _judged(layer: Layer, patterns: list[Tensor], H: Tensor, tie: float) -> dict[str, Any]:
    """All that is known of one block; names as in Spectrum."""
    lambda_H, lambda_h = layer.eigenvalues(), layer.head_eigenvalues()
    whole, alone, heads, lowest = [], [], [], []
    for P in patterns:
        lambda_A = attention_eigenvalues(P.mean(0))
        own = attention_eigenvalues(P)  # (H, n)
        whole.append((layer_spectrum(layer.factor * lambda_H, lambda_A, tie=tie), lambda_A))
        alone.append(layer_spectrum(lambda_H, lambda_A, tie=tie).margin)
        heads.append(layer_spectrum(layer.factor * lambda_h, own, tie=tie).margin)
        lowest.append(own.real.amin(-1))
    margins = torch.stack([one.margin for one, _ in whole])
    place = int(margins.argsort()[(len(margins) - 1) // 2])
    middle, lambda_A = whole[place]
    decided = _through_norm(layer, lambda_A, tie) if layer.G is not None else middle
    apart, moved = growth_apart(layer, patterns[place])
    return {
        "eigenvalues": lambda_H,
        "head_eigenvalues": lambda_h,
        "factor": torch.tensor(layer.factor, dtype=torch.float64),
        "lambda_H": decided.lambda_H / layer.factor,
        "lambda_A": decided.lambda_A,
        "constant": decided.constant,
        "rest": decided.rest,
        "margins": margins,
        "margin_apart": decided.constant - apart,
        "margin_of_weights": torch.stack(alone).median(),
        "head_margins": torch.stack(heads).median(0).values,
        "lowest": torch.stack(lowest).mean(0),
        "rank_gap": decided.rank_gap,
        "asymmetry": (H - H.mT).norm() / H.norm().clamp(min=1e-300),
        "negative_scales": torch.tensor(layer.negative, dtype=torch.float64),
        "placement": layer.placement,
        "notes": [*layer.notes, *_disagreement(float(decided.margin), float(decided.constant) - apart, moved)],
    }


def _disagreement(margin: float, apart: float, moved: float) -> list[str]:
    """In words, where the heads' mean attention says the opposite of what the heads do together."""
    if margin * apart >= 0 or abs(apart) <= 2 * moved:
        return []
    return [
        f"with every head's own attention the margin is {apart:+.3f}, not {margin:+.3f}: the mean of the heads "
        "stands badly for them here"
    ]


def _through_norm(layer: Layer, lambda_A: Tensor, tie: float) -> LayerSpectrum:
    """The same where a norm of uneven scale follows the sum: then no single eigenvalue of H decides, it is NaN."""
    others = lambda_A[torch.arange(len(lambda_A)) != int((lambda_A - 1).abs().argmin())]
    first, rest = layer.fastest(others)
    constant = layer.growth(1 + 0j)
    lambda_A = torch.tensor(1 if constant >= rest else first, dtype=torch.complex128)
    common, apart = torch.tensor([constant, rest], dtype=torch.float64)
    unknown = torch.tensor(torch.nan, dtype=torch.float64)
    return LayerSpectrum(common, apart, torch.complex(unknown, unknown), lambda_A, unknown, unknown, tie)


def _responses(circuit: Circuit, grid: tuple[int, int] | None) -> tuple[str, Tensor]:
    """How each block changes the energy at each frequency, (depth, F), over patches or over tokens."""
    keep = _kept(circuit)
    if grid is not None:
        patches = grid[0] * grid[1]
        energies = [patch_energies(X[:, -patches:], grid) for X in (circuit.X, *circuit.outs)]
    else:
        energies = [token_energies(X.gather(1, keep)) for X in (circuit.X, *circuit.outs)]
    return ("patches" if grid else "tokens"), torch.stack(
        [response(before, after) for before, after in pairwise(energies)]
    )


def _kept(circuit: Circuit) -> Tensor:
    """Index of the tokens of each sequence, as many as the shortest has, (B, n, d)."""
    B, n, d = circuit.X.shape
    mask = torch.ones(B, n) if circuit.mask is None else circuit.mask.to(circuit.X)
    shortest = int(mask.sum(-1).min())
    order = mask.sort(dim=-1, descending=True, stable=True).indices[:, :shortest].sort(dim=-1).values
    return order.unsqueeze(-1).expand(-1, -1, d).to(circuit.X.device)


def _stacked(rows: list[Tensor]) -> Tensor:
    """One row for each block; blocks with fewer heads are filled up with NaN."""
    shape = [max(row.shape[k] for row in rows) for k in range(rows[0].ndim)]
    out = torch.full((len(rows), *shape), torch.nan, dtype=rows[0].dtype)
    for i, row in enumerate(rows):
        out[i][tuple(slice(0, k) for k in row.shape)] = row.cpu()
    return out
