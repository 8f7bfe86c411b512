"""Characters of the help texts inside Python: some 460,000, no download. They change with the version of Python."""

import platform

from depthscope.errors import MissingExtraError
from depthscope.registry import shelve
from depthscope.training.data.characters import character_corpus
from depthscope.training.data.corpus import Corpus, limit
from depthscope.training.data.task import SPLITS
from depthscope.training.data.text import reads_text

SOURCE = f"pydoc_data.topics of Python {platform.python_version()}"
SHARES = (0.8, 0.9)  # of all characters: train up to the first, valid up to the second, test the rest
REPEATED = 40  # characters from which on a paragraph that comes again is a repetition, and no turn of phrase


@shelve("task")
@reads_text(epoch_tokens=65_536)
def pydoc(*, train: int | None = None) -> Corpus:
    """Characters of the help texts inside Python, 0.46 M (other ones in other versions); no download.

    train: only the first so many. test: how many of the test split are looked at. stride, bias: see text_task.
    """
    return limit(pydoc_corpus(), train, where="pydoc")


def pydoc_corpus() -> Corpus:
    """The topics of pydoc_data.topics, sorted by name and cut between topics: train, valid, test.

    Some topics hold others whole ("compound" has "with"): paragraphs that stand in a split before are left out of
    valid and test.
    """
    return character_corpus(cut_topics(help_topics("pydoc")), source=SOURCE)


def help_topics(where: str) -> dict[str, str]:
    """{topic: its help text} of this Python."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise MissingExtraError(
            f"{where}: needs pydoc_data.topics of the standard library, which this Python {platform.python_version()} "
            'was installed without. Install all of Python, or use task("text", data=...).'
        ) from None
    return topics


def cut_topics(topics: dict[str, str]) -> dict[str, str]:
    """{topic: text} -> {split: text}; a topic belongs where the middle of its text lies, topics sorted by name."""
    total, before = sum(map(len, topics.values())), 0
    paragraphs: dict[str, list[str]] = {split: [] for split in SPLITS}
    for _, text in sorted(topics.items()):
        middle = (before + len(text) / 2) / total
        split = SPLITS[sum(middle > share for share in SHARES)]
        seen = {paragraph for part in SPLITS[: SPLITS.index(split)] for paragraph in paragraphs[part]}
        fresh = (p for p in text.rstrip("\n").split("\n\n") if len(p) < REPEATED or p not in seen)
        paragraphs[split] += fresh
        before += len(text)
    return {split: "\n\n".join(parts) + "\n" for split, parts in paragraphs.items()}
