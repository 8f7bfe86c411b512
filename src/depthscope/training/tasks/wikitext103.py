"""WikiText-103 (Merity et al. 2016): 103 million words, the task of Yu & Zhang 2023, section 3.4."""

from pathlib import Path

from depthscope.registry import shelve
from depthscope.training.data.task import Task
from depthscope.training.data.text import text_task
from depthscope.training.data.wikitext import HUB, wikitext_corpus


@shelve("task")
def wikitext103(
    data: str | Path = HUB,
    *,
    train: int | None = None,
    test: int | None = None,
    segment: int = 150,
    memory: int | None = None,
    model: str = "transformer_xl",
    epoch_tokens: int | None = None,
    stride: int | None = None,
    bias: str = "zero",
) -> Task:
    """WikiText-103 by words: 103 M to learn from, 267,735 different; data: a folder (text, gz, parquet) or a hub id.

    train: only the first so many, with the vocabulary of all. test: how many of the test split are looked at.
    stride, bias: see text_task.
    """
    corpus = wikitext_corpus(data, config="wikitext-103-v1", train=train, where="wikitext103")
    return text_task(
        "wikitext103",
        corpus,
        segment=segment,
        memory=memory,
        model=model,
        epoch_tokens=epoch_tokens,
        stride=stride,
        bias=bias,
        test=test,
    )
