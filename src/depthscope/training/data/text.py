"""Predict the next token of a text: three splits of ids, rows that remember, a loss that is honest about the future."""

import hashlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from depthscope.errors import UnknownNameError, UsageError
from depthscope.models.decoder import decoder
from depthscope.models.transformer_xl import transformer_xl
from depthscope.registry import unknown
from depthscope.training.batches import share
from depthscope.training.data.corpus import Corpus
from depthscope.training.data.task import SPLITS, Task
from depthscope.training.evaluate import Look
from depthscope.training.honest import honest_loss, windows_of
from depthscope.training.perplexity import evaluating, in_rows, loss_in_window, loss_with_memory, stated
from depthscope.training.recipe import Recipe

BIASES = ("zero", "frequencies")
MODELS = {"transformer_xl": "Transformer-XL", "decoder": "decoder"}
ROWS = 8  # read side by side when a split is evaluated, whatever the number of processes
PROBE = 8  # sequences of the probe
LOOK = 8192  # tokens of train and valid that are looked at, each


@dataclass(frozen=True, eq=False)
class TextTask(Task):
    """The next token, from the segment so far and a memory of earlier segments.

    segment: tokens of a step's rows. memory: tokens before them that attention sees. kind: "transformer_xl", or
    "decoder", which has no memory. epoch_tokens: after which an epoch counts as over and is evaluated; rows go on.
    evaluated: how many tokens of each split are looked at. stride, bias: see text_task.
    """

    score = "loss"
    defaults = {"d": 64, "batch": 16, "epochs": 4, "weight_decay": 0.01, "search": 3}
    sites = {"DeEscalate": "ffn_in"}  # as in section 3.4 of Yu & Zhang 2023
    name: str
    corpus: Corpus
    segment: int
    memory: int
    kind: str
    epoch_tokens: int
    evaluated: dict[str, int]
    stride: int | None = None
    bias: str = "zero"

    def __len__(self) -> int:
        return math.ceil(self.epoch_tokens / self.segment)

    @property
    def answers(self) -> int:  # type: ignore[override]
        return self.corpus.vocabulary

    @cached_property
    def fingerprint(self) -> str:
        asked = (self.segment, self.memory, self.kind, self.epoch_tokens, self.evaluated, self.stride, self.bias)
        sizes = (self.corpus.vocabulary, *asked)
        digest = hashlib.sha256(str(sizes).encode())
        for split in SPLITS:
            digest.update(getattr(self.corpus, split).numpy().data)
        return digest.hexdigest()[:16]

    @property
    def facts(self) -> dict[str, Any]:
        corpus = self.corpus
        sizes = {split: len(getattr(corpus, split)) for split in SPLITS}
        known = f" and {self.memory} of memory" if self.memory else ""
        return {
            "data": f"{sizes['train']:,} {corpus.unit}s to learn from, {self.evaluated['test']:,} to test, "
            f"{corpus.vocabulary:,} kinds; segments of {self.segment}{known}",
            "model": MODELS[self.kind],
            "count": self.evaluated["test"],
            "chance": self._unigram,
            "source": corpus.source,
            "unit": corpus.unit,
            "vocabulary": corpus.vocabulary,
            "characters_per_token": self._characters.get("test"),
            "tokens": sizes,
            "evaluated": self.evaluated,
        }

    @property
    def _unigram(self) -> float:
        """The loss of someone who only knows how frequent each token is in the train split (each seen once more)."""
        return float(-(self._counts / self._counts.sum()).log()[self.looked_at("test")].mean())

    @cached_property
    def _counts(self) -> Tensor:
        return self.corpus.train.bincount(minlength=self.corpus.vocabulary).double() + 1

    def looked_at(self, split: str) -> Tensor:
        """The tokens of a split that losses are measured on."""
        return getattr(self.corpus, split)[: self.evaluated[split]]

    @cached_property
    def _characters(self) -> dict[str, float | None]:
        """Characters per token, over the tokens of each split that are looked at; None where tokens are no text."""
        decode, found = self.corpus.decode, dict[str, float | None]()
        for split in SPLITS:
            ids = self.looked_at(split)
            whole = len(ids) == len(getattr(self.corpus, split))
            if decode is not None:
                found[split] = (self.corpus.characters[split] if whole else len(decode(ids))) / len(ids)
        return found

    def model(self, build: Any) -> nn.Module:
        if build.pooling != "cls":
            raise UsageError(f"{self.name}: a language model pools nothing; got pooling={build.pooling!r}.")
        vocabulary = self.corpus.vocabulary
        model: Any
        if self.kind == "decoder":
            model = decoder(vocabulary=vocabulary, tokens=self.segment, **build.choices)
        else:
            model = transformer_xl(vocabulary=vocabulary, memory=self.memory, **build.choices)
        if self.bias == "frequencies":
            model.vocabulary.start_at_(self._counts)
        return model

    def probe(self, device: torch.device) -> Tensor:
        """The first tokens of evenly spaced places of the training split."""
        return windows_of(self.corpus.train, self.segment, PROBE).to(device)

    def batches(self, recipe: Recipe, device: torch.device) -> Any:
        from depthscope.training.text_batches import TextBatches

        return TextBatches(self.corpus.train, self.segment, recipe, device)

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor, memory: Any) -> tuple[Tensor, Any]:
        losses, memory = model(inputs, memory=memory, targets=targets)
        return losses.float().sum(), memory

    def evaluate(self, model: nn.Module, split: str, **look: Unpack[Look]) -> dict[str, float]:
        """{"loss", its statement by the field}, and of the test split at the end what honest_loss finds."""
        ids = self.looked_at(split)
        rows = in_rows(ids, min(ROWS, max(1, len(ids) // (2 * self.segment))))
        mine, _, weight = share(rows, rows, *look["part"])
        with evaluating(model):
            summed = look["total"](weight * self._summed_loss(model, mine.to(look["device"])))
            loss = float(summed) / (rows.shape[0] * (rows.shape[1] - 1))
            found = {"loss": loss, **stated(loss, self.corpus.unit, self._characters.get(split))}
            if split == "test" and look["final"]:
                windows = windows_of(ids, self.memory + self.segment + 1).to(look["device"])
                found |= honest_loss(model, windows, self.segment)
        return found

    def _summed_loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        if self.stride is None:
            return loss_with_memory(model, rows, self.segment)
        return loss_in_window(model, rows, self.memory + self.segment, self.stride)


def text_task(
    name: str,
    corpus: Corpus,
    *,
    test: int | None = None,
    segment: int = 64,
    memory: int | None = None,
    model: str = "transformer_xl",
    epoch_tokens: int | None = None,
    stride: int | None = None,
    bias: str = "zero",
) -> TextTask:
    """A TextTask, checked. epoch_tokens: the whole split when None; test: how many of its tokens are looked at.

    memory: as long as a segment when None; a decoder has none. Losses are measured as in training, segment after
    segment with memory. With a stride, instead, a window of as many tokens as memory and segment have slides over the
    text by so many, without memory: slower, and every token but the first has a long past. bias: where those of the
    softmax start, at "zero" or at the "frequencies" of the training split.
    """
    if bias not in BIASES:
        raise UnknownNameError(f"{name}: " + unknown("bias", bias, BIASES))
    if model not in MODELS:
        raise UnknownNameError(f"{name}: " + unknown("model", model, MODELS))
    if model == "decoder" and memory:
        raise UsageError(f"{name}: a decoder has no memory; got memory {memory!r}. Leave it out, or the model.")
    if memory is None:
        memory = 0 if model == "decoder" else segment
    whole = {"segment": (segment, 2), "memory": (memory, 0)}
    optional = {"epoch_tokens": epoch_tokens, "test": test, "stride": stride}
    whole |= {what: (value, 1) for what, value in optional.items() if value is not None}
    for what, (value, least) in whole.items():
        if type(value) is not int or value < least:
            raise UsageError(f"{name}: {what} must be a whole number, {least} or more; got {value!r}.")
    if stride is not None and stride > memory + segment:
        raise UsageError(
            f"{name}: stride must be at most {memory + segment}, the tokens of memory and segment that the window has; "
            f"got {stride}."
        )
    sizes, window = {split: len(getattr(corpus, split)) for split in SPLITS}, memory + segment + 1
    evaluated = {split: min(size, max(LOOK, window)) for split, size in sizes.items()}
    evaluated["test"] = min(test or sizes["test"], sizes["test"])
    for split in SPLITS:
        if evaluated[split] < window:
            raise UsageError(
                f"{name}, {split} split: there must be {window} tokens or more to look at, for a memory of {memory}, a "
                f"segment of {segment} and one to follow; there are {evaluated[split]} of {sizes[split]}. Give more "
                "text, shorten them, or look at more."
            )
    return TextTask(name, corpus, segment, memory, model, epoch_tokens or len(corpus.train), evaluated, stride, bias)


def reads_text(**defaults: Any) -> Callable[[Callable[..., Corpus]], Callable[..., TextTask]]:
    """Make a task of a function that gives a corpus: it takes the options of text_task as well, with these defaults."""

    def task_of(corpus_of: Callable[..., Corpus]) -> Callable[..., TextTask]:
        own = inspect.signature(corpus_of).parameters
        reading = {
            name: option.replace(default=defaults.get(name, option.default))
            for name, option in inspect.signature(text_task).parameters.items()
            if option.kind is option.KEYWORD_ONLY and name not in own
        }

        @wraps(corpus_of)
        def task(*data: Any, **given: Any) -> TextTask:
            chosen = {name: given.pop(name, option.default) for name, option in reading.items()}
            return text_task(corpus_of.__name__, corpus_of(*data, **given), **chosen)

        task.__signature__ = inspect.Signature([*own.values(), *reading.values()])  # type: ignore[attr-defined]
        return task

    return task_of
