"""Things of another package: installed beside depthscope, found by name, used; what cannot be loaded is told."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE / "example_package"
SOURCE = HERE.parents[1] / "src"


def by_hand(target: Path) -> Path:
    """What an installer leaves: the package, and what it declares."""
    declared = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    shutil.copytree(PACKAGE / "src" / "example_plugin", target / "example_plugin")
    info = target / "example_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in entries.items())
        for group, entries in declared["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return target


def python(target: Path, *words: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(target), str(SOURCE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "160"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, cwd=target)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_hand(tmp_path_factory.mktemp("site"))


def used(target: Path, *folder: str) -> dict:
    done = python(target, str(HERE / "use_example.py"), *folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_one_thing_of_every_kind_is_used_and_what_fails_is_told_by_name(installed: Path) -> None:
    found = used(installed)
    assert found["peak"] < 1e-12 and found["listed"] and len(found["scanned"]) == 4
    assert found["remedies"] == ["Shrink(by=0.5) at block_out"] and found["claims"] is True and found["task"] == 4
    assert found["t_sim"] == 1.0  # the thief did not get its place
    ours = "of example-plugin (depthscope."
    broken, idle, nothing, thief = found["warnings"]
    assert (
        broken
        == f"the plug-in 'broken' {ours}metrics) is left out; ImportError: there is no such thing as example_library."
    )
    assert idle == f"the plug-in 'idle' {ours}metrics) is left out; its import must register a metric, and did not."
    assert nothing.startswith(f"the plug-in 'nothing' {ours}experiments)") and "paper/item" in nothing
    assert thief.startswith(f"the plug-in 'thief' {ours}metrics)") and "'t_sim' is there already" in thief
    assert "Did you mean peak_norm" in found["unknown"] and "'broken' of example-plugin" in found["unknown"]


@pytest.mark.parametrize(
    "words, shown",
    [
        (["ls", "metrics"], ["peak_norm", "t_sim", "The largest token over the mean token."]),
        pytest.param(["ls", "remedies"], ["Shrink", "halved", "DeEscalate"], marks=pytest.mark.long),
        pytest.param(["ls", "experiments"], ["example2026/means", "yu2023/fig1"], marks=pytest.mark.long),
        (["scan", "tiny", "-q"], ["TransformerEncoder: "]),
    ],
)
def test_the_command_knows_them(installed: Path, words: list[str], shown: list[str]) -> None:
    done = python(installed, "-m", "depthscope", *words)
    assert done.returncode == 0 and all(one in done.stdout for one in shown), done.stdout + done.stderr


def test_without_plug_ins_nothing_is_loaded(tmp_path: Path) -> None:
    code = "import depthscope as ds; from depthscope import plugins; ds.metrics.t_sim; print(plugins.FAILED, plugins.entries('metric'))"
    assert python(tmp_path, "-c", code).stdout.strip() == "{} {}"


@pytest.mark.long
def test_an_installer_does_the_same(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    copy, target = tmp_path / "source", tmp_path / "site"
    shutil.copytree(PACKAGE, copy)
    words = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        str(target),
        str(copy),
    ]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = used(target, str(tmp_path / "runs"))
    assert found["peak"] < 1e-12 and found["arms"] == [1, 1]
