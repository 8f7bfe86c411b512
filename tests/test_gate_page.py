"""docs/how-to/gate.md: every block of code is run."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "how-to" / "gate.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
LINES = [line for kind, code in BLOCKS if kind == "sh" for line in code.splitlines()]
FAILS = ["depthscope gate my_package.models:post_norm --inputs my_package.models:batch"]


def called(kind: str, beginning: str = "") -> str:
    [code] = [code for one, code in BLOCKS if one == kind and code.startswith(beginning)]
    return code


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page, and an installed package that declares the entry points of pyproject.toml."""
    for kind, code in BLOCKS:
        name = re.match(r"# (\S+\.py)\n", code)
        if kind == "python" and name:
            (tmp_path / name[1]).parent.mkdir(exist_ok=True)
            (tmp_path / name[1]).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("my_package")]:  # of the test before
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def run(line: str) -> tuple[int, str]:
    program, *words = shlex.split(line)
    assert program == "depthscope"
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output


def test_no_block_is_left_out() -> None:
    assert {kind for kind, _ in BLOCKS} == {"python", "sh", "yaml"} and len(BLOCKS) == 8
    assert sum(kind == "python" for kind, _ in BLOCKS) == len(re.findall(r"```python\n# \S+\.py\n", PAGE))


def test_the_commands(project: Path) -> None:
    for line in LINES:
        code, output = run(line)
        assert code == (1 if line in FAILS else 0), f"{line}\n{output}"
    assert isinstance(ds.load("baseline.json"), ds.Scan)


def test_the_workflow(project: Path) -> None:
    """Its gate runs against the baseline of the page, and writes the files that are kept."""
    steps = yaml.safe_load(called("yaml", "name:"))["jobs"]["gate"]["steps"]
    install, gate = [step["run"] for step in steps if "run" in step]
    assert install.startswith("pip install ADDRESS-OF-DEPTHSCOPE ")
    run(next(line for line in LINES if line.endswith("--out baseline.json")))
    assert run(gate)[0] == 0
    assert sorted(path.name for path in project.glob(steps[-1]["with"]["path"])) == ["gate.json", "gate.xml"]
    assert len(ElementTree.parse("gate.xml").findall(".//testcase")) == 3 and ds.load("gate.json").passed


def test_the_hook(project: Path) -> None:
    [named] = yaml.safe_load(called("yaml", "repos:"))["repos"][0]["hooks"]
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    [hook] = [hook for hook in hooks if hook["id"] == named["id"]]
    assert not hook["pass_filenames"] and hook["language"] == "system"
    assert run(shlex.join([*shlex.split(hook["entry"]), *named["args"]]))[0] == 0


def test_by_hand(project: Path) -> None:
    done = subprocess.run([sys.executable, "by_hand.py"], capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.startswith("False ['verdict', 'regression']\nFAILS.")


def test_the_fixture(project: Path) -> None:
    """As pytest finds it: by the entry point that pyproject.toml declares."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = project / "declared-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\n" + "".join(f"{k} = {v}\n" for k, v in declared.items()))
    (project / "test_lost.py").write_text(
        "from my_package.models import batch, post_norm\n"
        "def test_lost(depthscope_scan):\n    depthscope_scan(post_norm(), batch())\n"
        "def test_asked_wrongly(depthscope_scan):\n    depthscope_scan(None, None, min_diversity=7)\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--tb=short"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILS. TransformerEncoder, 24 blocks" in done.stdout and "advice: " in done.stdout
    assert "min_diversity must lie in (0, 1]; got 7" in done.stdout
