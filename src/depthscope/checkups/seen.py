"""What can be seen of a model in which no blocks were recognised: lists, families, modules called again, attention."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from depthscope.traces.attention import attention_in
from depthscope.traces.blocks import candidates
from depthscope.traces.entry import repeated_calls, run_model
from depthscope.traces.families import template
from depthscope.traces.followed import uncalled_lists
from depthscope.traces.inputs import Batch
from depthscope.traces.operations import Operation
from depthscope.traces.slow_path import slow_path
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watched, Watcher


class _Attentions:
    """A listener that counts attention."""

    everything = False

    def __init__(self) -> None:
        self.count = 0

    def modules(self) -> Iterable[Watched]:
        return ()

    def closed(self, failed: bool) -> None: ...

    def operation(self, op: Operation) -> Any:
        result = op.run()
        self.count += attention_in(op, result) is not None
        return result


def attentions_in(model: nn.Module, batch: Batch) -> int:
    """How many attentions one quiet pass shows."""
    counted = _Attentions()

    def run() -> None:
        with untouched(model), torch.no_grad(), slow_path(), Watcher(counted):
            batch.run(model)

    run_model(model, run)
    return counted.count


def families_in(model: nn.Module) -> dict[str, int]:
    """Patterns of modules that differ in their numbers alone, with how many there are of each; outermost first."""
    paths = candidates(model, None) | set(uncalled_lists(model))
    counts = Counter(template(path) for path in paths)
    return dict(sorted(counts.items(), key=lambda pair: (pair[0].count("."), -pair[1])))


def called_again(model: nn.Module, batch: Batch) -> dict[str, int]:
    """Modules with children that are called more than once in a pass, outermost first."""
    calls = run_model(model, lambda: repeated_calls(model, batch))
    again = {path: count for path, count in calls.items() if path and count > 1}
    return dict(sorted(again.items(), key=lambda pair: pair[0].count(".")))


def in_words(families: dict[str, int], again: dict[str, int] | None = None, attentions: int | None = None) -> list[str]:
    """The same for a reader; None is not known, because the model did not run."""
    numbered = ", ".join(f"{count} x {pattern}" for pattern, count in list(families.items())[:6])
    said = [f"numbered modules: {numbered or 'none'}"]
    if again is not None:
        repeated = ", ".join(f"{path} ({count} times)" for path, count in list(again.items())[:6])
        said.append(f"modules called more than once: {repeated or 'none'}")
    if attentions is not None:
        said.append(f"attention: {f'seen {attentions} times in a pass' if attentions else 'none was seen'}")
    return said
