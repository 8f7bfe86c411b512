"""The story of a gate: whether the model passes, and how much differs between tokens, block by block."""

from depthscope.gates.record import Gate, Judged
from depthscope.reports.story import Chart, Facts, Story, Table, Tone, Trace, Value, Words, curve, notes


def story(gate: Gate) -> Story:
    status = "passed" if gate.passed else "failed"
    tone: Tone = "good" if gate.passed else "bad"
    said = [Words(check.says, "lead", check.title, "bad") for check in gate.failed]
    failed = {check.stream for check in gate.failed}
    asked = {
        "least diversity": gate.asked.min_diversity,
        "verdicts that pass": gate.asked.verdict and ", ".join(gate.asked.verdict),
        "tolerance": gate.asked.tolerance,
    }
    return Story(
        kind="gate",
        title=f"Gate: {gate.model}",
        records={"gate": gate},
        status=status,
        tone=tone,
        verdict=said or [Words("Every demand holds.", "lead", status, tone)],
        where=[_chart(one, gate) for one in gate.streams],
        todo=[Words(f"{one.text} {one.advice}", label=one.stream) for one in gate.streams if one.stream in failed],
        evidence=[_table(gate)],
        how=[
            Facts({"model": f"{gate.model}, {gate.depth} blocks", "held against": gate.against or "thresholds alone"}),
            Facts({name: str(value) for name, value in asked.items() if value is not None}),
            *notes(gate.notes),
        ],
    )


def _chart(one: Judged, gate: Gate) -> Chart:
    traces = [curve("diversity", one.diversity.tolist())]
    if one.before is not None:
        traces.append(Trace("before", one.before.tolist(), range(len(one.before)), line="dash", colour=1))
    least = gate.asked.min_diversity
    says = "The share of the signal that differs between tokens, without what hides it."
    marks = {} if least is None else {"asked for after the last block": least}
    return Chart(f"Diversity, {one.stream}", traces, says, y="diversity", log=True, marks=marks)


def _table(gate: Gate) -> Table:
    rows: list[list[Value]] = [[check.title, "holds" if check.holds else "fails", check.says] for check in gate.checks]
    tones: list[Tone] = ["good" if check.holds else "bad" for check in gate.checks]
    return Table("All demands", ["demand", "result", "why"], rows, left=3, tones=tones)
