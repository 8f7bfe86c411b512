"""Options in groups, and the commands that share them."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.testing import CliRunner

from depthscope.cli import main
from depthscope.cli.options import grouped


@dataclass(frozen=True, kw_only=True)
class Pair:
    first: Annotated[str, typer.Argument()]
    second: Annotated[int, typer.Option("--second", "--s")] = 2


def test_a_group_stands_for_its_options() -> None:
    seen = []

    def command(pair: Pair, *, third: Annotated[bool, typer.Option()] = False) -> None:
        """What it does."""
        seen.append((pair, third))

    app = typer.Typer()
    app.command()(grouped(command))
    assert CliRunner().invoke(app, ["a", "--s", "3", "--third"]).exit_code == 0
    assert CliRunner().invoke(app, ["b"]).exit_code == 0
    assert seen == [(Pair(first="a", second=3), True), (Pair(first="b"), False)]
    assert CliRunner().invoke(app, []).exit_code == 2
    assert "What it does." in CliRunner().invoke(app, ["--help"]).output


def test_commands_do_not_import_each_other() -> None:
    folder = Path(main.__file__).parent
    shared = {"completion", "options", "outlook", "output", "screen", "shelves", "settings", "processes"}
    commands = {file.stem for file in folder.glob("*.py")} - {"__init__", "main", *shared}
    for name in commands | shared:
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert module.removeprefix("depthscope.cli.") not in commands
            if module == "depthscope.cli":
                assert not commands & {alias.name for alias in node.names}  # type: ignore[attr-defined]
