"""Weights that are not at hand: offloaded by accelerate, or cut over processes (DTensor). They come one by one.

Nothing here holds a second copy of a model: what was put together for one part of it is let go when that part has run.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from depthscope.traces.cut_weights import HOOKS, WHOLE, is_cut

LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Away(NamedTuple):
    """A parameter that is not at hand: its place, the part of the model that needs it, and how to get it."""

    unit: nn.Module
    owner: nn.Module
    name: str
    get: Callable[[], Tensor]


def is_offloaded(model: nn.Module) -> bool:
    """Whether accelerate brings weights when they are needed."""
    return any(_offloading(module) is not None for module in model.modules())


def are_away(model: nn.Module) -> bool:
    """Whether some weights are not at hand."""
    return any(map(is_cut, model.parameters())) or is_offloaded(model)


def values_of(owner: nn.Module, name: str) -> Tensor:
    """The numbers of a parameter, wherever they are kept; processes that share it must all ask."""
    parameter = getattr(owner, name).detach()
    if is_cut(parameter):
        return parameter.full_tensor()
    brings = _offloading(owner)
    if parameter.is_meta and brings is not None:
        return brings.weights_map[name]
    return parameter


def weights_in(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Owner, name and tensor of every parameter of a module; the tensor may hold no numbers (see values_of)."""
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                yield owner, name, parameter


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """While entered, the model runs as one that is whole and here: each part has its weights while it runs.

    Hooks that move inputs and weights between devices and processes are away. Weights outside of lists of modules are
    here all the time, and beside them those of one member of a list. All processes that share a model must enter.
    """
    if not are_away(model):
        yield
        return
    units: dict[nn.Module, list[Away]] = {}
    for one in _away(model):
        units.setdefault(one.unit, []).append(one)
    with ExitStack() as stack:
        stack.enter_context(_without_movers(model))
        if model not in WHOLE:
            WHOLE.add(model)
            stack.callback(WHOLE.discard, model)
        for unit, parts in units.items():
            brought = _Brought(parts)
            stack.callback(brought.back)
            if unit is model:
                brought.here()
                continue
            stack.callback(unit.register_forward_pre_hook(brought.here, prepend=True).remove)
            stack.callback(unit.register_forward_hook(brought.back, always_call=True).remove)
        yield


class _Brought:
    """The weights of one part of a model, here while it runs."""

    def __init__(self, parts: list[Away]) -> None:
        self.parts = parts
        self.kept: list[tuple[nn.Module, str, Any]] = []

    def here(self, *_: Any) -> None:
        if self.kept:
            return
        shared: dict[int, nn.Parameter] = {}  # tied weights stay one
        for _unit, owner, name, get in self.parts:
            own: Any = owner._parameters[name]
            if id(own) not in shared:
                shared[id(own)] = nn.Parameter(get(), requires_grad=False)
            self.kept.append((owner, name, own))
            owner._parameters[name] = shared[id(own)]

    def back(self, *_: Any) -> None:
        for owner, name, own in self.kept:
            owner._parameters[name] = own
        self.kept = []


def _away(model: nn.Module) -> Iterator[Away]:
    for path, owner in model.named_modules():
        brings = _offloading(owner)
        for name, parameter in owner._parameters.items():
            if parameter is None:
                continue
            if is_cut(parameter):
                yield Away(_unit(model, path), owner, name, partial(_put_together, parameter))
            elif parameter.is_meta and brings is not None:
                yield Away(owner, owner, name, partial(_read, brings, name))


def _put_together(parameter: Any) -> Tensor:
    return parameter.detach().full_tensor()


def _read(brings: Any, name: str) -> Tensor:
    return brings.weights_map[name].clone()  # not a view of a file, which would stay open


def _unit(model: nn.Module, path: str) -> nn.Module:
    """The member of a list of modules that a module is in, or is; the model itself for one outside of all lists."""
    module, in_list = model, isinstance(model, LISTS)
    for name in path.split(".") if path else ():
        module = getattr(module, name)
        if in_list and not isinstance(module, LISTS):
            return module
        in_list |= isinstance(module, LISTS)
    return model


def _offloading(module: nn.Module) -> Any:
    """accelerate's hook that brings the weights of a module; None where it has none."""
    hook = getattr(module, "_hf_hook", None)
    hooks = getattr(hook, "hooks", None) or [hook]
    return next(
        (h for h in hooks if getattr(h, "offload", False) and getattr(h, "weights_map", None) is not None), None
    )


@contextmanager
def _without_movers(model: nn.Module) -> Iterator[None]:
    """Without accelerate's way to run modules, and without the hooks of torch.distributed."""
    forwards = [
        (vars(m), vars(m)["forward"]) for m in model.modules() if hasattr(m, "_hf_hook") and "forward" in vars(m)
    ]
    hooks = [(getattr(module, name), dict(getattr(module, name))) for module in model.modules() for name in HOOKS]
    try:
        for own, _ in forwards:
            del own["forward"]
        for table, all_hooks in hooks:
            for key, hook in all_hooks.items():
                if (getattr(hook, "__module__", None) or "").startswith("torch.distributed"):
                    del table[key]
        yield
    finally:
        for own, forward in forwards:
            own["forward"] = forward
        for table, all_hooks in hooks:
            added = {key: hook for key, hook in table.items() if key not in all_hooks}
            table.clear()
            table.update(all_hooks | added)
