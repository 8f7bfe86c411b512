"""The safety net: a module that laws cannot be followed through is run on tokens drawn from the law of its input.

A part of a block is run so (its attention, its experts), with its actual weights, and the law goes on from what it
returns; the whole block where none of its parts takes and returns tokens. Everything else that it takes (masks,
positions, states of an encoder) is passed as it is. A few draws tell how sure that is. They are draws, and not the
tokens of the model itself: those would need every block before it to be computed. Smaller steps than the parts of a
block would be drawn more often, and what queries, keys and values have to do with each other would be lost.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import DepthscopeError, ForecastError
from depthscope.laws.doubt import by_draws
from depthscope.laws.draws import drawn
from depthscope.laws.law import Law
from depthscope.laws.layout import Layout
from depthscope.laws.nests import leaves, mapped
from depthscope.laws.scores import Attention
from depthscope.laws.tensor import LawTensor, OtherTokensError, law_of
from depthscope.traces.caches import is_cache
from depthscope.traces.watcher import unwatched

DRAWS = 4


class AxisNeededError(DepthscopeError):
    """Tokens must be drawn, and nothing has told yet along which axis they lie."""


@dataclass
class SampledSteps:
    """Which modules were run on drawn tokens, by path, and why; axis of the tokens, None while it is not known.

    past: whether the inputs have a key-value cache, which is read then. tokens_only: a module that hands on something
    else than tokens (the scores of its attention) is run on drawn ones, for another that cannot take that as a law.
    """

    axis: int | None
    past: bool = False
    tokens_only: bool = False
    units: dict[str, str] = field(default_factory=dict)
    channels_first: bool = False
    calls: dict[str, int] = field(default_factory=dict)  # of modules that hold matrices, on laws
    open: bool = True  # closed where nothing is of interest any more
    chance: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def through(self, name: str, plain: Callable[..., Any], args: tuple, kwargs: dict, error: Exception) -> Any:
        """What the module `plain` makes of draws of the laws among its arguments; the error where that cannot be."""
        held = {id(x): x for x in leaves((args, kwargs)) if isinstance(x, LawTensor)}
        if not all(map(self._is_tokens, held.values())):
            raise error
        if self.axis is None:
            raise AxisNeededError(f"{name} is to be run on drawn tokens.") from error
        laws = [law_of(x) for x in held.values()]
        outputs = [self._run(plain, args, kwargs, held, laws) for _ in range(DRAWS)]
        form = next(iter(held.values())).shape
        result = mapped(lambda *parts: self._as_law(parts, form, laws[0]), *outputs)
        if not any(isinstance(part, LawTensor) for part in leaves(result)):  # fewer tokens, or more
            result = mapped(lambda *parts: self._as_law(parts, None, laws[0]), *outputs)
        if not any(isinstance(part, LawTensor) for part in leaves(result)):
            raise error  # tokens went in and none came out: a part of a step, not one by itself
        self.units.setdefault(name, _reason(error))
        return result

    @property
    def again(self) -> bool:
        """Whether matrices met what they had made."""
        return max(self.calls.values(), default=0) > 1

    def hands_on_more(self, result: Any) -> bool:
        return any(isinstance(part, LawTensor) and not self._is_tokens(part) for part in leaves(result))

    @property
    def layout(self) -> Layout:
        return Layout(1 if self.axis is None else self.axis, self.channels_first)

    def _run(self, plain: Callable[..., Any], args: tuple, kwargs: dict, held: dict, laws: list[Law]) -> Any:
        tensors = list(held.values())
        sizes = [self.layout.sizes(x.shape) for x in tensors]
        draws = drawn(laws, sizes[0][0], [channels for _, _, channels in sizes], self.chance)
        pairs = zip(tensors, draws, strict=True)
        numbers = {id(x): self.layout.laid_out(X, x.shape).to(x.dtype) for x, X in pairs}

        def given(value: Any) -> Any:
            if isinstance(value, LawTensor):
                return numbers[id(value)].clone()
            return copy.deepcopy(value) if is_cache(value) else value

        with unwatched():
            return plain(*mapped(given, args), **mapped(given, kwargs))

    def _is_tokens(self, x: LawTensor) -> bool:
        """Whether the axes of a tensor are those of the tokens, and not heads, windows or channels elsewhere."""
        if isinstance(x.law, Attention) or x.ndim < 3 or x.turned != self.channels_first:
            return False
        law = law_of(x)
        _, n, channels = self.layout.sizes(x.shape)
        return n == law.tokens and (not law.known or law.known[0][1].shape[-1] in (1, channels))

    def _as_law(self, parts: tuple, form: torch.Size | None, before: Law) -> Any:
        """The law of what came out of every draw, where it is tokens: as many as in a tensor of this shape."""
        first = parts[0]
        if not isinstance(first, Tensor) or isinstance(first, LawTensor) or not first.is_floating_point():
            return first
        if first.ndim < 3 or (form is not None and not self._fits(first.shape, form)):
            return first
        X = torch.stack([self.layout.tokens(part) for part in parts])
        law = Law.of_draws(X, before.followed)
        if before.doubt is not None:
            energies = torch.stack([Law.of_tokens(x).pair for x in X])
            doubt = before.doubt.moved(before.pair, law.pair).with_chance("draws", by_draws(energies))
            law = replace(law, doubt=doubt)
        made = LawTensor(first.shape, first.dtype, law)
        made.turned = self.channels_first
        return made

    def _fits(self, shape: torch.Size, form: torch.Size) -> bool:
        return len(shape) == len(form) and self.layout.sizes(shape)[:2] == self.layout.sizes(form)[:2]


def _no_cache(value: Any) -> Any:
    return None if is_cache(value) else value


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, DepthscopeError) else f"{type(error).__name__}: {error}"
    return text.removeprefix("forecast: ").rstrip(".")


@contextmanager
def sampled_where_needed(model: nn.Module, ends: list[nn.Module], steps: SampledSteps) -> Iterator[None]:
    """Let blocks, their parts, and what is between blocks be run on drawn tokens where laws stop at them.

    ends: the modules that blocks begin and end with.
    """
    blocks = {id(module) for module in ends}
    holders = {id(m) for m in model.modules() if any(id(part) in blocks for part in m.modules() if part is not m)}
    names = {id(module): name for name, module in model.named_modules()}
    changed: list[tuple[dict[str, Any], Any]] = []
    try:
        for module in {id(m): m for m in _units(model, blocks, holders)}.values():
            own = vars(module)
            changed.append((own, own.get("forward")))
            has_matrices = any(p.ndim > 1 for p in module.parameters())
            own["forward"] = _guarded(names[id(module)], module.forward, steps, has_matrices)
        yield
    finally:
        for own, before in reversed(changed):
            own.pop("forward", None)
            if before is not None:
                own["forward"] = before


def _units(module: nn.Module, blocks: set[int], holders: set[int]) -> Iterator[nn.Module]:
    """Blocks and their parts; beside those that hold a block, whole modules."""
    for child in module.children():
        if isinstance(child, torch.jit.ScriptModule):
            continue
        listed = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if not listed and id(child) not in holders:
            yield child
        if listed or id(child) in holders or id(child) in blocks:
            yield from _units(child, blocks, holders)


def _guarded(name: str, plain: Callable[..., Any], steps: SampledSteps, has_matrices: bool) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        laws = [(x, x.law) for x in leaves((args, kwargs)) if isinstance(x, LawTensor)]
        if not laws:
            return plain(*args, **kwargs)
        if has_matrices and steps.open:
            steps.calls[name] = steps.calls.get(name, 0) + 1
        if not steps.past:  # a cache would be filled, and nobody will read it
            args, kwargs = mapped(_no_cache, args), mapped(_no_cache, kwargs)
        try:
            result = plain(*args, **kwargs)
            if steps.tokens_only and steps.open and steps.hands_on_more(result):
                raise ForecastError("what it hands on beside its tokens has no law.")
            return result
        except (OtherTokensError, AxisNeededError):
            raise
        except Exception as error:
            if not steps.open:
                raise
            for x, law in laws:  # what was written into them on the way is taken back
                x.law = law
            return steps.through(name, plain, args, kwargs, error)

    return forward
