"""Readings of one or more batches become one Scan: means over samples, and notes on what a reader should know."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.scans.decoders import decoder_notes
from depthscope.scans.exceptions import by_block
from depthscope.scans.kinds import kind_notes
from depthscope.scans.reading import WHOLE, Reading, stacked
from depthscope.scans.record import JUDGED, Scan
from depthscope.scans.state_reader import float64
from depthscope.traces.installed import fixes_in
from depthscope.traces.steps import placement_of
from depthscope.traces.streams import ALONE

UNCERTAIN = 0.1  # a relative error above this is said aloud
WHY = {
    "delta": "the few vectors that were tried may have missed its direction",
    "lambda_2": "eigenvalues of attention that is far from symmetric move with every rounding, and powers that would "
    "bound them cost too much in a scan beyond 128 tokens (ds.metrics.lambda_2(P) bounds it up to 512)",
}
LEAKING = 1e-3  # so is attention to padding above this share


def assemble(model: nn.Module, readings: list[Reading], entry_notes: list[str]) -> Scan:
    """The mean over all samples of all batches, which must agree in depth and heads."""
    first = readings[0]
    depths = sorted({r.depth for r in readings})
    if len(depths) > 1:
        raise UsageError(f"every batch must run through the same blocks; got depths {depths}. Scan them one by one.")
    states, spread = _states(readings)
    heads, head_counts, residuals = _heads(readings)
    ways = {reading.causal for reading in readings}
    causal = ways.pop() if len(ways) == 1 else None
    source = first.blocks[0].source
    placement = placement_of(first.anatomies)
    notes = [*_vanished_notes(readings), *entry_notes]
    notes += dict.fromkeys(note for r in readings for note in r.notes)
    notes += _attention_notes(readings, residuals)
    notes += decoder_notes(heads) if causal else []
    if readings[0].without_dropout is not None:
        notes.append("dropout was on: its noise counts as diversity, so the verdict rests on a second run without it")
    if first.gradients and len(_parameter_ids(model, first)) < sum(
        len(_parameter_ids(model, first, i)) for i in range(first.depth)
    ):
        notes.append("blocks share weights: the gradient norm of a shared weight is that of all its uses together")
    return Scan(
        model=type(model).__name__,
        depth=first.depth,
        tokens=source.tokens,
        valid_tokens=float(float64([n for r in readings for n in r.blocks[0].source.numbers.tokens]).mean()),
        width=source.width,
        samples=sum(r.samples for r in readings),
        dtype=source.dtype,
        training=model.training,
        blocks=first.pattern,
        block_names=[b.name for b in first.blocks],
        placement=placement,
        residual_scale=max((a.scale for a in first.anatomies), default=1.0),
        causal=causal,
        token_axis=source.axis or 0,
        states=states,
        spread=spread,
        steps=_steps(readings),
        heads=heads,
        head_counts=head_counts,
        final_norm=_final_norm(readings),
        gradients=_gradients(readings),
        residuals=residuals,
        without_dropout=_without_dropout(readings),
        remedies=[repr(fix) for fix in fixes_in(model) if _acts_in(fix, model, first)],
        broken=next((r.first_broken() for r in readings if r.first_broken() is not None), None),
        notes=notes,
        sequences=_sequences(readings),
        massive=by_block(
            [seen for r in readings for seen in r.judged_states()[block].massive] for block in range(first.depth + 1)
        ),
        vanished=_vanished(readings),
        stream=first.stream,
        sizes=_sizes(first),
    )


def _acts_in(fix: Any, model: nn.Module, reading: Reading) -> bool:
    """Whether a change is of this stream: one of the blocks in which it acts is in, or is, a block of the stream."""
    if reading.stream == ALONE or not fix.blocks:
        return True
    own = {id(part) for block in reading.blocks for path in block.paths for part in model.get_submodule(path).modules()}
    return any(id(part) in own for path in fix.blocks for part in fix.model.get_submodule(path).modules())


def _sizes(reading: Reading) -> list[list[int]]:
    """Tokens and width of every state; nothing where all are the same."""
    ends = (reading.blocks[0].source, *(block.result for block in reading.blocks))
    sizes = [[state.tokens, state.width] for state in ends]
    return sizes if any(size != sizes[0] for size in sizes) else []


def _sequences(readings: list[Reading]) -> dict[str, Tensor]:
    """What the verdict rests on, of every sequence; how far sequences are apart is one number for all of them."""
    found = {name: torch.cat([r.judged(name) for r in readings], dim=-1).cpu() for name in JUDGED}
    counts = torch.cat([r.fold(float64(r.blocks[0].source.numbers.tokens)) for r in readings])
    found["tokens"] = counts.expand_as(found["t_div"])
    found["sequences_apart"] = _sequences_apart(readings)[:, None].expand_as(found["t_div"])
    return found


def _sequences_apart(readings: list[Reading]) -> Tensor:
    """t_div of the directions m_s of the mean tokens of all sequences, 1 - |mean_s m_s|^2: (depth + 1,)."""
    states = list(zip(*(r.judged_states() for r in readings), strict=True))
    sums = [sum(float64(one.directions) for one in state) for state in states]
    counts = [sum(len(one.common) for one in state) for state in states]
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    return torch.stack([1 - mean.square().sum() for mean in means]).clamp_min(0.0)  # type: ignore[union-attr]


def _states(readings: list[Reading]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    states, spread = {}, {}
    for name in readings[0].states()[0].values:
        values = torch.cat([r.values(name) for r in readings], dim=-1).cpu()
        states[name] = values.mean(-1)
        spread[name] = values.std(-1, correction=0)
    return states, spread


def _steps(readings: list[Reading]) -> dict[str, dict[str, Tensor]]:
    steps: dict[str, dict[str, Tensor]] = {}
    names = list(dict.fromkeys(n for r in readings for n in (WHOLE, *r.step_names())))
    for name in names:
        rows = [r.moves(name) for r in readings]
        quantities = next(row for blocks in rows for row in blocks if row)
        steps[name] = {}
        for quantity in quantities:
            parts = [stacked([row.get(quantity) for row in blocks]) for blocks in rows if any(blocks)]
            steps[name][quantity] = torch.cat(parts, dim=-1).mean(-1)
    return steps


def _heads(readings: list[Reading]) -> tuple[dict[str, Tensor], list[int], dict[str, float]]:
    rows = [r.attentions() for r in readings]
    found = [a for row in rows for a in row if a is not None]
    counts = [0 if a is None else len(next(iter(a.values.values()))[0]) for a in rows[0]]
    if not found:
        return {}, counts, {}
    most = max(len(next(iter(a.values.values()))[0]) for a in found)
    heads = {}
    for name in found[0].values:
        per_block = []
        for i in range(len(rows[0])):
            values = [float64(a.values[name]) for a in (row[i] for row in rows) if a is not None]
            mean = torch.cat(values).mean(0) if values else torch.full((most,), math.nan, dtype=torch.float64)
            per_block.append(torch.nn.functional.pad(mean, (0, most - len(mean)), value=math.nan))
        heads[name] = torch.stack(per_block)
    residuals: dict[str, float] = {}
    for a in found:
        for name, value in a.residuals.items():
            residuals[name] = max(residuals.get(name, 0.0), value)
    return heads, counts, residuals


def _vanished(readings: list[Reading]) -> dict[str, float]:
    """Who is given nothing, each with its smallest share over the batches."""
    pairs = [pair for r in readings for pair in r.vanished.items()]
    return {path: min(share for other, share in pairs if other == path) for path, _ in pairs}


def _vanished_notes(readings: list[Reading]) -> list[str]:
    """One note for all who are given nothing."""
    shares = _vanished(readings)
    if not shares:
        return []
    who = ", ".join(
        f"{f'the input of {path}' if path else 'the output'} ({share:.1e})" for path, share in shares.items()
    )
    return [
        f"VANISHED after the last block: {who}, as a share of the size of the tokens. Only rounding noise is left, so "
        "the model can learn nothing but a bias there. Tokens without a mean (complete de-escalation, tau = 1) leave "
        "mean pooling nothing: pool one token (cls) or by attention, take a tau below 1, or leave the last block out "
        "of blocks= in ds.fix_"
    ]


def _certainty(error: float) -> str:
    """A relative error in words: from 1 on nothing bounds the value from below."""
    return f"not known better than {error:.0%}" if error < 1 else "an estimate that nothing bounds from below"


def _attention_notes(readings: list[Reading], residuals: dict[str, float]) -> list[str]:
    found = [a for r in readings for a in r.attentions() if a is not None]
    notes = [
        f"{name} is {_certainty(value)} in some head: {WHY[name]}"
        for name, value in residuals.items()
        if value > UNCERTAIN
    ]
    lost = [name for name in residuals if any(math.isnan(v) for a in found for row in a.values[name] for v in row)]
    if lost:
        notes.append(f"{' and '.join(lost)} could not be computed in some head, whose attention is not finite")
    leak = max((a.leak for a in found), default=0.0)
    if leak > LEAKING:
        notes.append(f"attention gives up to {leak:.0%} of its weight to padding: the model was not given the mask")
    if any(a.sketched for a in found):
        notes.append(
            "mu_2 is measured on 64 random channels: within a percent or so, ten where tokens have few directions"
        )
    if any(a.without_tokens for a in found):
        notes.append("omega and mu are not known: the tokens that attention reads could not be told")
    notes += kind_notes(readings[0])
    missing = sum(a is None for a in readings[0].attentions())
    if found and missing:
        notes.append(f"{missing} of {readings[0].depth} blocks have no self-attention that could be seen")
    return notes


def _final_norm(readings: list[Reading]) -> dict[str, float]:
    if any(r.ending is None for r in readings):
        return {}
    numbers = [r.ending.result.numbers for r in readings]  # type: ignore[union-attr]
    return {name: float(float64([v for n in numbers for v in n.values[name]]).mean()) for name in numbers[0].values}


def _gradients(readings: list[Reading]) -> dict[str, Tensor]:
    if not readings[0].gradients:
        return {}
    weights = torch.tensor([[r.weight_gradient(i) for i in range(r.depth)] for r in readings], dtype=torch.float64)
    tokens = torch.tensor([[s.gradient for s in r.states()] for r in readings], dtype=torch.float64)
    return {"gradient_norm": weights.mean(0), "token_gradient_norm": tokens.mean(0)}


def _without_dropout(readings: list[Reading]) -> Tensor | None:
    rows = [r.judged("t_div") for r in readings if r.without_dropout is not None]
    return torch.cat(rows, dim=-1).mean(-1).cpu() if rows else None


def _parameter_ids(model: nn.Module, reading: Reading, block: int | None = None) -> set[int]:
    """The identities of the parameters in one block, or in all."""
    blocks = reading.blocks if block is None else [reading.blocks[block]]
    return {id(p) for b in blocks for path in b.paths for p in model.get_submodule(path).parameters()}
