"""What is noted while laws flow through the blocks of a model: the law before block 1 and after every block."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import ForecastError
from depthscope.laws.law import Law
from depthscope.laws.layout import has_channels_first
from depthscope.laws.nests import leaves, mapped
from depthscope.laws.sampled_steps import SampledSteps
from depthscope.laws.tensor import LawTensor, law_of
from depthscope.traces.places import is_known, tokens_gave, tokens_given


class StreamInDoubtError(ForecastError):
    """A block hands on several tensors that may be its tokens, and no pass has told which."""


class Following:
    """Hooks for the ends of blocks. found: laws before block 1 and after every block that is over."""

    def __init__(self, remember: bool, blocks: int, steps: SampledSteps, channels_first: bool | None = None) -> None:
        self.remember, self.blocks, self.steps, self.channels_first = remember, blocks, steps, channels_first
        self.found: list[Law] = []
        self.running = 0
        self.last: Law | None = None  # after a block whose end the next one will tell
        self.missing = 0  # sums until then
        self.form: torch.Size | None = None

    @property
    def over(self) -> bool:
        """Whether the last block is over, as far as is known."""
        return not self.running and len(self.found) + (self.last is not None) > self.blocks

    def states(self) -> list[Law]:
        return self.found + ([] if self.last is None else [self.last])

    def enter(self, block: nn.Module, given: tuple, named: dict) -> tuple[tuple, dict]:
        """Tokens become laws; a law begins anew with every block."""
        inside = tuple(leaves((given, named)))
        streams = list({id(v): v for v in inside if isinstance(v, LawTensor)}.values())
        x = streams[0] if streams and not is_known(block) else tokens_given(block, given, named)
        if x is None:
            raise ForecastError("a block must take tokens (B, n, d); it has none. Pass blocks=.")
        self.form = x.shape
        if not streams:
            known = self.channels_first
            self.steps.channels_first = has_channels_first(x, block) if known is None else known
        law = law_of(x) if streams else Law.of_tokens(self.steps.layout.tokens(x).cpu(), followed=self.remember)
        if self.last is not None or self.running:  # this tells where the block before it ended
            self.found.append(law)
            self.last, self.running, self.missing = None, 0, 0
        handed_on = not self.found or law is self.found[-1]  # with nothing between blocks
        alone = len(streams) < 2 and (handed_on or self.remember)  # parts that are remembered would multiply
        law = law.settled() if alone else law.brief()  # what shares sources with other states: strangers if settled
        law = law.doubted()
        if not self.found:
            self.found.append(law)
        self.running, self.steps.open = 1, True
        new = x if isinstance(x, LawTensor) else LawTensor(x.shape, x.dtype, law)
        new.law, new.turned = law, self.steps.channels_first
        if not streams:
            x.as_law = new  # type: ignore[attr-defined]

        def swap(value: Any) -> Any:
            if isinstance(value, LawTensor) and value is not x:
                return LawTensor(value.shape, value.dtype, law_of(value).brief().doubted())
            return new if value is x or _is_copy(value, x) else value

        return mapped(swap, given), mapped(swap, named)

    def leave(self, block: nn.Module, output: Any, sums: int) -> None:
        """The module is over after which the block ends, or ends after so many sums."""
        law = law_of(self._handed_on(block, output))
        self.running = 0
        if sums:
            self.last, self.missing = law, sums
        else:
            self.found.append(law)
        self.steps.open = not self.over

    def _handed_on(self, block: nn.Module, output: Any) -> LawTensor:
        """The stream among what a block gives: where a pass has told, else the one of the form that entered."""
        laws = {id(part): part for part in leaves(output) if isinstance(part, LawTensor) and part.ndim >= 3}
        if not laws:
            raise ForecastError(f"a block must return its tokens, alone or in a nest; got {type(output).__name__}.")
        if is_known(block) and self.form is not None:
            known = tokens_gave(block, output, tuple(self.form))
            if isinstance(known, LawTensor):
                return known
        elif len(laws) > 1:
            shapes = ", ".join(str(tuple(part.shape)) for part in laws.values())
            raise StreamInDoubtError(
                f"a block must hand on one tensor that may be its tokens; {type(block).__name__} gives {shapes}. "
                "Pass blocks=."
            )
        return next((part for part in laws.values() if part.shape == self.form), next(iter(laws.values())))

    def summed(self, result: LawTensor) -> None:
        if self.missing and result.shape == self.form:
            self.last, self.missing = law_of(result), self.missing - 1


def _is_copy(value: Any, x: Tensor) -> bool:
    """Whether a second stream starts as the tokens themselves."""
    plain = isinstance(value, Tensor) and not isinstance(value, LawTensor) and not isinstance(x, LawTensor)
    return plain and value.shape == x.shape and torch.equal(value, x)
