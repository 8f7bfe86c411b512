"""WikiText-103 (Merity et al. 2016): 103 million words, the task of Yu & Zhang 2023, section 3.4."""

from pathlib import Path

from depthscope.registry import shelve
from depthscope.training.data.corpus import Corpus
from depthscope.training.data.text import reads_text
from depthscope.training.data.wikitext import HUB, wikitext_corpus


@shelve("task")
@reads_text(segment=150)
def wikitext103(data: str | Path = HUB, *, train: int | None = None) -> Corpus:
    """WikiText-103 by words: 103 M to learn from, 267,735 different; data: a folder (text, gz, parquet) or a hub id.

    train: only the first so many, with the vocabulary of all. test: how many of the test split are looked at.
    stride, bias: see text_task.
    """
    return wikitext_corpus(data, config="wikitext-103-v1", train=train, where="wikitext103")
