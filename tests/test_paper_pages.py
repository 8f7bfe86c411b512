"""docs/papers: pages are what the script makes of the results, and every command of the forty answers runs."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from loops import over

ROOT = Path(__file__).parents[1]
PAPERS = ROOT / "docs" / "papers"
QUESTIONS = (PAPERS / "questions.md").read_text()
ANSWERS = dict(re.findall(r"^### (\w+)\. .*?$(.*?)(?=^##|\Z)", QUESTIONS, re.MULTILINE | re.DOTALL))
COMMANDS = sorted({line for code in re.findall(r"```sh\n(.*?)```", QUESTIONS, re.DOTALL) for line in code.splitlines()})
SMALL = {  # what makes a command small; the others run as they are shown
    "compare": ["--depth", "2", "--epochs", "1", "--seeds", "1", "--width", "16", "--heads", "2", "--quiet"],
    "bound": ["--width", "64", "--heads", "4", "--depth", "3"],
    "ablate": ["--depth", "3", "--width", "64"],
    "reproduce": ["--smoke"],
}
QUICK = ("forecast", "scan", "paths", "bound", "ablate", "ls")
SLOW = ("depthscope forecast --depth 1000 --width 8192 --heads 64 --n 128 --tau 0.3", "depthscope paths bert")
PACKAGED = "depthscope.models.packaged"  # trained weights that a package brings, which tests do not install


@pytest.fixture(scope="module")
def ledger() -> Any:
    spec = importlib.util.spec_from_file_location("ledger", ROOT / "tools" / "ledger.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_is_what_its_results_say(ledger: Any) -> None:
    for paper in ledger.PAPERS:
        kept = json.loads((PAPERS / f"{paper}.json").read_text())
        assert (PAPERS / f"{paper}.md").read_text() == ledger.page(paper, kept), (
            f"run: python tools/ledger.py ({paper})"
        )
        assert {f"{paper}/{item}" for item in kept} == {n for n in ds.experiments.names() if n.startswith(paper)}
        assert all((PAPERS / "figures" / f"{paper}_{item}.png").exists() for item in kept)


def test_what_differs_comes_first_and_has_a_reason(ledger: Any) -> None:
    claim = {"says": "a | b < c", "wanted": "<= 1", "null": None, "value": 2.0, "status": "FAILS", "trials": 1}
    holds = claim | {"says": "this one", "status": "holds", "value": 0.5}
    page = ledger.page("yu2023", {"fig5": {"smoke": True, "seconds": 1, "claims": [holds, claim]}})
    assert page.index("a \\| b &lt; c") < page.index("## What holds") < page.index("this one")
    assert "1 claims hold. 1 do not hold." in page and "reproduce yu2023/fig5 --smoke" in page and "0.29" in page
    with pytest.raises(SystemExit, match=r"reason in docs/papers/why.json; yu2023/fig1 has none"):
        ledger.page("yu2023", {"fig1": {"smoke": False, "seconds": 1, "claims": [claim]}})


def test_a_small_run_never_replaces_a_full_one(ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "HOME", tmp_path)
    (tmp_path / "figures").mkdir()
    result = ds.reproduce("yu2023/remark_2_8", smoke=True)
    file = result.save(tmp_path / "out").with_name("results.json")
    ledger.collect(file)
    kept = json.loads((tmp_path / "yu2023.json").read_text())["remark_2_8"]
    assert kept["smoke"] and [c["value"] for c in kept["claims"]] == pytest.approx(
        [c.value for c in result.claims], rel=1e-4
    )
    (tmp_path / "yu2023.json").write_text(json.dumps({"remark_2_8": {"smoke": False, "seconds": 0, "claims": []}}))
    ledger.collect(file)
    assert json.loads((tmp_path / "yu2023.json").read_text())["remark_2_8"]["claims"] == []


def test_forty_questions_have_short_answers_with_commands() -> None:
    assert sorted(ANSWERS) == sorted(f"{part}{k}" for part in "YABC" for k in range(1, 11))
    for name, answer in ANSWERS.items():
        text = re.sub(r"```sh\n.*?```", "", answer, flags=re.DOTALL)
        sentences = re.split(r"(?<=[.?!])\s+(?=[A-Z])", re.sub(r"`[^`]*`", "x", text).strip())
        assert len(sentences) <= 6, f"{name} has {len(sentences)} sentences"
        assert "```sh\n" in answer, f"{name} has no command"


@over("line", [line for line in COMMANDS if " reproduce " in line])
def test_every_experiment_of_an_answer_exists(line: str) -> None:
    assert line.split()[2] in ds.experiments.names()


def quick(line: str) -> bool:
    return line.split()[1] in QUICK and PACKAGED not in line and line not in SLOW


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=() if quick(line) else pytest.mark.long) for line in COMMANDS]
)
def test_every_command_of_an_answer_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, verb, *words = shlex.split(line)
    if program == "python":
        assert (ROOT / verb).exists()
        return
    if PACKAGED in line:
        assert line.rpartition(":")[2] in dir(__import__(PACKAGED, fromlist=["x"]))
        return
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [verb, *words, *SMALL.get(verb, [])])
    assert result.exit_code == 0, result.output
