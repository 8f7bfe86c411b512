"""Hooks on modules that a case names by hand: the truth for models of libraries."""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tools.coverage.case import Patterns, Tap, Tapped, main_tensor
from torch import Tensor, nn

Layout = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]  # to (B, n, d), and back: (new, old)

LAYOUTS: dict[str, Layout] = {
    "b n d": (lambda x: x, lambda new, old: new),
    "n b d": (lambda x: x.transpose(0, 1), lambda new, old: new.transpose(0, 1)),
    "b d n": (lambda x: x.mT, lambda new, old: new.mT),
    "n d": (lambda x: x[None], lambda new, old: new[0]),
    "b d h w": (lambda x: x.flatten(2).mT, lambda new, old: new.mT.reshape(old.shape)),
    "b h w d": (lambda x: x.flatten(1, -2), lambda new, old: new.reshape(old.shape)),
}


def modules(model: nn.Module, pattern: str | list[str]) -> list[nn.Module]:
    """The modules whose path fits a pattern in which * stands for a number, in the order of registration; or a list."""
    if isinstance(pattern, list):
        return [model.get_submodule(path) for path in pattern]
    form = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
    found = [module for path, module in model.named_modules() if form.fullmatch(path)]
    if not found:
        raise LookupError(f"no module of {type(model).__name__} is called {pattern}")
    return found


def tapped_at(
    model: nn.Module,
    blocks: str | list[str],
    *,
    layout: str = "b n d",
    first: str | None = None,
    argument: str | int = 0,
    result: str | int = 0,
) -> Tapped:
    """A stream whose states are what modules hand on.

    blocks: the modules that end a block, in the order of their calls. first: the module whose argument is state 0, the
    first of them by default. argument, result: place or name of the tokens among several.
    """
    ends = list(dict.fromkeys(modules(model, blocks)))
    start = modules(model, first)[0] if first else ends[0]
    there, back = LAYOUTS[layout]

    @contextmanager
    def tapped(tap: Tap) -> Iterator[None]:
        count = 0

        def passed(_: nn.Module, __: Any) -> None:
            nonlocal count
            count = 0

        def before(_: nn.Module, args: tuple, kwargs: dict) -> None:
            if count == 0:
                tap(0, there(_argument(args, kwargs, argument)))

        def after(_: nn.Module, __: tuple, output: Any) -> Any:
            nonlocal count
            count += 1
            old = output if isinstance(output, Tensor) else output[result]
            return _replaced(output, result, back(tap(count, there(old)), old))

        handles = [model.register_forward_pre_hook(passed), start.register_forward_pre_hook(before, with_kwargs=True)]
        handles += [end.register_forward_hook(after) for end in ends]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    return tapped


def _argument(args: tuple, kwargs: dict, place: str | int) -> Tensor:
    if isinstance(place, str):
        return kwargs[place]
    return args[place] if place < len(args) else kwargs["hidden_states"]


def _replaced(output: Any, place: str | int, new: Tensor) -> Any:
    if isinstance(output, Tensor):
        return new
    if isinstance(output, tuple):
        return tuple(new if i == place else part for i, part in enumerate(output))
    output[place] = new
    return output


def eager_patterns(model: nn.Module, inputs: dict[str, Any], name: str = "attentions") -> Patterns:
    """The attention of a Hugging Face model as it hands it out itself, from a copy with eager attention.

    None where that copy computes something else: then its attention is not the model's.
    """

    def patterns() -> list[Tensor | None] | None:
        twin = copy.deepcopy(model)
        twin.set_attn_implementation("eager")
        with torch.no_grad():
            output = twin(**inputs, output_attentions=True)
            same = torch.allclose(main_tensor(output), main_tensor(model(**inputs)), rtol=1e-3, atol=1e-4)
        return list(getattr(output, name)) if same else None

    return patterns
