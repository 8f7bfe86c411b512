"""The story of a spectrum: which blocks smooth and which sharpen, by which heads, and the eigenvalues that decide."""

from depthscope.circuits.spectrum_record import Spectrum
from depthscope.reports.spectrum import HEADER, LEGEND, header, in_words, row
from depthscope.reports.stories.by_sheets import value_of
from depthscope.reports.story import Chart, Facts, Heat, Part, Story, Table, Tone, Trace, Words, curve, notes

WORDS = {"smooth": 0, "sharpen": 1, "neither": 4}  # and their colours
MOST = 4000  # eigenvalues that are drawn


def story(spectrum: Spectrum) -> Story:
    first, *rest = in_words(spectrum)
    smooth = spectrum.shares["smooth"]
    tone: Tone = "warn" if smooth >= 0.5 else "good" if spectrum.shares["sharpen"] >= 0.5 else "plain"
    status = f"{smooth:.0%} of the blocks smooth"
    blocks = range(1, spectrum.depth + 1)
    heads = spectrum.head_margins.T
    margins: list[Part] = [
        Chart(
            "Margin of every block",
            _margins(spectrum),
            "Above 0 tokens grow alike, below 0 they stay apart.",
            y="margin",
            switch=False,
        ),
        Heat(
            "Margin of every head on its own channels",
            heads.tolist(),
            range(1, len(heads) + 1),
            blocks,
            says="Orange heads smooth, blue heads sharpen.",
            unit="margin",
            middle=0.0,
        ),
    ]
    return Story(
        kind="spectrum",
        title=f"Spectrum: {spectrum.model}",
        records={"spectrum": spectrum},
        status=status,
        tone=tone,
        verdict=[Words(first, "lead", status, tone), *(Words(one) for one in rest)],
        where=margins,
        why=[_plane(spectrum), *_frequencies(spectrum)],
        evidence=[
            Table(
                "All blocks", HEADER, [[*map(value_of, row(spectrum, i))] for i in range(spectrum.depth)], about=LEGEND
            )
        ],
        how=[
            Facts({"model": spectrum.model, "sizes": header(spectrum), "tie": f"margins within {spectrum.tie:g}"}),
            *notes(spectrum.notes),
        ],
    )


def _margins(spectrum: Spectrum) -> list[Trace]:
    return [
        curve("margin", spectrum.margin.tolist(), 1, colour=0),
        curve("by weights alone", spectrum.margin_of_weights.tolist(), 1, line="dash", colour=1),
        curve("with every head's own attention", spectrum.margin_apart.tolist(), 1, line="dot", colour=2),
    ]


def _plane(spectrum: Spectrum) -> Chart:
    """Eigenvalues of H as they act; those that dominate by what their block does."""
    h = (spectrum.eigenvalues * spectrum.factor.unsqueeze(-1)).flatten()
    h = h[:: 1 + len(h) // MOST]
    traces = [Trace("all eigenvalues", h.imag.tolist(), h.real.tolist(), line="points", colour=7)]
    first = spectrum.lambda_H * spectrum.factor
    for word, colour in WORDS.items():
        chosen = [i for i, said in enumerate(spectrum.verdicts) if said == word and first[i].real == first[i].real]
        if chosen:
            points = first[chosen]
            name = f"dominating, {word}"
            traces.append(Trace(name, points.imag.tolist(), points.real.tolist(), line="points", colour=colour))
    says = "In the plane of complex numbers. The dominating one decides what its block does when it is repeated."
    return Chart("Eigenvalues of H as they act", traces, says, x="real part", y="imaginary part", switch=False)


def _frequencies(spectrum: Spectrum) -> list[Part]:
    gains = spectrum.response.clamp(min=1e-6).log2().T
    over = "2-D, over patches" if spectrum.frequencies == "patches" else "over tokens"
    blocks = range(1, spectrum.depth + 1)
    return [
        Heat(
            "What each block does to each frequency",
            gains.tolist(),
            range(len(gains)),
            blocks,
            says=f"log2 of the energy after the block over before, {over}; frequency 0 is what all tokens share.",
            y="frequency",
            unit="log2",
            middle=0.0,
        ),
        Chart(
            "High over low frequencies",
            [curve("hfc / lfc", spectrum.hfc_lfc.tolist(), colour=5)],
            "sqrt(t_div / t_sim) of the states: falls where tokens grow alike.",
            y="hfc / lfc",
        ),
    ]
