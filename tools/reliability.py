"""The tables of docs/reliability.md, written by the commands that make faults, fuzz, load and matrix run."""

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


@dataclass(frozen=True)
class Row:
    """What was tried, how often, what came of it, and what was lost: "nothing", or what."""

    tried: str
    times: int
    came: str
    lost: str = "nothing"


def write(name: str, command: str, rows: list[Row], page: Path = PAGE) -> None:
    """Put a table between the markers of a section; all else stays."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{table(command, rows)}{end}{after}")


def table(command: str, rows: list[Row]) -> str:
    head = ["| what was tried | times | what came | lost |", "| --- | --: | --- | --- |"]
    body = [f"| {row.tried} | {row.times:,} | {row.came} | {row.lost} |" for row in rows]
    total = sum(row.times for row in rows)
    return "\n".join(["", f"`{command}`, {total:,} in all:", "", *head, *body, "", ""])
