"""The story of a forecast: the expected curve, dashed where nothing was measured, with its band; what would help."""

import math

from depthscope.forecasts.record import Forecast
from depthscope.reports.forecasts import basis, gradients_in_words, in_words, rate_in_words
from depthscope.reports.story import Chart, Code, Facts, Part, Story, Table, Tone, Trace, Words, curve, notes

LOST = 0.99  # of t_sim


def story(forecast: Forecast) -> Story:
    lost = forecast.collapse_depth(LOST)
    tone: Tone = "bad" if math.isfinite(lost) else "warn" if forecast.warnings else "good"
    status = "tokens will be lost" if math.isfinite(lost) else "no collapse"
    facts = {"of": forecast.source, "sizes": f"{forecast.depth} blocks, {forecast.n} tokens", "basis": basis(forecast)}
    if forecast.tau:
        facts["de-escalation in it"] = f"tau {forecast.tau:g} at block_out"
    return Story(
        kind="forecast",
        title=f"Forecast: {forecast.source}",
        records={"forecast": forecast},
        status=status,
        tone=tone,
        verdict=[Words(in_words(forecast), "lead", status, tone), *_rate(forecast), *notes(forecast.warnings)],
        where=curves(forecast),
        why=_why(forecast),
        todo=_todo(forecast, lost),
        evidence=[_table(forecast)],
        how=[Facts(facts), *(Words(f"Assumed: {one}") for one in forecast.assumed)],
    )


def _rate(forecast: Forecast) -> list[Part]:
    return [Words(rate_in_words(forecast))] if forecast.rate_limit is not None else []


def curves(forecast: Forecast) -> list[Part]:
    """Similarity and diversity: solid as far as it was measured, dashed beyond, with the band."""
    similar, diverse = (_parts(forecast, name) for name in ("t_sim", "t_div"))
    band = " The band holds nine cases of ten." if forecast.band is not None else ""
    says = f"Share of the signal that all tokens have in common. Dashed: forecast.{band}"
    return [
        Chart("Expected token similarity", similar, says, y="t_sim", low=0, high=1, marks={"lost": LOST}),
        Chart("Expected token diversity", diverse, f"What still differs between tokens.{band}", y="t_div", log=True),
    ]


def ahead(forecast: Forecast, name: str, called: str, colour: int) -> Trace:
    """The part of t_sim or t_div that was not measured, with its band."""
    known, band = forecast.measured, None
    if forecast.band is not None:
        low, high = forecast.band[:, known:]
        band = (low.tolist(), high.tolist()) if name == "t_sim" else ((1 - high).tolist(), (1 - low).tolist())
    values = getattr(forecast, name)[known:].tolist()
    return curve(called, values, known, line="dash", band=band, colour=colour)


def _parts(forecast: Forecast, name: str) -> list[Trace]:
    to_come = ahead(forecast, name, f"{name} forecast", 1)
    known = getattr(forecast, name)[: forecast.measured + 1].tolist()
    return [curve(f"{name} measured", known, colour=0), to_come] if forecast.measured else [to_come]


def _why(forecast: Forecast) -> list[Part]:
    parts: list[Part] = [
        Chart(
            "What a block multiplies the odds of similarity by",
            [curve("growth", forecast.growth.tolist(), 1, colour=3)],
            "Odds are t_sim / t_div. Above 1 a block makes tokens more alike.",
            y="factor",
            marks={"1: no change": 1.0},
        )
    ]
    growth = forecast.gradient_growth
    if growth is not None:
        parts += [
            Words(gradients_in_words(forecast)),
            Chart(
                "Gradients on their way back through each block",
                [curve("growth of gradients", growth.tolist(), 1, colour=4)],
                "Above 1 gradients grow towards the first block.",
                y="factor",
                marks={"1: no change": 1.0},
            ),
        ]
    return parts


def _todo(forecast: Forecast, lost: float) -> list[Part]:
    if math.isinf(lost):
        return [Words(f"No fix needed within {forecast.depth} blocks, by this forecast."), _measure()]
    tau = min(1.0, math.ceil(20 * forecast.critical_tau + 1e-9) / 20)  # the next multiple of 0.05 above it
    said = f"De-escalation with tau above {forecast.critical_tau:.2f} stops the growth that is forecast:"
    return [Code(said, f'ds.fix_(model, ds.remedies.DeEscalate({tau:g}), at="block_out")'), _measure()]


def _measure() -> Code:
    return Code("Hold the forecast against the model:", "scan = ds.scan(model, inputs)")


def _table(forecast: Forecast) -> Table:
    names = ["block", "t_sim", "t_div", "t_cos"]
    columns = [forecast.t_sim.tolist(), forecast.t_div.tolist(), forecast.t_cos.tolist()]
    if forecast.band is not None:
        names += ["t_sim at least", "t_sim at most"]
        columns += forecast.band.tolist()
    rows = [[i, *(column[i] for column in columns)] for i in range(forecast.depth + 1)]
    about = "at least, at most: in nine cases of ten." if forecast.band is not None else ""
    return Table("All blocks", names, rows, about=about)
