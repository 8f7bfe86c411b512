"""A case of the coverage run: one model as a user would have it, and the truth about its residual stream."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS, DEPTH, WIDTH, HEADS, WORDS = 3, 24, 5, 64, 4, 100

Tap = Callable[[int, Tensor], Tensor]  # (index, tokens (B, n, d)) -> what goes on in their place
Tapped = Callable[[Tap], AbstractContextManager[Any]]
Patterns = Callable[[], list[Tensor | None] | None]


@dataclass
class Stream:
    """One residual stream.

    tapped(tap): inside, every forward pass calls tap(0, X) with what enters block 1 and tap(l, X) with what block l
    hands on, (B, n, d) whatever the layout of the model, and goes on with what tap(l, X) returns for l >= 1.
    patterns(): P (B, h, n, n) of each block, None where a block has no such matrix. mask (B, n): False at padding.
    """

    tapped: Tapped
    causal: bool = False
    mask: Tensor | None = None
    patterns: Patterns | None = None
    changed: Any = None  # the inputs with another last token: what shows a leak


@dataclass
class Sample:
    """A model with random weights in eval mode, inputs as they are passed to ds.scan, and its true streams by name.

    result(output): the tensor that is compared, token_axis: where its tokens are, None where it has none.
    repadded: the inputs with other contents at the padding.
    """

    model: nn.Module
    inputs: Any
    streams: dict[str, Stream]
    result: Callable[[Any], Tensor] = field(default=lambda output: main_tensor(output))
    token_axis: int | None = 1
    repadded: Any = None

    def run(self, inputs: Any = None) -> Any:
        """The model's output; the seed is for models that draw numbers in eval too, such as an order of patches."""
        inputs = self.inputs if inputs is None else inputs
        torch.manual_seed(0)
        with torch.no_grad():
            if isinstance(inputs, dict):
                return self.model(**inputs)
            return self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)

    def output(self, inputs: Any = None) -> Tensor:
        """The tensor that is compared."""
        return self.result(self.run(inputs)).detach().clone()


@dataclass(frozen=True)
class Case:
    """name is stable. stream: the one that is judged. repeats=False: nothing to measure, so a refusal is right."""

    name: str
    group: str
    build: Callable[[], Sample]
    stream: str = "main"
    repeats: bool = True
    attention: bool = True  # False only where nothing mixes tokens

    def sample(self) -> Sample:
        torch.manual_seed(0)
        return self.build()


CASES: dict[str, Case] = {}


def enter(case: Case) -> None:
    """Add a case to the registry."""
    if case.name in CASES:
        raise ValueError(f"two cases are called {case.name}")
    CASES[case.name] = case


def all_cases() -> dict[str, Case]:
    """Every case of every file in cases/, in the order of the files."""
    for file in sorted((Path(__file__).parent / "cases").glob("*.py")):
        if file.stem != "__init__":
            import_module(f"{__package__}.cases.{file.stem}")
    return CASES


def main_tensor(output: Any) -> Tensor:
    """The first tensor of floats in an output, depth first."""
    found = next((t for t in _tensors(output) if t.is_floating_point()), None)
    if found is None:
        raise TypeError(f"no tensor of floats in an output of type {type(output).__name__}")
    return found


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
    elif hasattr(output, "__dict__"):
        yield from _tensors(vars(output))


def words(batch: int = BATCH, n: int = TOKENS, seed: int = 1, low: int = 5) -> Tensor:
    """Random token ids (batch, n), none below low: special tokens stay out."""
    return torch.randint(low, WORDS, (batch, n), generator=torch.Generator().manual_seed(seed))


def numbers(*shape: int, seed: int = 1) -> Tensor:
    """Random normal numbers with a mean of their own in every channel, so that tokens have something in common."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) + 0.3 * torch.randn(shape[-1], generator=generator)


def other_last(x: Tensor, axis: int = 1) -> Tensor:
    """The same ids or tokens with another last one."""
    y = x.clone()
    last = y.select(axis, -1)
    last.copy_((last + 7) % (WORDS - 5) + 5 if not x.is_floating_point() else last + 1.0)
    return y
