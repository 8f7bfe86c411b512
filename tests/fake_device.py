"""A second device without hardware: tensors that say they live on it, and may meet no others.

A `Far` holds a CPU tensor and reports the device privateuseone:0. Every operation with one of them runs on the tensors
inside. An operation that mixes far tensors with near ones (but for numbers: near tensors of no axes that say so) is an
error, as it is on an accelerator. Reading a number off the device is counted, by the line of the package that does it.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from depthscope.checks import WITHOUT_FLOAT64

FAR = torch.device("privateuseone:0")
READS = ("aten._local_scalar_dense.default", "aten.equal.default")


_setup_privateuseone_for_python_backend()  # for the whole process: run this in one of its own


class MixedDevicesError(Exception):
    """What an accelerator would have said."""


class Far(Tensor):
    """A tensor of the fake device. inside: the numbers, on the CPU."""

    inside: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type, inside: Tensor) -> "Far":
        if FAR.type in WITHOUT_FLOAT64 and inside.dtype in (torch.float64, torch.complex128):
            raise MixedDevicesError(f"a tensor of {FAR} cannot be {inside.dtype}: the device has no float64")
        far = Tensor._make_wrapper_subclass(
            cls, inside.shape, strides=inside.stride(), storage_offset=inside.storage_offset(), dtype=inside.dtype,
            device=FAR, requires_grad=False,
        )  # fmt: skip
        far.inside = inside
        return far

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Far({self.inside!r})"

    def tolist(self) -> Any:
        READ_AT[_who()] += 1
        return self.inside.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return dispatched(func, args, kwargs or {})


def _empty_strided(size: Any, stride: Any, **options: Any) -> Far:
    """Asked by torch itself, below Python: where a list of indices is put on the device."""
    return Far(torch.empty_strided(size, stride, dtype=options.get("dtype")))


def _copy_from(source: Tensor, target: Any, non_blocking: bool = False) -> Tensor:
    near = [t.inside if isinstance(t, Far) else t for t in (target, source)]
    near[0].copy_(near[1])
    return target


LIBRARY = torch.library.Library("aten", "IMPL")
LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
READ_AT: Counter[str] = Counter()


def dispatched(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run an operation on what is inside; its results are far where its tensors, or the device it names, are."""
    name, given = str(func), tree_flatten((args, kwargs))[0]
    tensors = [value for value in given if isinstance(value, Tensor)]
    named = kwargs.get("device")
    moves = name in ("aten._to_copy.default", "aten.copy_.default", "aten.set_.source_Storage")
    if any(isinstance(t, Far) for t in tensors) and not moves:
        near = [t for t in tensors if not isinstance(t, Far) and t.ndim]
        if near and not name.startswith("aten.index"):  # indices may be near, as on every accelerator
            raise MixedDevicesError(f"{name} of {FAR} and cpu, near: {[tuple(t.shape) for t in near]}")
    leaves = name == "aten._to_copy.default" and named is not None and torch.device(named).type == "cpu"
    if name in READS or (leaves and isinstance(args[0], Far)):
        READ_AT[_who()] += 1
    far = any(isinstance(t, Far) for t in tensors) if named is None else torch.device(named).type == FAR.type
    if named is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner = [tree_map_only(Far, lambda t: t.inside, part) for part in (args, kwargs)]
    result = func(*inner[0], **inner[1])
    if name.split(".")[1].endswith("_") and args and isinstance(args[0], Far):
        if torch.Tag.inplace_view in func.tags:  # squeeze_ and its kin: the shape that is seen from outside changes too
            with no_dispatch():
                func(*args, **kwargs)
        return args[0]
    same = {id(t.inside): t for t in tensors if isinstance(t, Far)}
    return tree_map_only(Tensor, lambda t: same[id(t)] if id(t) in same else Far(t) if far else t, result)


def _who() -> str:
    """The line of the package that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None and "/depthscope/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return "elsewhere" if frame is None else f"{frame.f_code.co_filename.split('/depthscope/')[1]}:{frame.f_lineno}"


class Factories(TorchDispatchMode):
    """Catches what is made on the fake device out of nothing, torch.zeros(..., device="privateuseone:0")."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return dispatched(func, args, kwargs or {})


@contextmanager
def far_away(narrow: bool = False) -> Iterator[None]:
    """While entered, the fake device works; narrow: it has no float64. Attention has one kernel on both devices: on the CPU torch takes another
    one, and where tokens have grown alike the difference in rounding is all that is left of theirs."""
    READ_AT.clear()
    WITHOUT_FLOAT64.update({FAR.type} if narrow else ())
    with Factories(), sdpa_kernel(SDPBackend.MATH):
        yield
    WITHOUT_FLOAT64.discard(FAR.type)


def moved(value: Any) -> Any:
    """A model, in place, or tensors in whatever they are in, on the fake device."""
    if not isinstance(value, nn.Module):
        return tree_map_only(Tensor, Far, value)
    for module in value.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(Far(parameter.detach()), parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = Far(buffer)
    return value


def back(value: Any) -> Any:
    """The numbers inside."""
    return tree_map_only(Far, lambda t: t.inside, value)
