"""The command itself: help in groups, version, completion, names; all of it without torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli import shelves
from depthscope.cli.completion import LISTED
from depthscope.cli.main import COMMANDS, app
from loops import over

WORDS = (["--help"], ["--version"], ["scan", "--help"], ["ls", "metrics"], ["ls", "experiments"], ["ls", "models"])


def test_neither_help_nor_version_nor_names_import_torch() -> None:
    """In one process, each as a user would type it."""
    code = (
        "import sys\nfrom depthscope.cli.main import app\n"
        f"for words in {WORDS!r}:\n"
        "    try:\n        app(words)\n"
        "    except SystemExit as done:\n        assert done.code == 0\n"
        "    assert not {'torch', 'numpy', 'transformers'} & set(sys.modules), words\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"depthscope {ds.__version__}\n" in done.stdout and "t_sim" in done.stdout


def test_the_names_that_are_shown_are_those_on_the_shelves() -> None:
    told = f"python -m depthscope.cli.shelves > {LISTED.relative_to(LISTED.parents[3])}"
    assert LISTED.read_text(encoding="utf-8") == shelves.as_json(), f"renew it: {told}"


def test_commands_stand_under_what_people_want() -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"})
    heads = re.findall(r"╭─ (.*?) ─", result.stdout)
    assert heads == ["Options", *COMMANDS] and result.exit_code == 0
    commands = {module.__name__.rpartition(".")[2] for modules in COMMANDS.values() for module in modules}
    folder = Path(shelves.__file__).parent
    assert commands == {file.stem for file in folder.glob("*.py") if "\ndef command(" in file.read_text()}


@over("columns", ["80", "160"])
@over("name", sorted(get_command(app).commands))
def test_help_swallows_no_word(name: str, columns: str) -> None:
    """Words in square brackets are no styles; what a command and its options say is all there."""
    command = get_command(app).commands[name]
    shown = squeezed(CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": columns}).stdout)
    said = [command.help.replace(r"\[", "["), *(one.help for one in command.params if one.help)]
    assert [words for words in said if squeezed(words) not in shown] == []
    assert "\\[" not in shown


def squeezed(words: str) -> str:
    """Without spaces, frames and line ends."""
    return re.sub(r"[\s│╭╮╰╯─]", "", words)


@over(
    "typed, offered",
    [
        ("depthscope sc", {"scan"}),
        ("depthscope ls m", {"metrics", "models"}),
        ("depthscope scan ber", {"bert"}),
        ("depthscope train dig", {"digits"}),
        ("depthscope reproduce yu2023/fig1", {"yu2023/fig1"}),
    ],
)
def test_shells_complete(typed: str, offered: set[str]) -> None:
    count = str(len(typed.split()) - 1)
    env = {**os.environ, "_DEPTHSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": count}
    code = "import sys; sys.argv = ['depthscope']; from depthscope.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert set(done.stdout.split()) == offered, done.stderr


def test_quiet_and_verbose_exclude_each_other() -> None:
    result = CliRunner().invoke(app, ["scan", "classic", "-q", "-v"])
    assert isinstance(result.exception, ds.errors.UsageError)
    with pytest.raises(ds.errors.UsageError, match="one of them at most"):
        raise result.exception
