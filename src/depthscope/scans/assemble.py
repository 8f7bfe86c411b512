"""A tally becomes a Scan: means over all samples of all batches, their errors, and notes for the reader."""

from torch import Tensor

from depthscope.scans.decoders import decoder_notes
from depthscope.scans.reading import WHOLE
from depthscope.scans.record import Scan
from depthscope.scans.tally import Tally


def assemble(tally: Tally, entry_notes: list[str]) -> Scan:
    """The scan of the batches that were tallied."""
    heads = tally.heads.tables()
    causal = next(iter(tally.causal)) if len(tally.causal) == 1 else None
    notes = [*_vanished_notes(tally.vanished), *entry_notes, *tally.notes, *tally.heads.notes()]
    notes += decoder_notes(heads) if causal else []
    silent = tally.without_dropout
    steps: dict[str, dict[str, Tensor]] = {}
    for (step, quantity), running in tally.steps.items():
        steps.setdefault(step, {})[quantity] = running.mean
    return Scan(
        **tally.facts,
        valid_tokens=float(tally.tokens.mean),
        samples=tally.samples,
        causal=causal,
        states={name: running.mean for name, running in tally.states.items()},
        spread={name: running.spread for name, running in tally.states.items()},
        steps=steps,
        heads=heads,
        head_counts=tally.heads.counts,
        final_norm={name: float(running.mean) for name, running in tally.final_norm.items()},
        gradients={name: running.mean for name, running in tally.gradients.items()},
        residuals=tally.heads.residuals,
        without_dropout=None if silent is None else silent.mean,
        broken=None if tally.broken is None else tally.broken[1],
        notes=[*notes, *tally.told, *tally.sequences.notes()],
        sequences=tally.sequences.table(),
        massive=tally.sequences.massive_tokens(),
        vanished=tally.vanished,
        batches=tally.tokens.batches,
        errors=_errors(tally),
    )


def _errors(tally: Tally) -> dict[str, Tensor]:
    """The standard error over batches of every quantity that scan[...] knows; nothing for one batch."""
    if tally.tokens.batches < 2:
        return {}
    block = {quantity: running.error for (step, quantity), running in tally.steps.items() if step == WHOLE}
    states = {name: running.error for name, running in tally.states.items()}
    gradients = {name: running.error for name, running in tally.gradients.items()}
    return tally.heads.errors() | gradients | block | states


def _vanished_notes(shares: dict[str, float]) -> list[str]:
    """One note for all who are given nothing."""
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
