"""The findings of a coverage run on the screen and as a page."""

from collections import Counter

from rich.console import Console
from rich.table import Table
from tools.coverage.case import Case
from tools.coverage.checks import Finding

VERDICTS = ("right", "refused", "wrong", "off", "crash", "none")
COLOURS = {"right": "green", "refused": "yellow", "wrong": "red", "off": "magenta", "crash": "red", "none": "dim"}
MARKS = {"right": "yes", "refused": "refused", "wrong": "WRONG", "off": "off", "crash": "CRASH", "none": "-"}
REASON = 120  # characters on the page
Findings = dict[str, dict[str, Finding]]


def counts(cases: list[Case], found: Findings, verb: str) -> Counter[str]:
    """How many cases with repeated blocks have each verdict."""
    return Counter(found[c.name][verb].verdict for c in cases if c.repeats and verb in found[c.name])


def totals(cases: list[Case], found: Findings) -> list[list[str]]:
    """One row for each verb: how many, the share that is right, and the number of each verdict."""
    rows = []
    for verb in _verbs(found):
        number = counts(cases, found, verb)
        judged = sum(number.values()) - number["none"]
        share = 100 * number["right"] / judged if judged else 0.0
        rows.append([verb, str(judged), f"{share:.1f}", *(str(number[v]) for v in VERDICTS)])
    return rows


def _verbs(found: Findings) -> list[str]:
    return list(next(iter(found.values()), {}))


def show(cases: list[Case], found: Findings) -> None:
    """A table for each group, everything that is not right with its reason, and the totals."""
    console = Console(width=None if Console().is_terminal else 160)
    for group in dict.fromkeys(c.group for c in cases):
        table = Table("case", *_verbs(found), title=group)
        for case in (c for c in cases if c.group == group):
            row = [f"[{COLOURS[f.verdict]}]{f.verdict}" for f in found[case.name].values()]
            table.add_row(case.name, *row)
        console.print(table)
    for verb in _verbs(found):
        for verdict in VERDICTS[1:]:
            bad = [(c.name, found[c.name][verb].why) for c in cases if found[c.name][verb].verdict == verdict]
            if bad:
                console.print(f"\n[bold]{verb}: {verdict} ({len(bad)})")
            for name, why in bad:
                console.print(f"  {name}: {why}", markup=False, highlight=False)
    table = Table("verb", "models", "right %", *VERDICTS, title="models with repeated token blocks")
    for row in totals(cases, found):
        table.add_row(*row)
    console.print(table)


def as_page(cases: list[Case], found: Findings) -> str:
    """docs/coverage.md."""
    lines = [
        "# Coverage",
        "",
        "Written by `make coverage`: do not edit. Every model is tiny (5 blocks, width 64, 24 tokens, 3",
        "sequences) with random weights, and is held to a truth in which depthscope has no part: hooks at",
        "modules that were named by hand, or a model that hands out its own stream; t_sim, delta and",
        "lambda_2 written out in numpy. One row is one model, or one stream of a model with several.",
        "",
        "- **scan** is right when depth and t_sim agree to 1e-6, and delta and lambda_2 of every head to",
        "  1e-3 where the model hands out its attention.",
        "- **back** is right when `scan.blocks`, passed back, gives the same numbers.",
        "- **fix** is right when DeEscalate(1) at block_out gives the output of the model whose true stream",
        "  loses its mean after every block, causal models do not leak, padding does not matter, and undo",
        "  gives the outputs of before bit for bit.",
        "- **forecast** is right when every t_sim is within .05.",
        "",
        "| verb | models | right % | " + " | ".join(VERDICTS) + " |",
        "|---|" + "---|" * (len(VERDICTS) + 2),
        *("| " + " | ".join(row) + " |" for row in totals(cases, found)),
        "",
        '"none" has no truth to be held to. Models without repeated token blocks are not counted: there a',
        "refusal is right.",
    ]
    for group in dict.fromkeys(c.group for c in cases):
        lines += ["", f"## {group[0].upper()}{group[1:]}", "", "| case | " + " | ".join(_verbs(found)) + " |"]
        lines += ["|---|" + "---|" * len(_verbs(found))]
        for case in (c for c in cases if c.group == group):
            lines.append(f"| {case.name} | " + " | ".join(MARKS[f.verdict] for f in found[case.name].values()) + " |")
    lines += ["", "## Why not", "", "| case | verb | verdict | reason |", "|---|---|---|---|"]
    return "\n".join(lines + [row for case in cases for row in _reasons(case, found[case.name])]) + "\n"


def _reasons(case: Case, findings: dict[str, Finding]) -> list[str]:
    """A row for every verb that is not right; what is said again by the next verb is not repeated."""
    rows, said = [], set()
    for verb, finding in findings.items():
        if finding.verdict != "right" and finding.why not in said:
            why = finding.why.replace("|", "\\|")[:REASON]
            rows.append(f"| {case.name} | {verb} | {finding.verdict} | {why} |")
        said.add(finding.why)
    return rows
