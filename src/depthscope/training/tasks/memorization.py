"""Memorization: labels drawn at random for the words of a text, to be learned by heart (Dong et al. 2021, section 4.3).

There is nothing to understand, so nothing can be held out: what is asked at the end is what was learned. Words have no
positions. A word that comes twice in a stretch is the same word to the model, which must answer the same both times,
while its labels may differ: no model of this kind can know them all, and `best` says how many it can.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.registry import shelve
from depthscope.training.data.corpus import check_number
from depthscope.training.data.labels import Labelled, LabelTask
from depthscope.training.data.reading import read_text
from depthscope.training.tasks.pydoc import SOURCE, help_topics

PART = 8  # of the stretches, every so-manieth is looked at on the way


class Memorization(LabelTask):
    """The paper's sizes; batch, learning rate and schedule are ours."""

    defaults = {
        **{"depth": 6, "d": 250, "h": 2, "epochs": 16, "batch": 16, "lr": 2e-3},
        **{"weight_decay": 0.0, "schedule": "cosine", "warmup": 25, "clip": 1.0},
    }

    @property
    def best(self) -> float:
        """The accuracy of someone who knows all labels, and must give a word the same one throughout its stretch.

        Stretches of the same words, in whatever order, are one to a model without positions.
        """
        words, labels = self.test.tokens, self.test.labels
        _, stretch = words.sort(1).values.unique(dim=0, return_inverse=True)
        asked, place = (stretch[:, None] * (int(words.max()) + 1) + words).unique(return_inverse=True)
        votes = torch.zeros(len(asked), 2, dtype=torch.int64).index_put_((place, labels), torch.tensor(1), True)
        return int(votes.amax(-1).sum()) / labels.numel()

    @property
    def facts(self) -> dict[str, Any]:
        best = self.best
        data = (
            f"{self.test.labels.numel():,} random labels on {len(self)} stretches of {self.length} words to learn by "
            f"heart, and the same to test: {100 * best:.1f} % can be known, because a word that appears again "
            "has only one answer"
        )
        return super().facts | {"data": data, "best": best}


@shelve("task")
def memorization(
    data: str | Path | None = None,
    *,
    sequences: int = 500,
    length: int = 128,
    activation: str = "none",
    data_seed: int = 0,
) -> LabelTask:
    """Random labels of words to learn by heart: what is tested is what was learned; help texts of Python, no download.

    data: a text of your own, in UTF-8, gz allowed. activation: "relu" gives the blocks the feed-forward networks that
    the paper leaves out.
    """
    for name, value in (("sequences", sequences), ("length", length)):
        check_number(f"memorization: {name}", value, 2)
    check_number("memorization: data_seed", data_seed, 0)
    if data is not None and str(data) != "":
        text, source = read_text(Path(data)), str(data)
    else:
        text, source = "\n".join(words for _, words in sorted(help_topics("memorization").items())), SOURCE
    ids, kinds = numbered(text.split())
    tokens = stretches(ids, sequences, length, source)
    labels = torch.randint(2, tokens.shape, generator=torch.Generator().manual_seed(data_seed))
    whole = Labelled(tokens, labels)
    part = whole.take(torch.arange(0, sequences, PART))
    return Memorization("memorization", whole, part, whole, 2, kinds, places=False, activation=activation)


def numbered(words: list[str]) -> tuple[Tensor, int]:
    """Words -> ids (N,) in the order of their first appearance, and how many kinds there are."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(word, len(numbers)) for word in words]), len(numbers)


def stretches(ids: Tensor, count: int, length: int, source: str) -> Tensor:
    """`count` stretches (count, length) of a text (N,), evenly spaced; of a short text they overlap."""
    spare = len(ids) - length
    if spare < count - 1:
        raise UsageError(
            f"memorization: {count} different stretches of {length} words must fit; {source} has {len(ids)} words. "
            "Give a longer text, or fewer or shorter stretches."
        )
    starts = torch.arange(count) * spare // (count - 1)
    return torch.stack([ids[start : start + length] for start in starts.tolist()])
