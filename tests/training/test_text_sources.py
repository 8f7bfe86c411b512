"""Where texts come from: files, Python itself, chance; and clear words for what cannot be read."""

import gzip
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_texts import folder, same, write

from depthscope.errors import MissingExtraError, UnknownNameError, UsageError
from depthscope.training.data.reading import lines, read_text
from depthscope.training.data.task import SPLITS
from depthscope.training.tasks import names, task
from depthscope.training.tasks.iid import iid_corpus
from depthscope.training.tasks.pydoc import cut_topics, pydoc_corpus
from depthscope.training.tasks.text import text_corpus
from loops import over


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_a_file_is_read_as_it_is(text: str, tmp_path: Path) -> None:
    for name in ("a.txt", "a.txt.gz"):
        path = write(tmp_path / name, text)
        assert read_text(path) == text
        assert all(line.find("\n") in (-1, len(line) - 1) for line in lines(path))  # \r, \x85 and others end no line


BAD_BYTES = [
    (b"fine\nna\xefve text\n", r"must be text in UTF-8; got the byte 0xef at offset 7"),
    (b"ab\xc3\xa9" * 50 + b"\xff\xfe", r"must be text in UTF-8; got the byte 0xff at offset 200"),
    ("\nafter".encode("utf-16-le"), r"must be text in UTF-8; got the byte 0x00 at offset 1"),
    (b"\x89PNG\r\n\x1a\n\0\0", r"must be text in UTF-8; got the byte 0x89 at offset 0"),
    (b"cut off \xe2\x82", r"must be text in UTF-8; got the byte 0xe2 at offset 8"),
]


@over("content, words", BAD_BYTES)
def test_bytes_that_are_no_text_are_named_with_their_place(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.txt: " + words + ", which is not"):
        read_text(write(tmp_path / "a.txt", content))
    with pytest.raises(UsageError, match=r"a\.txt\.gz: " + words + " of the unpacked text"):
        read_text(write(tmp_path / "a.txt.gz", content))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.txt: the file must exist; it does not"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(UsageError, match=r"must be a file that can be read; Is a directory"):
        read_text(tmp_path)
    for name in ("empty.txt", "empty.txt.gz"):
        with pytest.raises(UsageError, match=f"{name}: must hold text; it is empty"):
            read_text(write(tmp_path / name, ""))
    whole = gzip.compress(bytes(range(1, 128)) * 300)
    path = tmp_path / "a.gz"
    for damaged in (b"no gzip at all", whole[: len(whole) // 2], whole[:30] + b"\xff" * 20 + whole[50:], whole[:-8]):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"a.gz: must be a whole gzip file; .*Copy it again"):
            read_text(path)


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    text = "Many words, \u03b1 few lines.\n" * 600
    plain, packed = write(tmp_path / "a.txt", text), write(tmp_path / "b.gz", text)
    corpus = text_corpus(plain)
    assert corpus.decode is not None and corpus.unit == "character" and corpus.source == str(plain)
    assert "".join(corpus.decode(getattr(corpus, split)) for split in SPLITS) == text
    assert [len(getattr(corpus, split)) for split in SPLITS] == [round(len(text) * s) for s in (0.9, 0.05, 0.05)]
    assert same(corpus, text_corpus(str(packed)))


def test_a_text_in_pieces_is_cut_where_its_characters_are(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = write(tmp_path / "a.txt", "".join(f"{i} Many words, \u03b1 few lines.\n" for i in range(3000)))
    by_character, by_piece = text_corpus(path), text_corpus(path, level="bpe", vocabulary=350)
    assert by_piece.characters == by_character.characters and by_piece.vocabulary == 350
    assert by_piece.decode is not None and by_character.decode is not None
    for split in SPLITS:
        assert by_piece.decode(getattr(by_piece, split)) == by_character.decode(getattr(by_character, split))
    assert text_corpus(path, level="bpe").vocabulary > 350  # 4,096 may be, and no more than there are


def test_wrong_options_of_text(tmp_path: Path) -> None:
    short = write(tmp_path / "short.txt", "too short " * 20)
    for options, words in (
        ({"data": None}, "text: needs data=, a text file"),
        ({"data": ""}, "text: needs data=, a text file"),
        (
            {"data": short},
            r"short.txt: each split must have at least 256 characters; got 180 in train, 10 in valid, 10",
        ),
        ({"data": short, "vocabulary": 300}, "at level character the text says what its vocabulary is; got .* 300"),
        ({"data": tmp_path / "no"}, r"no: the file must exist"),
    ):
        with pytest.raises(UsageError, match=words):
            text_corpus(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"same.txt: must have 2 different characters or more; got 1"):
        text_corpus(write(tmp_path / "same.txt", "a" * 6000))
    with pytest.raises(UnknownNameError, match=r"text: no level is called 'charakter'. Did you mean character"):
        text_corpus(short, level="charakter")


def test_pydoc_is_all_of_python_s_topics() -> None:
    from pydoc_data.topics import topics

    corpus = pydoc_corpus()
    assert corpus.unit == "character" and corpus.source == f"pydoc_data.topics of Python {platform.python_version()}"
    sizes = {split: len(getattr(corpus, split)) for split in SPLITS}
    total = sum(map(len, topics.values()))
    assert 0.8 * total < sum(sizes.values()) < 1.01 * total and 0.7 < sizes["train"] / total < 0.9
    assert min(sizes.values()) > 0.03 * total and corpus.decode is not None
    assert corpus.decode(corpus.train).startswith(topics[min(topics)].rstrip("\n"))
    assert same(corpus, pydoc_corpus())
    assert set("".join(topics.values())) >= set(corpus.decode(torch.arange(corpus.vocabulary)))


def test_no_split_of_pydoc_repeats_a_paragraph_of_one_before() -> None:
    corpus = pydoc_corpus()
    assert corpus.decode is not None
    long: dict[str, set[str]] = {}
    for split in SPLITS:
        paragraphs = corpus.decode(getattr(corpus, split)).strip().split("\n\n")
        long[split] = {paragraph for paragraph in paragraphs if len(paragraph) >= 40}
        assert len(long[split]) > 20
    assert not long["train"] & long["valid"] and not (long["train"] | long["valid"]) & long["test"]


def test_topics_are_cut_between_topics_and_repetitions_left_out() -> None:
    long = "a paragraph that is long enough to be a repetition"
    topics = {
        "b": "x" * 400,
        "a": f"{long}\n\nshort\n",
        "c": "y" * 400,
        "d": "z" * 100 + "\n",
        "e": f"short\n\n{long}\n\nw\n",
    }
    parts = cut_topics(topics)
    assert parts["train"] == f"{long}\n\nshort\n\n{'x' * 400}\n\n{'y' * 400}\n"
    assert parts["valid"] == "z" * 100 + "\n" and parts["test"] == "short\n\nw\n"


def test_a_python_without_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(MissingExtraError, match=r"pydoc: needs pydoc_data.topics .* this Python 3.* installed without"):
        pydoc_corpus()


def test_iid_is_uniform_and_independent() -> None:
    corpus = iid_corpus()
    assert [len(getattr(corpus, split)) for split in SPLITS] == [200_000, 4_096, 16_384] and corpus.decode is None
    assert corpus.characters == {"train": 200_000, "valid": 4_096, "test": 16_384} and corpus.unit == "token"
    expected = 200_000 / 64  # pairs of neighbours: chi-square of 63 degrees of freedom, above 110 once in 5,000
    pairs = (corpus.train[:-1] * 8 + corpus.train[1:]).bincount(minlength=64)
    assert float((pairs - expected).square().sum() / expected) < 110
    torch.manual_seed(5)
    assert same(corpus, iid_corpus())  # no say for the caller's seed
    other = iid_corpus(train=300, vocabulary=8)
    assert torch.equal(other.test, corpus.test) and torch.equal(other.valid, corpus.valid)
    for wrong, words in (
        ({"vocabulary": 1}, "iid: vocabulary must be a whole number, 2 or more; got 1"),
        ({"train": 255}, "iid: train must be a whole number, 256 or more; got 255"),
        ({"test": 3e4}, "iid: test must be a whole number, 256 or more; got 30000.0"),
    ):
        with pytest.raises(UsageError, match=words):
            iid_corpus(**wrong)  # type: ignore[arg-type]


def test_every_source_is_a_task(tmp_path: Path) -> None:
    place = folder(tmp_path / "wiki", {split: f"{split}.txt" for split in SPLITS})
    file = write(tmp_path / "a.txt", "Many words, few lines.\n" * 600)
    own: dict[str, dict[str, Any]] = {
        "pydoc": {"train": 5_000},
        "wikitext2": {"data": place, "train": 300},
        "wikitext103": {"data": str(place), "train": 300},
        "text": {"data": file, "train": 300},
        "iid": {"train": 300},
    }
    assert set(own) <= set(names())
    for name, options in own.items():
        made: Any = task(name, **options, segment=8, memory=4, epoch_tokens=200)
        assert (made.name, made.segment, made.memory, made.epoch_tokens) == (name, 8, 4, 200)
        assert len(made.corpus.train) == options["train"]
        with pytest.raises(UnknownNameError, match=f"{name}: no option is called 'segmen'. Did you mean segment"):
            task(name, segmen=8)


def test_importing_text_tasks_is_light() -> None:
    heavy = ("tokenizers", "datasets", "transformers", "pydoc_data.topics")
    code = f"import sys, depthscope.training.tasks; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
