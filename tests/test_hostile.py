"""What strangers may hand in: folders with code, packed bombs, names with markup, addresses with passwords."""

import errno
import gzip
import inspect
import json
import os
import pickle
import re
import sys
import zipfile
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli import main
from depthscope.cli.main import app
from depthscope.errors import RecordError, UsageError, first_line
from depthscope.experiments import kept_outcomes
from depthscope.files import through_no_link
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.registry import TABLES
from depthscope.reports.show import markdown
from depthscope.training.build import Build
from depthscope.training.data import npz, reading
from depthscope.training.data.npz import read_npz
from depthscope.training.data.reading import lines
from depthscope.training.data.rows import decode
from depthscope.training.job import ERRORS, STEPS, Job, code, do
from depthscope.training.lock import asking
from depthscope.training.own_process import Asker, in_own_process
from depthscope.training.recipe import Recipe
from depthscope.training.search import storage_of, without_secrets
from loops import over
from record_examples import example

CONFIG = '{"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.C", "AutoModel": "theirs.M"}}'


@over("more", [{}, {"head": "as saved"}, {"memory": "1GB"}, {"text": "words.txt"}])
def test_code_in_a_folder_does_not_run_even_when_stdin_says_yes(
    more: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    (tmp_path / "words.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr(sys, "stdin", StringIO("y\ny\n"))
    with pytest.raises(UsageError, match=r"it has code of its own, which is not run. Load the model in a function"):
        resolve(str(tmp_path), Sizes(), **more)
    assert not (tmp_path / "sprung").exists()


def test_the_code_of_a_tokenizer_does_not_run_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    small = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)
    transformers.GPT2Model(small).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["theirs.T", null]}}')
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    (tmp_path / "words.txt").write_text("words")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(UsageError, match="tokenizer"):
        resolve(str(tmp_path), Sizes(), text=str(tmp_path / "words.txt"))
    assert not (tmp_path / "sprung").exists()


class Springs:
    """Unpickling it would leave a folder behind."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


@over("how", ["zip", "legacy", "plain"])
def test_a_pickle_in_the_place_of_what_a_remedy_has_learned_does_not_run(how: str, tmp_path: Path) -> None:
    model = ds.models.classic(depth=2, d=8, h=2)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5, learnable=True)) as fix:
        fix.save(tmp_path)
    path, trap = tmp_path / "depthscope_learned.pt", {"": Springs(tmp_path / "sprung")}
    if how == "plain":
        path.write_bytes(pickle.dumps(trap, protocol=2))
    else:
        torch.save(trap, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(RecordError, match="must hold what the remedy has learned"):
        ds.fix_(model, tmp_path)
    assert not (tmp_path / "sprung").exists() and not ds.fixes(model)


def test_a_pickle_in_the_place_of_weights_does_not_run(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9).save_pretrained(tmp_path)
    torch.save({"wte.weight": Springs(tmp_path / "sprung")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match="must load with transformers"):
        resolve(str(tmp_path), Sizes())
    assert not (tmp_path / "sprung").exists()


def bomb(path: Path, megabytes: int) -> Path:
    """A .npz of zeros, a thousandth of the size that it says."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("train_images.npy", "w") as file:
        shape = (megabytes * 2**20 // 3072, 32, 32, 3)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for _ in range(megabytes):
            file.write(bytes(2**20))
    return path


def test_a_packed_bomb_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was read"))
    monkeypatch.setattr(npz, "FREE", 2**20)
    with pytest.raises(UsageError, match=r"bomb.npz: must unpack to at most 64 times its size; .* \d[,0-9]+ times"):
        read_npz(bomb(tmp_path / "bomb.npz", 8))


@over("text", [bytes(3 * 2**20), b"word\n" * 2**20])
def test_a_packed_text_without_end_is_refused_on_the_way(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FREE", 2**20)
    with gzip.open(tmp_path / "bomb.txt.gz", "wb", compresslevel=1) as file:
        file.write(text)
    with pytest.raises(UsageError, match=r"bomb.txt.gz: must unpack to at most [0-9,]+ bytes"):
        for _ in lines(tmp_path / "bomb.txt.gz"):
            pass


def test_an_image_of_too_many_pixels_is_refused_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    packed = BytesIO()
    image.new("1", (9000, 8000)).save(packed, "png")
    monkeypatch.setattr(image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(UsageError, match=r"an image that can be read; .*9000 x 8000 are more than 67,108,864 pixels"):
        decode({"path": None, "bytes": packed.getvalue()}, "here", 32, True)


@over(
    "url, secrets",
    [
        ("nosuch://bob:s3cr3t@127.0.0.1/db", ["s3cr3t"]),
        ("nosuch://bob:p%40ss+w@127.0.0.1/db?password=hunter2&ssl=no", ["p%40ss", "p@ss", "hunter2"]),
        ("bob:s3cr3t@127.0.0.1", ["s3cr3t"]),
        ("nosuch://bob:a@b@host/db", ["a@b"]),
    ],
)
def test_passwords_of_a_storage_are_told_nowhere(url: str, secrets: list[str], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(UsageError, match="storage: must be the URL of a database") as caught:
        storage_of(tmp_path, url)
    said = f"{caught.value} {caught.value.__cause__}"
    assert not any(secret in said for secret in secrets) and "***" in said
    assert caught.value.__suppress_context__  # a traceback shows no other error, which has the address


def test_words_of_a_driver_have_no_password() -> None:
    words = without_secrets("x://bob:s3c%2Fr@h/d", "x://bob:s3c%2Fr@h/d: no 's3c/r' for bob")
    assert words == "x://bob:***@h/d: no '***' for bob"
    assert without_secrets("sqlite:///trials.db", "as it is") == "as it is"


MARKED = "[/]"  # rich takes it for the end of a style that nobody began
HOSTILE = "[/red]$\\frac{$<script>alert(1)</script>&\"' =1+1"


def named(name: str) -> Any:
    model = ds.models.classic(depth=3, d=16, h=2)
    model.__class__ = type(name, (type(model),), {})
    return model


@over("name", [MARKED, HOSTILE, "\x1b[31mred\x07"])
def test_a_model_may_be_called_anything(name: str, tmp_path: Path) -> None:
    scan = ds.scan(named(name), torch.randn(2, 9, 16))
    assert scan.model == name
    page = ds.report(scan, to=tmp_path / "page.html").read_text()
    assert "<script>alert" not in page
    scan.draw().savefig(tmp_path / "picture.svg")
    Xml.parse(tmp_path / "picture.svg")
    assert "<script>" not in (tmp_path / "picture.svg").read_text()
    assert re.search(r"(?<!\\)<script|[\x1b\x07]", markdown(scan)) is None
    assert "<script>alert" not in str(scan._repr_html_()) and "\x1b" not in str(scan)
    assert ds.load(scan.save(tmp_path / "scan.json")).to_dict() == scan.to_dict()
    half = replace(scan, model="half \ud800 of a character")  # as a file may say, and no class can be called
    ds.report(half, to=tmp_path / "half.html")
    assert "\ud800" not in str(half)


@over(
    "words",
    [
        ["train", "digits", "--remedy", MARKED],
        ["compare", f"digits{MARKED}"],
        ["compare", "digits", "--arms", MARKED],
        ["scan", f"os:{MARKED}"],
        ["scan", f"./{MARKED}"],
        ["reproduce", MARKED],
        ["forecast", MARKED],
    ],
)
def test_words_of_the_command_line_with_markup_are_one_clear_line(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ds.errors.DepthscopeError), done.exception


@over("command", ["scan", "forecast", "train", "compare"])
@over("seed", ["1e30", "9" * 30, "-1", str(2**63)])
def test_a_seed_that_is_none_is_refused_in_words(command: str, seed: str) -> None:
    what = "digits" if command in ("train", "compare") else "classic"
    done = CliRunner().invoke(app, [command, what, "--depth", "2", "--seed" + "s" * (command == "compare"), seed])
    assert isinstance(done.exception, ds.errors.DepthscopeError) or done.exit_code == 2, done.exception


@over("command", ["scan", "forecast", "bench"])
@over("size", ["--depth", "--width", "--tokens", "--batch"])
def test_a_size_that_nobody_means_is_refused_before_anything_is_built(command: str, size: str) -> None:
    if command == "bench" and size != "--depth":
        return
    done = CliRunner().invoke(app, [command, "classic", size, "9" * 30])
    assert isinstance(done.exception, ds.errors.DepthscopeError) or done.exit_code == 2, done.exception


@over("name", ["depth", "d", "q"])
def test_a_design_that_nobody_means_is_refused_too(name: str) -> None:
    with pytest.raises(UsageError, match=f"design: {name} must be at most 1,000,000; got 9"):
        ds.models.classic(**{"depth": 1, "d": 8, "h": 2, name: 9 * 10**30})


@over("error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")])
def test_no_memory_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(main, "app", fails)
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="2"):
        main.run()
    assert "error: there must be memory for it;" in " ".join(capsys.readouterr().err.split())


@over("name", ["a\0b.json", "a" * 300 + ".json"])
def test_names_that_no_file_can_have_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must be the name of a file; a zero|must be writable; File name too long"):
        example("monitor").save(tmp_path / name)


ROOM = "error: there must be room on the disk for it;"
DISKS = [
    (OSError(errno.ENOSPC, "No space left on device"), ROOM),
    (FileNotFoundError(2, "No usable temporary directory found"), ROOM),
    (OSError(errno.EROFS, "Read-only file system"), "error: the disk must be writable;"),
]


@over("error, words", DISKS)
def test_no_room_on_the_disk_is_one_line(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(main, "app", fails)
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="2"):
        main.run()
    assert words in " ".join(capsys.readouterr().err.split())


def test_other_errors_of_files_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise FileNotFoundError(2, "No such file or directory")  # a defect of ours: its traceback tells where

    monkeypatch.setattr(main, "app", fails)
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    with pytest.raises(FileNotFoundError):
        main.run()


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    interrupted = typer.Typer()

    @interrupted.command()
    def command() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", lambda: interrupted([]))
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="130"):
        main.run()
    assert "interrupted: files that have their names are whole." in capsys.readouterr().err


def test_another_error_of_torch_is_not_taken_for_one_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(main, "app", fails)
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    with pytest.raises(RuntimeError, match="shapes differ"):
        main.run()


@over("mode", ["w", "ab"])
def test_a_file_with_a_known_name_is_not_written_through_a_link(mode: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("as it was")
    (tmp_path / "steps.txt").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match=r"steps.txt: must be a file; it is a link. Take it away"):
        open(tmp_path / "steps.txt", mode, opener=through_no_link)
    assert (tmp_path / "theirs").read_text() == "as it was"
    with open(tmp_path / "own", mode, opener=through_no_link) as file:
        file.write("x" if mode == "w" else b"x")
    assert (tmp_path / "own").read_text() == "x"


def test_a_training_writes_through_no_link_that_waits_in_its_folder(tmp_path: Path) -> None:
    job = Job("a job", tmp_path / "job", "digits", {"train": 64}, Build(depth=1, d=8, h=2, q=8), Recipe(epochs=1))
    job.write()
    (tmp_path / "theirs").write_text("as it was")
    (job.folder / STEPS).symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match=r"steps.txt: must be a file; it is a link"):
        do(job)
    (job.folder / ERRORS).symlink_to(tmp_path / "theirs")
    with asking(tmp_path) as lock:
        said = in_own_process(0, job, Asker(lock, code(), str(tmp_path)))
    assert "errors.txt: must be a file; it is a link" in str(said)
    assert (tmp_path / "theirs").read_text() == "as it was"


def test_trials_are_written_through_no_link(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "search.journal").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match=r"search.journal: must be a file; it is a link"):
        storage_of(tmp_path, None)
    assert not (tmp_path / "theirs").exists()


def test_a_table_of_outcomes_takes_the_place_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "outcomes.json").symlink_to(tmp_path / "theirs")
    kept_outcomes.write(tmp_path / "outcomes.json", kept_outcomes.Outcomes({}, {}), "a command")
    assert not (tmp_path / "theirs").exists() and kept_outcomes.kept(tmp_path / "outcomes.json").ladder == {}


@over(
    "change", [{"within": []}, {"within": None}, {"needs": "mask"}, {"needs": [{}]}, {"needs": ["os"]}, {"learns": 1}]
)
def test_a_saved_fix_with_other_things_in_it_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    model = ds.models.classic(depth=2, d=8, h=2)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5)) as fix:
        record = json.loads(fix.save(tmp_path).read_text())
    del record["crc32"]
    record["fixes"][0] |= change
    (tmp_path / "depthscope.json").write_text(json.dumps(record))
    with pytest.raises(RecordError, match="must hold at least one fix, each with within, needs and learns"):
        ds.fix_(model, tmp_path)


@over("depth", [300, 480, 900, 990])
@over("field", ["states", "notes"])
def test_lists_in_lists_without_end_are_refused_in_words(depth: int, field: str, tmp_path: Path) -> None:
    inside = "[" * depth + "1.0" + "]" * depth
    text = json.dumps(example("scan").to_dict() | {field: {"t_sim": "HERE"} if field == "states" else "HERE"})
    (tmp_path / "scan.json").write_text(text.replace('"HERE"', inside))
    with pytest.raises(RecordError) as caught:
        ds.load(tmp_path / "scan.json")
    assert str(caught.value).count("The file is damaged") <= 1


@over("name", sorted(TABLES["remedy"]))
def test_settings_of_a_remedy_that_are_no_numbers_are_refused_in_words(name: str) -> None:
    remedy = TABLES["remedy"][name]
    takes = inspect.signature(remedy).parameters
    for setting in takes:
        for odd in ("word", [], [1.0], 10**400, float("nan"), 1e300):
            if setting == "learnable":
                continue
            with pytest.raises(ds.errors.DepthscopeError, match=rf"{setting}|mode"):
                remedy(**({"d": 8} if "d" in takes else {}) | {setting: odd})


@over(
    "asked, said",
    [
        ({"stream": 0}, "stream must be a name|no stream is called"),
        ({"blocks": 3}, "blocks must be a pattern or a list of them; got 3"),
        ({"blocks": [3]}, "blocks must be patterns, words such as"),
    ],
)
def test_names_that_are_no_words_are_refused_by_every_verb(asked: dict[str, Any], said: str) -> None:
    model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 5, 8)
    for verb in (lambda: ds.scan(model, X, **asked), lambda: ds.fix_(model, ds.remedies.DeEscalate(), **asked)):
        with pytest.raises(ds.errors.DepthscopeError, match=said):
            verb()


@over("metrics", [3, True, [None], [["t_sim"]], {"t_sim": 1, 2: 3}])
def test_metrics_that_are_no_names_are_refused_in_words(metrics: Any) -> None:
    with pytest.raises(UsageError, match="metrics must be names, as depthscope ls metrics shows them; got"):
        ds.scan(ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 5, 8), metrics=metrics)


def test_masks_of_batches_that_are_no_tensors_are_refused_in_words() -> None:
    model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 5, 8)
    with pytest.raises(
        ds.errors.DepthscopeError, match=r"every mask must be a tensor \(B, n\); that of batch 0 is str"
    ):
        ds.scan(model, [X], mask="mask")


@over("kind, change", [("scan", {"tokens": 10**400}), ("run", {"history": {"loss": [10**400]}})])
def test_whole_numbers_beyond_all_floats_are_refused_when_they_are_read(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "record.json").write_text(json.dumps(example(kind).to_dict() | change))
    with pytest.raises(RecordError, match=r"must be JSON written by save\(\); a number has 401 digits"):
        ds.load(tmp_path / "record.json")


@over("name", ["gain", "bias_share"])
@over("step", ["block", "attention"])
def test_a_scan_without_the_numbers_of_its_verdict_is_refused_when_it_is_read(step: str, name: str) -> None:
    record = ds.scan(ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 5, 8)).to_dict()
    del record["steps"][step][name]
    with pytest.raises(RecordError, match="must be with gain and bias_share"):
        ds.Scan.from_dict(record)


def test_a_mask_of_fewer_sequences_is_refused_in_words() -> None:
    model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 5, 8)
    mask = torch.tensor([[0, 1, 1, 1, 1]]).bool()
    with pytest.raises(ds.errors.DepthscopeError, match="mask must"):
        ds.scan(model, X, mask=mask)


@over("change", [{"remedy": {}}, {"remedy": None}, {"settings": []}, {"settings": "tau"}, {"at": []}, {"causal": None}])
def test_a_described_fix_with_other_things_in_it_is_refused(change: dict[str, Any]) -> None:
    model = ds.models.classic(depth=2, d=8, h=2)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5)) as fix:
        told = fix.describe()
    with pytest.raises(UsageError, match="a described fix must have words for remedy, at and causal"):
        ds.fix_(model, told | change)
    assert not ds.fixes(model)


@over("data", [b"", b"\x80", bytes(200)])
def test_what_a_remedy_has_learned_may_be_damaged_in_any_way(data: bytes, tmp_path: Path) -> None:
    model = ds.models.classic(depth=2, d=8, h=2)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5, learnable=True)) as fix:
        fix.save(tmp_path)
    (tmp_path / "depthscope_learned.pt").write_bytes(data)
    with pytest.raises(RecordError, match=r"must hold what the remedy has learned; it cannot be read: \w+"):
        ds.fix_(model, tmp_path)


def test_the_first_line_of_an_error_that_says_nothing_is_its_kind() -> None:
    assert first_line(EOFError()) == "EOFError" and first_line(ValueError("\n a \n b")) == "a"


@over("name", ["tau", "alpha", "gain", "t_sim", "scores"])
def test_numbers_that_no_float_can_hold_are_refused_in_words(name: str) -> None:
    with pytest.raises(ds.errors.DepthscopeError, match=name):
        ds.forecast(**{"depth": 2, name: 10**400})
