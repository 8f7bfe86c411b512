"""What a terminal shows: the verdict first, a screenful of rows, no cut name at 80 columns, everything at --verbose."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from depthscope.cli.main import app
from depthscope.cli.screen import ROWS, bands, cut, in_short, screenful
from depthscope.reports.sheet import Grid, Line, Sheet
from loops import over

SMALL = ["--width", "32", "--heads", "2", "--tokens", "9", "--batch", "2"]


def shown(*words: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, [*words], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= columns or "-q" in words
    return result.stdout


@pytest.mark.long
@over("words", [["scan", "classic"], ["spectrum", "bert"], ["forecast", "bert"], ["paths", "bert"], ["bound", "bert"]])
def test_nothing_is_cut_and_what_was_found_comes_first(words: list[str]) -> None:
    for columns in (80, 160):
        said = shown(*words, *SMALL, "--depth", "20", columns=columns)
        assert "…" not in said and len(said.splitlines()) <= 48
        whole = shown(*words, *SMALL, "--depth", "20", "-v", columns=columns)
        assert "…" not in whole and len(whole) >= len(said) and "--verbose" not in whole
        [quiet] = shown(*words, *SMALL, "--depth", "20", "-q").splitlines()
        first = " ".join(re.sub("[│╭╮╰╯─]", "", line).strip() for line in said.splitlines()[1:3])
        assert first[:60].strip() in quiet


def test_every_block_of_a_scan_at_verbose() -> None:
    rows = [
        re.findall(r"^│ +(\d+) [01]\.\d", shown("scan", "classic", *SMALL, "--depth", "30", *more), re.M)
        for more in ([], ["-v"])
    ]
    assert len(rows[0]) == 13 and rows[1] == [str(block) for block in range(31)]
    assert "--verbose shows all 30 blocks." in shown("scan", "classic", *SMALL, "--depth", "30")


def test_columns_that_do_not_fit_are_named_and_shown_at_verbose() -> None:
    said = shown("spectrum", "bert", *SMALL, "--depth", "4")
    [names] = re.findall(r"not shown: columns (.*?)\. --verbose", " ".join(re.sub("[│\n]", " ", said).split()))
    assert "asym" in names and "asym" not in said.replace(names, "").splitlines()[5]
    whole = shown("spectrum", "bert", *SMALL, "--depth", "4", "-v")
    assert all(name in whole for name in names.split(", ")) and "not shown" not in whole
    assert "not shown" not in shown("spectrum", "bert", *SMALL, "--depth", "4", columns=160)


def test_before_and_after_first() -> None:
    words = ["scan", "classic", *SMALL, "--depth", "4", "--fix", "de_escalate"]
    said = shown(*words)
    assert said.startswith("╭─ before and after DeEscalate") and "verdict: " in said.splitlines()[1]
    assert "lambda_2" not in said and "lambda_2" in shown(*words, "-v")


def test_quiet_says_what_was_found_and_nothing_else() -> None:
    result = CliRunner().invoke(app, ["scan", "classic", *SMALL, "--depth", "40", "--quiet"])
    [line] = result.stdout.splitlines()
    assert line.startswith("Transformer: ") and "Driven by" in line and result.stderr == ""
    result = CliRunner().invoke(app, ["gate", "classic", *SMALL, "--depth", "40", "--quiet"])
    assert result.stdout.startswith("FAILS. classic") and result.exit_code == 1 and result.stdout.count("\n") == 1


GRID = Grid(
    ["block", *(f"column {k}" for k in range(8))], [[str(i), *(f"{i}.{k}" for k in range(8))] for i in range(40)]
)


@pytest.mark.parametrize("width", [12, 30, 50, 80, 200])
def test_bands_hold_every_cell_once_and_fit(width: int) -> None:
    found = bands(GRID, width)
    assert [name for band in found for name in band.names[1:]] == list(GRID.names[1:])
    for row in range(40):
        assert [cell for band in found for cell in band.cells[row][1:]] == list(GRID.cells[row][1:])
        assert all(band.cells[row][0] == str(row) for band in found)
    for band in found:
        used = (
            sum(
                max(len(cell) for cell in (name, *column)) + 2
                for name, *column in zip(band.names, *band.cells, strict=True)
            )
            - 2
        )
        assert used <= width or len(band.names) == 2


def test_a_long_table_keeps_its_beginning_and_its_end() -> None:
    short = cut(GRID)
    assert len(short.cells) == ROWS and short.cells[0] == GRID.cells[0] and short.cells[-1] == GRID.cells[-1]
    assert short.cells[12][0] == "..." and cut(short) is short


@over("seen", [[20], [39, 5], [20, 21, 26], [14], [13, 17, 25, 30]])
def test_rows_that_the_words_speak_of_are_on_the_screen(seen: list[int]) -> None:
    short = cut(replace(GRID, seen=seen))
    numbers = [row[0] for row in short.cells]
    shown = [int(str(one)) for one in numbers if one != "..."]
    assert {*seen} <= {*shown} and shown == sorted({*shown}) and len(numbers) <= ROWS
    jumps = [now - before for before, now in pairwise(shown)]
    assert numbers.count("...") == sum(jump > 1 for jump in jumps)
    hint = screenful(replace(GRID, seen=seen), 200)[-1]
    assert isinstance(hint, Line) and f"not shown: {40 - len(shown)} rows" in hint.text


def test_the_gist_is_the_bold_line_that_heads_nothing() -> None:
    class Told:
        def sheets(self) -> list[Sheet]:
            body = [
                Line("sizes", "dim"),
                Line("a table", "bold"),
                GRID,
                Line("It holds.", "bold"),
                Line("legend", "dim"),
            ]
            return [Sheet("record", body), Sheet("free", [Line("plain"), Line("")], None)]

    assert in_short(Told()) == ["record: It holds.", "plain"]
