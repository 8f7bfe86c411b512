"""Parts of other tools are imported when they are asked for; what is missing or too old is told in one line."""

import importlib.metadata
import subprocess
import sys
from typing import Any

import pytest

import depthscope as ds
from depthscope.errors import MissingExtraError, UsageError
from depthscope.extras import install
from depthscope.integrations.packages import need


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, depthscope as ds; from depthscope.integrations import packages; print(dir(ds.integrations), "
        "[m for m in ('transformers', 'lightning') if m in sys.modules])"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "'LightningCallback'" in told and "'TrainerCallback'" in told and told.strip().endswith("[]")
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ds.integrations.Nothing


@pytest.mark.parametrize(
    "found, error, says",
    [
        (None, MissingExtraError, r"Callback: needs some-tool. pip install 'depthscope\[tools\]'"),
        ("1.9.9", UsageError, "some-tool must be 2.0 or later; 1.9.9 is installed. pip install 'some-tool>=2.0'"),
        ("2.0.0rc1", None, ""),
        ("10.1", None, ""),
    ],
)
def test_versions(found: str | None, error: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr("depthscope.integrations.packages.version", version)
    if error is None:
        return need("some-tool", "2.0", "Callback", "tools")
    with pytest.raises(error, match=says):
        need("some-tool", "2.0", "Callback", "tools")


def test_a_missing_package_is_told_at_the_import() -> None:
    names = {"TrainerCallback": "hf", "LightningCallback": "lightning"}
    code = f"""
import importlib.metadata as m
def version(name): raise m.PackageNotFoundError(name)
m.version = version
import depthscope.integrations as it
for name in {[*names]}:
    try:
        getattr(it, name)
    except ImportError as error:
        print(error)
"""
    told = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    for line, (name, package) in zip(told, names.items(), strict=True):
        assert line.startswith(f"{name}: needs ") and line.endswith(f". {install(package)}")
