"""WikiText from every place that has it: text files by all usual names, parquet files, the hub."""

import sys
from pathlib import Path
from typing import Any

import pytest
from made_texts import WIKI, folder, same, write

from depthscope.errors import MissingExtraError, UsageError
from depthscope.training.data.corpus import Corpus
from depthscope.training.data.task import SPLITS
from depthscope.training.data.wikitext import ENDINGS, wikitext_corpus


def wiki(data: Any, train: int | None = None) -> Corpus:
    return wikitext_corpus(data, config="wikitext-2-v1", train=train, where="wikitext2")


def test_wikitext_by_every_usual_name(tmp_path: Path) -> None:
    truth = [word for line in WIKI["train"].split("\n")[:-1] for word in [*line.split(), "<eos>"]]
    first = None
    for i, ending in enumerate(ending + packed for ending in ENDINGS for packed in ("", ".gz")):
        for j, stem in enumerate(("wiki.{}", "{}")):
            corpus = wiki(folder(tmp_path / f"{i}{j}", {split: stem.format(split) + ending for split in SPLITS}))
            first = first or corpus
            assert same(corpus, first)
    assert first is not None and first.decode is not None
    assert len(first.train) == len(truth) and first.vocabulary == len(set(truth)) and first.unit == "word"
    lines_of = [" ".join(line.split()) + "\n" for line in WIKI["train"].split("\n")[:-1]]
    assert first.decode(first.train) == "".join(lines_of)
    assert first.decode(first.valid).endswith("one .\n<unk>\n")
    hub_like = folder(tmp_path / "hub", {"train": "train.txt", "valid": "validation.txt", "test": "test.txt"})
    assert same(wiki(hub_like), first)
    assert len(wiki(hub_like, train=300).train) == 300 and wiki(hub_like, train=300).vocabulary == first.vocabulary


def test_wikitext_folders_and_names_that_are_wrong(tmp_path: Path) -> None:
    place = folder(tmp_path / "part", {"train": "wiki.train.tokens", "test": "wiki.test.tokens"})
    with pytest.raises(UsageError, match=r"part: must hold a file for each of train, valid and test; there is none for "
                       r"valid: looked for wiki.valid or valid or wiki.validation or validation with the ending .tokens "
                       r"or .txt or .raw, each also with .gz, and for validation\*.parquet"):  # fmt: skip
        wiki(place)
    write(place / "wiki.valid.tokens", b"caf\xe9\n")
    with pytest.raises(UsageError, match=r"wiki.valid.tokens: must be text in UTF-8; got the byte 0xe9 at offset 3"):
        wiki(place)
    write(place / "wiki.valid.tokens", "")
    with pytest.raises(UsageError, match=r"wiki.valid.tokens: must hold text; it is empty"):
        wiki(place)
    write(place / "wiki.valid.tokens", "too short\n")
    with pytest.raises(UsageError, match=r"part: each split must have at least 256 words; got .* 3 in valid"):
        wiki(place)
    for wrong in ("nowhere", "/no/such/folder", "a/b/c", str(place / "wiki.train.tokens")):
        with pytest.raises(UsageError, match=f"wikitext2: data must be a folder .* got {wrong!r}"):
            wiki(wrong)


def hub_rows(split: str) -> list[str]:
    """As the hub has them: a line with its end in each row, and nothing where the line is empty."""
    return [line + "\n" if line.strip() else "" for line in WIKI[split].split("\n")[:-1]]


class Hub:
    """Stands for datasets.load_dataset, which has no network here."""

    def __init__(self, *, splits: tuple[str, ...] = ("train", "validation", "test"), column: str = "text") -> None:
        self.splits, self.column, self.asked = splits, column, ()

    def __call__(self, *asked: str) -> Any:
        import datasets

        self.asked = asked
        rows = {split: hub_rows("valid" if split == "validation" else split) for split in self.splits}
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_dict({self.column: some}) for split, some in rows.items()}
        )


def test_wikitext_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    here = wiki(folder(tmp_path / "here", {split: f"{split}.txt" for split in SPLITS}))
    hub = Hub()
    monkeypatch.setattr(datasets, "load_dataset", hub)
    assert same(wiki("Salesforce/wikitext"), here) and hub.asked == ("Salesforce/wikitext", "wikitext-2-v1")
    for other, words in (
        (
            Hub(splits=("train", "test")),
            "some/body: must have a split validation with a column text; got train with text",
        ),
        (Hub(column="line"), "some/body: must have a split train with a column text; got train with line, validation"),
    ):
        monkeypatch.setattr(datasets, "load_dataset", other)
        with pytest.raises(UsageError, match=words):
            wiki("some/body")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"some/body: needs datasets; .*pip install .*'datasets>="):
        wiki("some/body")


def test_wikitext_from_parquet_as_in_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    here = wiki(folder(tmp_path / "here", {split: f"{split}.txt" for split in SPLITS}))
    place = tmp_path / "clone" / "wikitext-2-v1"
    place.mkdir(parents=True)
    for split, name in (("train", "train-0000{}-of-00002"), ("valid", "validation-00000-of-00001"), ("test", "test")):
        rows = hub_rows(split)
        parts = [rows[:50], rows[50:]] if split == "train" else [rows]
        for i, part in enumerate(parts):
            datasets.Dataset.from_dict({"text": part}).to_parquet(place / f"{name.format(i)}.parquet")
    assert same(wiki(place), here) and same(wiki(tmp_path / "clone"), here)
    (place / "test.parquet").write_bytes(b"no parquet")
    with pytest.raises(UsageError, match=r"wikitext-2-v1: must be .*Error"):
        wiki(place)


def test_without_a_network_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # without it the hub's client tries for 20 seconds
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(
        UsageError, match=r"no-body/nothing: must be a folder .* wikitext-2-v1; .* the network is there"
    ):
        wiki("no-body/nothing")
