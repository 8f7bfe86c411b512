"""Text files that tests write, and whether two corpora are the same."""

import gzip
from pathlib import Path

import torch

from depthscope.training.data.corpus import Corpus
from depthscope.training.data.task import SPLITS

ARTICLE = " = A title = \n \n The first line , with \u2013 dashes and <unk> . \n Another one . \n"
WIKI = {"train": ARTICLE * 40, "valid": ARTICLE * 20 + " unseen \n", "test": ARTICLE * 15}


def folder(path: Path, names: dict[str, str]) -> Path:
    path.mkdir()
    for split, name in names.items():
        write(path / name, WIKI[split])
    return path


def write(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def same(one: Corpus, other: Corpus) -> bool:
    return one.characters == other.characters and all(
        torch.equal(getattr(one, split), getattr(other, split)) for split in SPLITS
    )
