"""The story of advice: what was weighed, what was chosen, and the line that does it."""

from depthscope.forecasts.advice import Advice
from depthscope.reports.story import PALETTE, Chart, Code, Facts, Part, Story, Table, Tone, Words, curve


def story(advice: Advice) -> Story:
    tone: Tone = "bad" if not advice.holds else "warn" if advice.needed else "good"
    status = "no single change helps" if not advice.holds else "change it" if advice.needed else "no fix needed"
    choice = advice.choice
    todo: list[Part] = [Code(f"{choice.change}:", choice.code)] if choice.code else [Words("Nothing needs to change.")]
    now = advice.options[0].forecast
    return Story(
        kind="advice",
        title=f"Advice: {now.source}",
        records={"advice": advice},
        status=status,
        tone=tone,
        verdict=[Words(advice.text, "lead", status, tone)],
        where=[_chart(advice)],
        todo=todo,
        evidence=[_table(advice)],
        how=[
            Facts(
                {
                    "floor": f"{advice.floor:g} of the signal must differ between tokens at block {now.depth}",
                    "gradients": f"may grow by {advice.most_growth:g} over all blocks at most, where that is known",
                }
            ),
            *(Words(f"Assumed: {one}") for one in now.assumed),
        ],
    )


def _chart(advice: Advice) -> Chart:
    """t_div of every option; the choice is the solid line."""
    traces = [
        curve(
            f"{option.change} (chosen)" if option is advice.choice else option.change,
            option.forecast.t_div.tolist(),
            line="solid" if option is advice.choice else "dash",
            colour=i % PALETTE,
        )
        for i, option in enumerate(advice.options)
    ]
    says = "What would still differ between tokens, with each change that was weighed. The choice is solid."
    return Chart("Expected token diversity", traces, says, y="t_div", log=True, marks={"floor": advice.floor})


def _table(advice: Advice) -> Table:
    rows = [
        [
            option.change,
            option.t_div,
            "not known" if option.growth is None else option.growth,
            "chosen" if option is advice.choice else "enough" if advice.keeps(option) else "",
            option.code,
        ]
        for option in advice.options
    ]
    names = ["change", "t_div at the end", "growth of gradients", "holds", "code"]
    return Table("What was weighed, from mild to strong", names, rows, left=1)
