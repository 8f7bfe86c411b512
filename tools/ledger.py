"""One page for each paper: its claims with interval, result, verdict, command and figure; what does not hold first.

    python tools/ledger.py collect out/yu2023/results.json ...   keep the claims, and draw the figures; then write pages
    python tools/ledger.py                                       write docs/papers/PAPER.md from docs/papers/PAPER.json

A small run (results.json of --smoke) is kept only where there is none at full size, and the page says so.
"""

import inspect
import json
import math
import sys
import textwrap
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1] / "docs" / "papers"
PAPERS = {
    "yu2023": ("Yu & Zhang 2023", "Why “classic” Transformers are shallow and how to make them go deep", "2312.06182"),
    "dong2021": ("Dong, Cordonnier & Loukas 2021", "Attention is not all you need", "2103.03404"),
    "dovonon2024": (
        "Dovonon, Bronstein & Kusner 2024",
        "Setting the record straight on Transformer oversmoothing",
        "2401.04301",
    ),
}
DIFFERS = ("FAILS", "differs (known)")
COLUMNS = "| claim | wanted | without the effect | got | verdict |\n|---|---|---|---|---|"
READING = """\
*Wanted* is the interval in which the number must lie. *Without the effect* is the value that the number would have
if the claim were not true; it lies outside the interval, so the claim can fail. A claim that fails need not state
it. *Got* is what we measured. *Differs (known)* means that the claim fails, and that we expect it to fail since an
earlier run. *Reported* numbers have no interval and are not counted. Intervals that were set after a look at
numbers are named in the [notebook](../notebook/index.md)."""


def collect(path: Path) -> None:
    """Take the claims of a results.json into PAPER.json, and its figures into figures/."""
    from depthscope.experiments.run import results

    for name, result in results(path).items():
        paper, _, item = name.partition("/")
        file = HOME / f"{paper}.json"
        kept = json.loads(file.read_text()) if file.exists() else {}
        if result.smoke and item in kept and not kept[item]["smoke"]:
            continue
        keys = ("says", "wanted", "null", "value", "status", "trials")
        claims = [{key: _short(getattr(claim, key)) for key in keys} for claim in result.claims]
        kept[item] = {"smoke": result.smoke, "seconds": round(result.seconds), "claims": claims}
        lines = [f"{json.dumps(one)}: {json.dumps(kept[one])}" for one in sorted(kept)]
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        result.figure().savefig(HOME / "figures" / f"{paper}_{item}.png", dpi=50)


def _short(value: Any) -> Any:
    """Numbers to five digits; None where there is none."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def page(paper: str, kept: dict[str, Any]) -> str:
    """The page as text."""
    who, title, number = PAPERS[paper]
    told = [claim["status"] for one in kept.values() for claim in one["claims"]]
    count = {status: told.count(status) for status in ("holds", "holds (!)", *DIFFERS, "reported")}
    differing = {item: [c for c in one["claims"] if c["status"] in DIFFERS] for item, one in kept.items()}
    parts = [
        f"# {who}: what its claims amount to",
        _wrapped(f"“{title}”, [arXiv {number}](https://arxiv.org/abs/{number})."),
        _wrapped(
            f"{count['holds']} claims hold. {count['FAILS'] + count['differs (known)']} do not hold. "
            f"{count['reported']} numbers are reported only."
            + f" {count['holds (!)']} hold where they were expected to differ."
            * bool(count["holds (!)"])
        ),
        _sizes(paper, kept),
        _wrapped(" ".join(READING.split())),
        _wrapped(
            f"The paper's in-depth questions are answered in [questions](questions.md). How the numbers came "
            f"about is in the [notebook](../notebook/{paper}.md)."
        ),
        "## What does not hold",
    ]
    for item, claims in differing.items():
        if claims:
            shown = [*_words(paper, item), *_run(paper, item, kept[item]), _table(claims)]
            parts += [f"### {item}: what differs", *shown, _wrapped(f"**Why.** {why(f'{paper}/{item}')}")]
    parts.append("## What holds, and what is reported")
    for item, one in kept.items():
        others = [claim for claim in one["claims"] if claim["status"] not in DIFFERS]
        if others:
            words = [] if differing[item] else _words(paper, item)
            run = [] if differing[item] else _run(paper, item, one)
            again = [f"The command and the figure are [above](#{item}-what-differs)."] if differing[item] else []
            parts += [f"### {item}", *words, *run, *again, _table(others)]
    return "\n\n".join(parts) + "\n"


def why(name: str) -> str:
    """Why an experiment's claims differ, in our words: docs/papers/why.json."""
    reasons = json.loads((HOME / "why.json").read_text())
    if name not in reasons:
        sys.exit(f"ledger: what differs must have its reason in docs/papers/why.json; {name} has none. Write it there.")
    return reasons[name]


def _sizes(paper: str, kept: dict[str, Any]) -> str:
    small = [item for item, one in kept.items() if one["smoke"]]
    words = f"`depthscope reproduce {paper}` makes these numbers and figures; each part has its own command below."
    if small:
        words += f" Shown at the small size (`--smoke`), which proves less: {', '.join(small)}."
    return _wrapped(words)


def _words(paper: str, item: str) -> list[str]:
    """What the experiment's file says about itself, without the line that says how to run it."""
    from depthscope.experiments.found import module_of

    paragraphs = inspect.cleandoc(module_of(f"{paper}/{item}").__doc__ or "").split("\n\n")
    return [
        _wrapped(" ".join(part.split())) for part in paragraphs if not part.startswith(f"depthscope reproduce {paper}/")
    ]


def _run(paper: str, item: str, one: dict[str, Any]) -> list[str]:
    smoke = " --smoke" * one["smoke"]
    command = f"```\ndepthscope reproduce {paper}/{item}{smoke}\n```"
    return [command, f"![{item}](figures/{paper}_{item}.png)"]


def _table(claims: list[dict[str, Any]]) -> str:
    rows = []
    for claim in claims:
        says = claim["says"].replace("|", "\\|").replace("<", "&lt;")
        null, got = (_told(claim[key]) for key in ("null", "value"))
        rows.append(f"| {says} | {claim['wanted'].replace('<', '&lt;')} | {null} | {got} | {claim['status']} |")
    return "\n".join([COLUMNS, *rows])


def _told(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False))


def main(words: list[str]) -> None:
    if words[:1] == ["collect"]:
        for path in words[1:]:
            collect(Path(path))
    for paper in PAPERS:
        kept = json.loads((HOME / f"{paper}.json").read_text())
        (HOME / f"{paper}.md").write_text(page(paper, kept))


if __name__ == "__main__":
    main(sys.argv[1:])
