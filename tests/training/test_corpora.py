"""Texts as ids, at every level: what was read comes back, and all counts are those of someone who counts by hand."""

import math
import pickle
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depthscope.errors import DepthscopeError, MissingExtraError, ShapeError, UsageError
from depthscope.training.data import corpus as corpus_module
from depthscope.training.data.bpe import bpe_corpus, learned
from depthscope.training.data.characters import character_corpus, in_shares
from depthscope.training.data.corpus import Corpus, limit
from depthscope.training.data.task import SPLITS
from depthscope.training.data.words import word_corpus
from loops import over

PROSE = "the cat sat on the mat .\n\nthe dog , a big one , saw the cat \u2013 and slept .\n" * 12
FILLING = "ab\n" * 150  # makes every split long enough, whatever is put before it


def texts(train: str, valid: str = "", test: str = "") -> dict[str, str]:
    return {"train": train + FILLING, "valid": valid + FILLING, "test": test + FILLING}


def in_lines(parts: dict[str, str]) -> dict[str, list[str]]:
    return {split: text.split("\n")[:-1] for split, text in parts.items()}


def words_of(lines: list[str]) -> list[str]:
    """As the field counts: the words of each line and one <eos>."""
    return [word for line in lines for word in [*line.split(), "<eos>"]]


def decoded(corpus: Corpus) -> dict[str, str]:
    assert corpus.decode is not None
    return {split: corpus.decode(getattr(corpus, split)) for split in SPLITS}


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=80), st.text(max_size=80))
def test_characters_come_back(one: str, other: str) -> None:
    parts = texts(one, other)
    corpus = character_corpus(parts, source="made up")
    assert decoded(corpus) == parts
    assert corpus.vocabulary == len(set("".join(parts.values())))
    assert corpus.characters == {split: len(text) for split, text in parts.items()}


def test_characters_are_numbered_in_order_and_counted() -> None:
    parts = texts(PROSE, "only here: \u03b1")
    corpus = character_corpus(parts, source="made up")
    symbols = sorted(set("".join(parts.values())))
    assert corpus.unit == "character" and corpus.decode is not None
    assert corpus.decode(torch.arange(corpus.vocabulary)) == "".join(symbols)
    counts = Counter(parts["train"])
    assert corpus.train.bincount(minlength=len(symbols)).tolist() == [counts[symbol] for symbol in symbols]


@given(st.text(max_size=300), st.integers(0, 40))
def test_shares_are_contiguous_and_whole(text: str, more: int) -> None:
    parts = in_shares(text + "x" * more)
    assert "".join(parts[split] for split in SPLITS) == text + "x" * more
    for split, share in zip(SPLITS, (0.9, 0.05, 0.05), strict=True):
        assert abs(len(parts[split]) - share * (len(text) + more)) <= 1


SPACED = st.lists(
    st.lists(st.sampled_from(["a", "b", "<eos>", "\u03b1\u03b2", "the", "<unk>"]), max_size=6), max_size=20
)


@settings(max_examples=40, deadline=None)
@given(SPACED, SPACED)
def test_words_come_back(train: list[list[str]], valid: list[list[str]]) -> None:
    parts = texts(*("".join(" ".join(line) + "\n" for line in some) for some in (train, valid)))
    parts["valid"] = parts["valid"].replace("ab\n", "a a\n")
    parts["train"] += "a b \u03b1\u03b2 the <unk> <eos>\n" * 30
    parts = {split: text * 2 for split, text in parts.items()}
    corpus = word_corpus(in_lines(parts), source="made up")
    assert decoded(corpus) == parts
    assert corpus.characters == {split: len(text) for split, text in parts.items()}


def test_words_are_counted_as_the_field_does() -> None:
    lines = in_lines(texts(PROSE, PROSE))
    lines["test"] = [" spaces   and\ttabs \r", "", *["the zebra ."] * 100]
    corpus = word_corpus(iter_lines := {k: iter(v) for k, v in lines.items()}, source="made up")
    assert all(next(iter(rest), None) is None for rest in iter_lines.values())  # streams are enough
    truth = Counter(words_of(lines["train"]))
    assert len(corpus.train) == truth.total() and corpus.unit == "word"
    assert corpus.vocabulary == len(truth) + 1  # <unk>, which is not in train
    # most_common leaves ties in the order of first appearance
    assert corpus.train.bincount(minlength=corpus.vocabulary).tolist() == [n for _, n in truth.most_common()] + [0]
    assert corpus.decode is not None
    names = [corpus.decode(torch.tensor([i])) for i in range(corpus.vocabulary)]
    assert names == ["\n" if word == "<eos>" else word for word, _ in truth.most_common()] + ["<unk>"]
    seen = [word if word in truth else "<unk>" for word in words_of(lines["test"])]
    assert [names[i] for i in corpus.test] == ["\n" if word == "<eos>" else word for word in seen]
    # what the text was, not what was left of it: zebra has 5 characters
    assert corpus.characters["test"] == len("spaces and tabs\n\n") + 100 * len("the zebra .\n")


def test_unk_of_the_text_is_the_unk_of_unseen_words() -> None:
    lines = in_lines(texts("a <unk> <unk> b\n" * 100, "zebra\n"))
    corpus = word_corpus(lines, source="made up")
    assert corpus.vocabulary == len(Counter(words_of(lines["train"])))
    assert corpus.decode is not None and corpus.decode(corpus.valid[:2]) == "<unk>\n"


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_pieces_come_back(one: str, two: str, three: str) -> None:
    pytest.importorskip("tokenizers")
    more = "".join(map(chr, range(32, 127))) * 4  # valid and test must stay long when words become one piece
    parts = {"train": PROSE + one, "valid": more + two, "test": more + three}
    corpus = bpe_corpus(parts, vocabulary=300, source="made up")
    assert decoded(corpus) == parts
    assert corpus.characters == {split: len(text) for split, text in parts.items()}
    assert corpus.unit == "token" and 256 < corpus.vocabulary <= 300


def test_pieces_are_learned_on_train_alone_and_always_the_same() -> None:
    pytest.importorskip("tokenizers")
    parts = texts(PROSE * 4, "zyx " * 300, "wvu " * 300)
    first, again = (bpe_corpus(parts, vocabulary=320, source="made up") for _ in range(2))
    assert all(torch.equal(getattr(first, split), getattr(again, split)) for split in SPLITS)
    counts = first.train.bincount(minlength=first.vocabulary)
    assert bool((counts.diff() <= 0).all())  # the most frequent first
    assert first.decode is not None
    pieces = [first.decode(torch.tensor([i])) for i in range(first.vocabulary)]
    assert " cat" in pieces and not any("zy" in piece or "wv" in piece for piece in pieces)
    assert len(first.train) < len(parts["train"]) / 2 and len(first.valid) > 3 * 300
    whole = learned(parts["train"], 320).encode(parts["train"].split("\n")[0] + "\n")  # one line by the library alone
    assert first.decode(first.train[: len(whole.ids)]) == parts["train"].split("\n")[0] + "\n"
    assert not any("\n" in piece[:-1].strip(" ") for piece in pieces)  # no piece beyond the end of a line


def test_pieces_need_bytes_and_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (255, 0, 300.0, True):
        with pytest.raises(UsageError, match=r"made up: vocabulary must be a whole number, 256 or more; got"):
            bpe_corpus(texts(PROSE), vocabulary=wrong, source="made up")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"BPE: needs tokenizers; .*pip install .*'tokenizers>="):
        bpe_corpus(texts(PROSE), vocabulary=300, source="made up")


def test_corpora_travel_to_other_processes() -> None:
    pytest.importorskip("tokenizers")
    parts = {split: PROSE * 4 for split in SPLITS}
    for corpus in (
        character_corpus(parts, source="s"),
        word_corpus(in_lines(parts), source="s"),
        bpe_corpus(parts, vocabulary=300, source="s"),
    ):
        assert decoded(pickle.loads(pickle.dumps(corpus))) == parts


def numbers(count: int = 300, most: int = 4) -> Tensor:
    return torch.arange(count) % (most + 1)


GOOD: dict[str, Any] = {
    "train": numbers(),
    "valid": numbers(),
    "test": numbers(),
    "vocabulary": 5,
    "unit": "word",
    "characters": dict.fromkeys(SPLITS, 900),
    "source": "a.txt",
}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"valid": numbers(12)}, r"a.txt: each split must have at least 256 words; got 300 in train, 12 in valid, 300 in"),
    ({"test": numbers(0)}, r"a.txt: each split must have at least 256 words; got .* 0 in test. Give a longer text"),
    ({"valid": numbers(299), "least": 300}, "at least 300 words; got 300 in train, 299 in valid"),
    ({"train": numbers().float()}, r"a.txt, train split: ids must be int64 \(N,\); got torch.float32 \(300,\)"),
    ({"test": numbers().int()}, r"a.txt, test split: ids must be int64 \(N,\); got torch.int32"),
    ({"train": numbers().view(2, 150)}, r"got torch.int64 \(2, 150\)"),
    ({"valid": numbers(most=5)}, r"a.txt, valid split: ids must lie in 0 ... 4; got 5 at 5"),
    ({"test": numbers() - 1}, r"a.txt, test split: ids must lie in 0 ... 4; got -1 at 0"),
    ({"unit": "line"}, "a.txt: unit must be character, word, token; got 'line'"),
    ({"characters": {"train": 3}}, r"a.txt: characters must have a count, 0 or more, for each of train, valid, test"),
    ({"characters": dict.fromkeys(SPLITS, -1)}, r"characters must have a count, 0 or more"),
    (
        {split: numbers() * 0 for split in SPLITS} | {"vocabulary": 1},
        "a.txt: must have 2 different words or more; got 1",
    ),
]


@over("changes, words", BAD)
def test_a_corpus_checks_itself(changes: dict[str, Any], words: str) -> None:
    Corpus(**GOOD)
    with pytest.raises(DepthscopeError, match=words) as caught:
        Corpus(**(GOOD | changes))
    assert isinstance(caught.value, UsageError | ShapeError)


def test_a_short_corpus_can_be_allowed() -> None:
    short = dict.fromkeys(SPLITS, numbers(3, most=1))
    assert len(Corpus(**(GOOD | short | {"least": 2})).train) == 3


def test_limit_takes_the_first_ids_and_counts_their_characters() -> None:
    parts = texts(PROSE)
    for corpus in (character_corpus(parts, source="s"), word_corpus(in_lines(parts), source="s")):
        few = limit(corpus, 260, where="mine")
        assert torch.equal(few.train, corpus.train[:260]) and few.train.untyped_storage().nbytes() == 260 * 8
        assert few.decode is not None
        assert parts["train"].startswith(few.decode(few.train)) and few.vocabulary == corpus.vocabulary
        assert few.characters == corpus.characters | {"train": len(few.decode(few.train))}
        assert limit(corpus, None, where="mine") is corpus
        most = len(corpus.train)
        assert limit(corpus, most, where="mine").characters == corpus.characters
        for wrong in (255, most + 1, 300.0, True):
            with pytest.raises(UsageError, match=f"mine: train must be a whole number, from 256 to {most}; got"):
                limit(corpus, wrong, where="mine")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 6), max_size=60))
def test_by_frequency_is_a_stable_order(ids: list[int]) -> None:
    import numpy as np

    order = corpus_module.by_frequency(np.array(ids, np.int32), 7)
    assert order.tolist() == sorted(range(7), key=lambda i: (-ids.count(i), i))
    assert corpus_module.ranks(order)[order].tolist() == list(range(7))


def test_bits_per_character_follow_from_the_counts() -> None:
    """A model that knows nothing needs log2(vocabulary) bits for an id; words joined by spaces are the text."""
    corpus = word_corpus(in_lines({split: PROSE for split in SPLITS}), source="s")
    bits = len(corpus.test) * math.log2(corpus.vocabulary) / corpus.characters["test"]
    assert corpus.characters["test"] == len(PROSE) and 0 < bits < math.log2(len(set(PROSE)))
