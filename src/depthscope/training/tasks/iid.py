"""The leak detector: tokens drawn alike and independently, of which nobody who reads only the past can learn anything.

The best loss there is is ln(vocabulary), 2.079 for 8. Whoever gets below it on the test split has seen the future.
"""

import torch

from depthscope.registry import shelve
from depthscope.training.data.corpus import LEAST, Corpus, check_number
from depthscope.training.data.text import reads_text

SEED = 0


@shelve("task")
@reads_text(segment=16, memory=0)
def iid(*, vocabulary: int = 8, train: int = 200_000, valid: int = 4_096, test: int = 16_384) -> Corpus:
    """The leak detector: uniform independent tokens, where a loss below ln(vocabulary) means seeing the future."""
    return iid_corpus(vocabulary=vocabulary, train=train, valid=valid, test=test)


def iid_corpus(*, vocabulary: int = 8, train: int = 200_000, valid: int = 4_096, test: int = 16_384) -> Corpus:
    """ids uniform on 0 ... vocabulary - 1, independent; drawn test first, so that no split moves with train."""
    check_number("iid: vocabulary", vocabulary, 2)
    sizes = {"test": test, "valid": valid, "train": train}
    for split, size in sizes.items():
        check_number(f"iid: {split}", size, LEAST)
    draw = torch.Generator().manual_seed(SEED)
    ids = {split: torch.randint(vocabulary, (size,), generator=draw) for split, size in sizes.items()}
    return Corpus(ids["train"], ids["valid"], ids["test"], vocabulary, "token", characters=sizes, source="iid")
