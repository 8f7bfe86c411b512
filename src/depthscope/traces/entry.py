"""The one way into every verb: a model out of its wrappers, its inputs in batches, the blocks that were named."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from depthscope.errors import DepthscopeError, ForwardError, UsageError
from depthscope.traces.blocks import blocks_by_name, candidates
from depthscope.traces.caches import is_cache
from depthscope.traces.families import template
from depthscope.traces.followed import uncalled_lists
from depthscope.traces.glance import glance
from depthscope.traces.inputs import Batch, batches
from depthscope.traces.installed import prepare_fixes
from depthscope.traces.padding import check_sense
from depthscope.traces.sure_survey import sure_survey
from depthscope.traces.survey import Survey, Surveyed
from depthscope.traces.untouched import untouched

WRAPPED = ("_orig_mod", "module", "_fsdp_wrapped_module")  # names under which wrappers keep their model


@dataclass(frozen=True)
class Entry:
    """A model at the border of a verb: the bare module, its inputs, patterns of its blocks, and what was around it."""

    model: nn.Module
    inputs: Any = None
    mask: Any = None
    blocks: str | list[str] | None = None
    stream: str | None = None
    wrappers: list[nn.Module] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What a reader should know: the wrappers that were looked through."""
        return [f"looked at the model inside {_wrapper_name(wrapper)}" for wrapper in self.wrappers]

    def batches(self) -> Iterator[Batch]:
        """The batches of the inputs, each with its padding mask."""
        for batch in batches(self.model, self.inputs, self.mask, self._patterns()):
            if self.mask is not None:
                check_sense(self.model, batch)
            yield batch

    def _patterns(self) -> list[str]:
        return [self.blocks] if isinstance(self.blocks, str) else list(self.blocks or ())

    def first(self) -> Batch:
        """The first batch, for verbs that run the model several times on the same inputs."""
        return self.lasting(next(iter(self.batches())))

    def lasting(self, batch: Batch) -> Batch:
        """The batch, if a model can run on it again and again."""
        if any(map(is_cache, (*batch.args, *batch.kwargs.values()))):
            raise UsageError(
                "the model must run several times on the same inputs; a key-value cache grows each time. Leave it out, "
                "and give the whole text."
            )
        return batch

    def names(self) -> list[str]:
        """The paths of the blocks, without running the model."""
        return blocks_by_name(self.model, self.blocks, self.stream)

    def sure_names(self) -> list[str] | None:
        """The paths of the blocks where names alone leave no doubt: one family of modules, none inside another.

        None where a pass must tell: lists that nobody calls, stages, several towers, entries of several kinds, blocks
        that the user names.
        """
        families = {template(path) for path in candidates(self.model, None) | set(uncalled_lists(self.model))}
        if self.blocks is not None or self.stream is not None or len(families) != 1:
            return None
        kinds = {_kinds_in(self.model.get_submodule(path)) for path in candidates(self.model, None)}
        return self.names() if len(kinds) == 1 and not uncalled_lists(self.model) else None

    def survey(self, batch: Batch) -> Survey:
        """What a quiet pass shows: the streams, their blocks as they run, where their tokens lie."""
        prepare_fixes(self.model, batch.args, batch.kwargs)
        asked = self.chosen(), batch.args, batch.kwargs, self.stream
        return self.run(lambda: sure_survey(self.model, *asked)).only(self.stream)

    def chosen(self) -> set[str] | None:
        """The paths that the user names, None where the finder chooses."""
        return None if self.blocks is None else candidates(self.model, self.blocks)

    def padded(self, batch: Batch, stream: Surveyed) -> Batch:
        """The batch with the mask (B, n) of the tokens that the blocks of a stream see: mask=, else by a glance."""
        if batch.said == "mask=":
            return batch
        blocks = [span.entry for span in stream.spans if span.entry]
        seen = self.run(lambda: glance(self.model, blocks, stream.axis, batch.args, batch.kwargs))
        return replace(batch, mask=seen.padding(batch.mask).mask)

    def run(self, call: Callable[[], Any]) -> Any:
        """Run the model; what it raises by itself is told as the model's own failure."""
        return run_model(self.model, call)


def _kinds_in(module: nn.Module) -> tuple[type, ...]:
    """The classes of a module and its parts: Residual(attention) and Residual(network) are two kinds of modules."""
    return tuple(type(part) for part in module.modules())


def run_model(model: nn.Module, call: Callable[[], Any]) -> Any:
    """The result of a call that runs the model. An error of the model's own becomes a ForwardError."""
    try:
        return call()
    except DepthscopeError:
        raise
    except Exception as error:
        raise ForwardError(
            f"the model must run on these inputs; {type(model).__name__} raised "
            f"{type(error).__name__}: {error}. Call the model yourself with the same inputs to see where."
        ) from error


def enter(model: Any, inputs: Any = None, blocks: Any = None, mask: Any = None, stream: str | None = None) -> Entry:
    """Check the model, take it out of its wrappers, and keep what goes with it."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module; got {type(model).__name__}. Pass the model itself.")
    wrappers = []
    while (name := _wrapped_as(model)) is not None:
        wrappers.append(model)
        model = getattr(model, name)
    if stream is not None and not isinstance(stream, str):
        raise UsageError(f'stream must be a name, such as "encoder"; got {stream!r}. scan.streams has the names.')
    if blocks is not None and not isinstance(blocks, str | Iterable):
        raise UsageError(f"blocks must be a pattern or a list of them; got {blocks!r}. scan.blocks is one.")
    chosen = blocks if blocks is None or isinstance(blocks, str) else list(blocks)
    if chosen is not None and not all(isinstance(one, str) for one in chosen):
        raise UsageError(f"blocks must be patterns, words such as 'encoder.layers.*'; got {chosen!r:.80}.")
    chosen = None if chosen == "" else chosen  # scan.blocks of blocks that are no modules
    return Entry(model, inputs, mask, _inside(model, chosen), stream, wrappers)


def _wrapped_as(model: nn.Module) -> str | None:
    """The name under which a wrapper keeps its model; None for a model that is none."""
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        return "_orig_mod"
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return "module"
    return "_fsdp_wrapped_module" if "_fsdp_wrapped_module" in model._modules else None


def _wrapper_name(wrapper: nn.Module) -> str:
    return "torch.compile" if _wrapped_as(wrapper) == "_orig_mod" else type(wrapper).__name__


def _inside(model: nn.Module, blocks: Any) -> Any:
    """Patterns as they are called inside the wrapper, where they were given from the outside."""
    if blocks is None:
        return None
    if not isinstance(blocks, str):
        return [_inside(model, pattern) for pattern in blocks]
    first, _, rest = blocks.partition(".")
    return _inside(model, rest) if first in WRAPPED and rest and not hasattr(model, first) else blocks


def repeated_calls(model: nn.Module, batch: Batch) -> dict[str, int]:
    """How often each module with children is called in a pass."""
    counts: dict[str, int] = {}
    handles = []

    def count(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            counts[path] = counts.get(path, 0) + 1

        return hook

    try:
        for path, module in model.named_modules():
            if next(module.children(), None) is not None and not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_hook(count(path)))
        with untouched(model), torch.no_grad():
            batch.run(model)
    finally:
        for handle in handles:
            handle.remove()
    return counts
