"""A tensor that holds a law: it has no numbers, and a model's own code runs on it.

What torch's functions do to it is in RULES, by their names; rules.py and the other files of rules fill it.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.errors import DepthscopeError, ForecastError
from depthscope.laws.hidden_units import Units
from depthscope.laws.law import Law
from depthscope.laws.scores import Attention
from depthscope.traces.operations import Operation, operands_of
from depthscope.traces.watcher import body_of

Rule = Callable[[Any, tuple, dict], Any]
RULES: dict[str, Rule] = {}
SCORE_RULES: dict[str, Rule] = {}  # where an operand is scores or their softmax
LAYOUTS: set[str] = set()  # functions that change the layout alone
PLACES: set[str] = set()  # functions that know channels before the places of an image
PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}  # which look at the layout themselves
ENTRYWISE: set[str] = set()  # functions that treat every entry alike, wherever it lies
ASKED = {  # what code asks of any tensor
    *("__get__", "size", "dim", "ndimension", "numel", "stride", "is_floating_point", "is_complex", "is_contiguous"),
    "is_inference",
    *("__len__", "__hash__", "get_device", "element_size", "__repr__"),
}


TURNED = (Tensor.mT.__get__, Tensor.mH.__get__)  # type: ignore[attr-defined]


class Shape(NamedTuple):
    """What counts of a tensor here."""

    shape: torch.Size
    dtype: torch.dtype


class LawTensor(Tensor):
    """Shape, dtype and device of a tensor, and a law in the place of its values."""

    law: Any  # Law or Units; Scores or Pattern where attention is written out
    groups: tuple[int, ...] | None = None  # how channels were first cut in two, (heads, 3) or (3, heads)
    turned: bool = False  # (B, c, n) and not (B, n, c)
    form: "Shape"  # read by name it costs nothing, where .shape of a tensor subclass is a function call

    @staticmethod
    def __new__(cls, shape: torch.Size, dtype: torch.dtype, law: Law | Units | Attention) -> "LawTensor":
        tensor = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=torch.device("cpu"))
        tensor.law, tensor.form = law, Shape(shape, dtype)
        return tensor

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"LawTensor{tuple(self.shape)}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in TURNED:
            return follow(torch.transpose, (args[0], -2, -1), {})
        if getattr(func, "__name__", "") in ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return follow(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        raise no_rule(str(func), args)


class DrawnMatrix(Tensor):
    """A weight or bias that is not built: its shape, and the variance of its entries."""

    variance: float

    @staticmethod
    def of(shape: torch.Size, variance: float) -> "DrawnMatrix":
        made = torch.empty(shape, device="meta").as_subclass(DrawnMatrix)
        made.variance = variance
        return made


def follow(func: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a torch function for arguments of which some are laws.

    Tokens that became a law at the first block have it as_law: whoever kept them, as for a residual sum, means it too.
    """
    if func is F.multi_head_attention_forward:
        return body_of(func)(*args, **kwargs)
    name = getattr(func, "__name__", str(func))
    args, kwargs = tuple(map(_at_hand, args)), {key: _at_hand(value) for key, value in kwargs.items()}
    rule = (SCORE_RULES if name not in LAYOUTS and _is_attention(args) else RULES).get(name)
    if rule is None or kwargs.get("out") is not None:
        raise no_rule(name, args)
    turned = _is_turned(name, args)
    result = rule(func, args, kwargs)
    if turned:
        result.turned = True
    target = args[0] if args else None
    if isinstance(target, LawTensor) and Operation(func, name, None, args, kwargs).in_place:
        target.law = result.law  # whoever holds the tensor has the new numbers
        return target
    return result


def _at_hand(value: Any) -> Any:
    """Tokens as their law; weights of an accelerator on the CPU, where laws are computed, in float64."""
    value = getattr(value, "as_law", value)
    if isinstance(value, LawTensor | DrawnMatrix) or not isinstance(value, Tensor):
        return value
    return value if value.device.type in ("cpu", "meta") else value.cpu()


def _is_attention(args: tuple) -> bool:
    """Whether an operand is scores of attention, or a softmax of them."""
    return any(isinstance(a, LawTensor) and isinstance(a.law, Attention) for a in operands_of(args))


def _is_turned(name: str, args: tuple) -> bool:
    """Whether the result has channels before tokens, as an operand has: functions of axes are not known for those."""
    if name in LAYOUTS or name in PRODUCTS or not any(isinstance(a, LawTensor) and a.turned for a in args):
        return False
    if name in PLACES:
        return True
    x = next(a for a in args if isinstance(a, LawTensor))
    plain = [a for a in args if isinstance(a, Tensor) and not isinstance(a, LawTensor) and a.numel() > 1]
    if name not in ENTRYWISE or not all(by_channel(x, a) is not None for a in plain):
        raise no_rule(name, args)
    return True


def by_channel(x: "LawTensor", y: Tensor) -> Tensor | None:
    """The numbers (c,) of a tensor that has one for each channel of x, None for any other."""
    form = (x.shape[1], *[1] * (x.ndim - 2)) if x.turned else (x.shape[-1],)
    fits = y.numel() == form[0] and tuple(y.shape[-len(form) :]) == form
    return y.detach().double().flatten() if fits else None


class OtherTokensError(ForecastError):
    """Attention works on another number of tokens than the law has: they lie along another axis."""


def no_rule(name: str, args: tuple) -> DepthscopeError:
    given = ", ".join(str(tuple(a.shape)) if isinstance(a, Tensor) else repr(a) for a in args)
    return ForecastError(f"what {name}({given}) does to the law of tokens is not known.")


def law_of(x: Any) -> Law:
    """The law of a LawTensor as a Gaussian one with a mean."""
    if isinstance(x.law, Attention):
        raise no_rule("a step of attention", (x,))
    return x.law.settled() if isinstance(x.law, Units) else x.law


def like(tensors: Any, law: Law | Units | Attention) -> Any:
    """LawTensors of the shapes of `tensors`, one or several."""
    if isinstance(tensors, tuple | list):
        return tuple(like(t, law) for t in tensors)
    return LawTensor(tensors.shape, tensors.dtype, law)


def shapes(func: Any, args: tuple, kwargs: dict) -> Any:
    """What a function returns, without values: it is run on tensors that have a shape only.

    One block asks for the same shapes as the one before, so that an answer is kept.
    """
    call = func, tuple(map(_bare, args)), tuple((name, _bare(value)) for name, value in kwargs.items())
    try:
        return _run_once(*call)
    except TypeError:  # slices have no hash before Python 3.12
        return _run(*call)


def _run(func: Any, args: tuple, kwargs: tuple) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*map(_empty, args), **{name: _empty(value) for name, value in kwargs})


_run_once = lru_cache(maxsize=1024)(_run)


def _bare(value: Any) -> Any:
    if isinstance(value, LawTensor):
        return value.form
    if isinstance(value, Tensor):
        return Shape(value.shape, value.dtype)
    if isinstance(value, tuple | list):
        return tuple(_bare(item) for item in value)
    return value


def _empty(value: Any) -> Any:
    if isinstance(value, Shape):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    return tuple(map(_empty, value)) if type(value) is tuple else value
