"""A text of your own, one file in UTF-8: its characters, or pieces of words learned from it."""

from pathlib import Path

from depthscope.errors import UnknownNameError, UsageError
from depthscope.registry import shelve, unknown
from depthscope.training.data.bpe import bpe_corpus
from depthscope.training.data.characters import character_corpus, in_shares
from depthscope.training.data.corpus import Corpus, limit
from depthscope.training.data.reading import read_text
from depthscope.training.data.text import reads_text

PIECES = 4096


@shelve("task")
@reads_text()
def text(
    data: str | Path | None = None, *, level: str = "character", vocabulary: int | None = None, train: int | None = None
) -> Corpus:
    """A text of your own by character or bpe (level); data: a file in UTF-8, gz allowed; the last 5 % + 5 % are kept.

    vocabulary: how many pieces bpe may have, 4,096 unless said. train: only so many ids of the first 90 %. test: how
    many ids of the last 5 % are looked at. stride, bias: see text_task.
    """
    return limit(text_corpus(data, level=level, vocabulary=vocabulary), train, where="text")


def text_corpus(data: str | Path | None, *, level: str = "character", vocabulary: int | None = None) -> Corpus:
    """The file's first 90 % of characters to learn from, then 5 % to choose on and 5 % to report, at every level."""
    if level not in ("character", "bpe"):
        raise UnknownNameError("text: " + unknown("level", level, ("character", "bpe")))
    if level == "character" and vocabulary is not None:
        raise UsageError(
            f"text: at level character the text says what its vocabulary is; got vocabulary {vocabulary!r}. "
            "Leave it out, or take level bpe."
        )
    if data is None or str(data) == "":
        raise UsageError("text: needs data=, a text file.")
    parts = in_shares(read_text(Path(data)))
    if level == "character":
        return character_corpus(parts, source=str(data))
    return bpe_corpus(parts, vocabulary=PIECES if vocabulary is None else vocabulary, source=str(data))
