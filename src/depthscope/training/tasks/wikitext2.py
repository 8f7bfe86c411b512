"""WikiText-2 (Merity et al. 2016): two million words of Wikipedia, the small brother of WikiText-103."""

from pathlib import Path

from depthscope.registry import shelve
from depthscope.training.data.task import Task
from depthscope.training.data.text import text_task
from depthscope.training.data.wikitext import HUB, wikitext_corpus


@shelve("task")
def wikitext2(
    data: str | Path = HUB,
    *,
    train: int | None = None,
    test: int | None = None,
    segment: int = 64,
    memory: int | None = None,
    model: str = "transformer_xl",
    epoch_tokens: int | None = 262_144,
    stride: int | None = None,
    bias: str = "zero",
) -> Task:
    """WikiText-2 by words: 2.1 M to learn from, 33,278 different; data: a folder (text, gz, parquet) or a hub id.

    train: only the first so many, with the vocabulary of all. test: how many of the test split are looked at.
    stride, bias: see text_task.
    """
    corpus = wikitext_corpus(data, config="wikitext-2-v1", train=train, where="wikitext2")
    return text_task(
        "wikitext2",
        corpus,
        segment=segment,
        memory=memory,
        model=model,
        epoch_tokens=epoch_tokens,
        stride=stride,
        bias=bias,
        test=test,
    )
