"""Files are whole or not there, whoever else writes them; mistakes about places are told before the work."""

import os
import socket
from pathlib import Path

import pytest

from depthscope.errors import UsageError
from depthscope.files import check_writable, whole_file


def test_two_writers_of_one_file_have_a_part_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    for name, pid in (("here", 1), ("here", 2), ("there", 1)):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        with whole_file(tmp_path / "record.json") as part:
            part.write_text("{}")
            parts.append(part)
    assert len({*parts}) == 3 and all(part.suffix == ".json" and part.parent == tmp_path for part in parts)
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_after_an_error_the_old_file_stays_and_no_part(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("old")
    with pytest.raises(RuntimeError, match="boom"), whole_file(tmp_path / "record.json") as part:
        part.write_text("half")
        raise RuntimeError("boom")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="must be a file; it is a folder"):
        check_writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="its folder must be writable; "):
        check_writable(tmp_path / "file" / "record.json")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UsageError, match="its folder must be writable; it is not"):
        check_writable(tmp_path / "record.json")
