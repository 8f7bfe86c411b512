"""Files are whole or not there, whoever else writes them; mistakes about places are told before the work."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import depthscope as ds
from depthscope.errors import DamagedError, UsageError
from depthscope.files import check_writable, whole_file
from depthscope.training.lock import in_turn, lock
from record_examples import example


def test_two_writers_of_one_file_have_a_part_each(tmp_path: Path) -> None:
    parts = []
    for _ in range(3):
        with whole_file(tmp_path / "record.json") as part:
            part.write_text("{}")
            parts.append(part)
    assert len({*parts}) == 3 and all(part.suffix == ".json" and part.parent == tmp_path for part in parts)
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_nothing_is_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").write_text("theirs")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / "part-guessed.json").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="File exists"), whole_file(tmp_path / "record.json"):
        pytest.fail("it was handed out")
    monkeypatch.undo()
    (tmp_path / "record.json").symlink_to(tmp_path / "theirs")
    with whole_file(tmp_path / "record.json") as part:
        part.write_text("ours")
    for place in (lock, lambda folder: in_turn(folder / "a").__enter__()):
        for name in ("lock", ".a.lock"):
            if not (tmp_path / name).is_symlink():
                (tmp_path / name).symlink_to(tmp_path / "theirs")
        with pytest.raises(UsageError, match="must be a file; it is a link"):
            place(tmp_path)
    assert (tmp_path / "theirs").read_text() == "theirs" and (tmp_path / "record.json").read_text() == "ours"


def test_a_file_has_the_rights_that_the_user_gives_to_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "record.json") as part:
            part.write_text("{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "record.json").stat().st_mode) == 0o640


def test_a_record_in_which_one_digit_is_another_is_told(tmp_path: Path) -> None:
    path = example("scan").save(tmp_path / "scan.json")
    whole = path.read_text()
    changed = whole.replace('"tokens": 5', '"tokens": 6', 1)
    assert changed != whole
    path.write_text(changed)
    with pytest.raises(DamagedError, match=r"must be as it was written; .* take 'crc32' out of it if"):
        ds.load(path)
    spelled = json.loads(whole)
    path.write_text(json.dumps(dict(reversed(spelled.items())), indent=7))  # the same numbers in another spelling
    assert ds.load(path).to_dict() == example("scan").to_dict()
    del spelled["crc32"]  # written by hand, or long ago
    path.write_text(json.dumps(spelled).replace('"tokens": 5', '"tokens": 6', 1))
    assert ds.load(path).tokens != example("scan").tokens  # type: ignore[attr-defined]


WRITES = """
import sys
from dataclasses import replace
from depthscope.experiments import results
from depthscope.reports import show
from depthscope.experiments import run
run.picture = lambda record, target: target
record = results(sys.argv[1])["yu2023/proposition_2_3"]
sys.stdin.readline()
for number in range(12):
    replace(record, name=f"yu2023/{sys.argv[3]}_{number}").save(sys.argv[2])
"""


def test_two_writers_of_results_lose_none(tmp_path: Path) -> None:
    """A process each, that begin at one moment."""
    old = Path(__file__).parents[1] / "old_records" / "results.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITES, str(old), str(tmp_path), name], stdin=subprocess.PIPE)
        for name in ("a", "b")
    ]
    for writer in writers:
        writer.stdin.write(b"go\n")  # type: ignore[union-attr]
        writer.stdin.flush()  # type: ignore[union-attr]
    for writer in writers:
        assert writer.wait() == 0
        writer.stdin.close()  # type: ignore[union-attr]
    kept = json.loads((tmp_path / "yu2023" / "results.json").read_text())["experiments"]
    assert sorted(kept) == sorted(f"{name}_{number}" for name in "ab" for number in range(12))


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
