"""What a reader should know of attention that is not plain self-attention: windows, sinks, other tokens, no softmax."""

from depthscope.scans.reading import Reading
from depthscope.scans.state_numbers import float64


def kind_notes(reading: Reading) -> list[str]:
    """One note for each kind of attention that was seen in the blocks."""
    shown = [a for a in map(reading.attention, range(reading.depth)) if a is not None]
    notes = []
    windows = sorted({a.tokens for a in shown if a.kind == "window"})
    if windows:
        notes.append(
            f"attention in windows of {' and '.join(map(str, windows))} tokens: delta, lambda_2 and the other numbers "
            "of heads are of one window's matrix, in the mean over windows; omega and mu are not known"
        )
    if any(a.kind == "mixing" for a in shown):
        notes.append(
            "tokens are mixed without a softmax: delta, lambda_2 and omega are of the matrix that multiplies the "
            "values, whose rows are no probabilities"
        )
    if any(a.sink for a in shown):
        notes.append(
            "attention has a sink that is not a token: its rows sum to less than one and are measured as they are"
        )
    crossing = [a for a in reading.mixers() if a.kind == "cross"]
    entropies = [v for a in crossing if a.numbers for row in a.numbers.values.get("attention_entropy", []) for v in row]
    if crossing:
        said = f", with {float(float64(entropies).mean()):.2f} nats of entropy on average" if entropies else ""
        notes.append(
            f"attention to other tokens (of another stream, or fewer) was seen {len(crossing)} times{said}; it has no "
            "delta and no lambda_2, and heads are those of self-attention"
        )
    return notes
