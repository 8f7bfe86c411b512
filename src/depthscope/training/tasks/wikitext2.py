"""WikiText-2 (Merity et al. 2016): two million words of Wikipedia, the small brother of WikiText-103."""

from pathlib import Path

from depthscope.registry import shelve
from depthscope.training.data.corpus import Corpus
from depthscope.training.data.text import reads_text
from depthscope.training.data.wikitext import HUB, wikitext_corpus


@shelve("task")
@reads_text(epoch_tokens=262_144)
def wikitext2(data: str | Path = HUB, *, train: int | None = None) -> Corpus:
    """WikiText-2 by words: 2.1 M to learn from, 33,278 different; data: a folder (text, gz, parquet) or a hub id.

    train: only the first so many, with the vocabulary of all. test: how many of the test split are looked at.
    stride, bias: see text_task.
    """
    return wikitext_corpus(data, config="wikitext-2-v1", train=train, where="wikitext2")
