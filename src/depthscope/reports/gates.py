"""How a Gate is shown: what was asked, and which of it holds."""

from typing import Any

from depthscope.gates.record import Gate
from depthscope.gates.words import lines
from depthscope.reports.sheet import Line, Sheet

SIZE = (7, 3.6)


def sheets(gate: Gate) -> list[Sheet]:
    said = [Line(words, style) for words, style in lines(gate)]
    return [Sheet(f"Gate: {gate.model}", said, "green" if gate.passed else "red")]


def draw(gate: Gate, figure: Any) -> None:
    """Diversity over blocks, before dashed, with the least that was asked for."""
    axes = figure.subplots()
    for i, one in enumerate(gate.streams):
        axes.semilogy(one.diversity.clamp_min(1e-16).tolist(), color=f"C{i}", label=one.stream)
        if one.before is not None:
            axes.semilogy(one.before.clamp_min(1e-16).tolist(), color=f"C{i}", ls="--", label=f"{one.stream}, before")
    if gate.asked.min_diversity is not None:
        axes.axhline(gate.asked.min_diversity, color="0.5", ls=":", label="asked for")
    axes.set(xlabel="block", ylabel="diversity", title=f"{gate.model}: {'passes' if gate.passed else 'fails'}")
    axes.legend()
