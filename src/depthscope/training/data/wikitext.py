"""Where the lines of WikiText (Merity et al. 2016) are: text files in a folder, parquet files, or the hub."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from depthscope.errors import MissingExtraError, UsageError, first_line
from depthscope.extras import install
from depthscope.training.data.corpus import Corpus, limit
from depthscope.training.data.reading import lines
from depthscope.training.data.words import word_corpus

HUB = "Salesforce/wikitext"
SPELLINGS = {"train": ("train",), "valid": ("valid", "validation"), "test": ("test",)}
ENDINGS = (".tokens", ".txt", ".raw")


def wikitext_corpus(data: str | Path, *, config: str, train: int | None, where: str) -> Corpus:
    """The words of the three splits at data, a folder or a hub id; config names the dataset's part on the hub."""
    path = Path(data)
    if path.is_dir():
        found = folder_lines(path, config)
    elif path.exists() or path.is_absolute() or str(data).count("/") != 1:
        raise UsageError(
            f"{where}: data must be a folder with the three splits, or a hub id as {HUB}; got {str(data)!r}. "
            "Check the path; unpack archives."
        )
    else:
        found = _table_lines(str(data), str(data), config)
    return limit(word_corpus(found, source=str(data)), train, where=where)


def folder_lines(folder: Path, config: str) -> dict[str, Iterable[str]]:
    """The lines of the three splits, from text files, or parquet files as a clone of the hub's repository has them."""
    files = {split: _text_file(folder, split) for split in SPELLINGS}
    if all(files.values()):
        return {split: lines(file) for split, file in files.items() if file}
    for place in (folder, folder / config):
        parts = {split: _parquet_files(place, split) for split in SPELLINGS}
        if all(parts.values()):
            hub_names = {SPELLINGS[split][-1]: files for split, files in parts.items()}
            return _table_lines(str(place), "parquet", data_files=hub_names)
    missing = [split for split, file in files.items() if file is None]
    names = " or ".join(name for spelling in SPELLINGS[missing[0]] for name in (f"wiki.{spelling}", spelling))
    raise UsageError(
        f"{folder}: must hold a file for each of train, valid and test; there is none for {', '.join(missing)}: "
        f"looked for {names} with the ending {' or '.join(ENDINGS)}, each also with .gz, and for "
        f"{SPELLINGS[missing[0]][-1]}*.parquet."
    )


def _text_file(folder: Path, split: str) -> Path | None:
    """The file of a split by the first of its usual names that is there."""
    stems = [f"{front}{spelling}" for spelling in SPELLINGS[split] for front in ("wiki.", "")]
    names = [f"{stem}{ending}{packed}" for stem in stems for ending in ENDINGS for packed in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _parquet_files(folder: Path, split: str) -> list[str]:
    return sorted(str(file) for file in folder.glob(f"{SPELLINGS[split][-1]}*.parquet"))


def _table_lines(data: str, *load: str, **options: Any) -> dict[str, Iterable[str]]:
    """The lines of the three splits of datasets.load_dataset(*load, **options)."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"{data}: needs datasets; {error}. {install('train')}") from None
    try:
        tables = datasets.load_dataset(*load, **options)
    except Exception as error:  # datasets, the hub and the network each have their own
        raise UsageError(
            f"{data}: must be a folder here with the three splits, or a hub id with {', '.join(load[1:]) or 'them'}; "
            f"{type(error).__name__}: {first_line(error)}. "
            "Check the name, and that the network is there."
        ) from error
    for name in ("train", "validation", "test"):
        if name not in tables or "text" not in tables[name].column_names:
            there = ", ".join(f"{split} with {', '.join(table.column_names)}" for split, table in tables.items())
            raise UsageError(f"{data}: must have a split {name} with a column text; got {there or 'nothing'}.")
    return {split: _rows(tables[SPELLINGS[split][-1]]) for split in SPELLINGS}


def _rows(table: Any) -> Iterator[str]:
    """One row is one line, with or without its end; one that holds several is several."""
    for batch in table.iter(batch_size=1000):
        for text in batch["text"]:
            yield from text.removesuffix("\n").split("\n")
