"""What every op at a site has in common: its facts, how it treats padding, and how it is rebuilt."""

import inspect
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from depthscope.checks import LARGEST
from depthscope.errors import CausalLeakError, MaskError, ShapeError, UnknownNameError, UsageError
from depthscope.interventions.means import Stretch
from depthscope.registry import unknown

NOT_WHOLE = "Pass use_cache=False, or do not shard the sequence."


class Remedy(nn.Module):
    """An op on tokens, X (..., n, d) -> Y (..., n, d), that fix_ puts at a named site of every block.

    A remedy is one file: a shelved class that declares the facts below, an __init__ that keeps every argument as an
    attribute of the same name, and act(X, stretch). tests/remedies/test_ops.py holds it to what it declares.
    Padding (mask False) takes no part in any statistic and leaves as it came. float16 and bfloat16 tokens are worked
    on in float32 and come back in their own dtype.
    """

    at: ClassVar[str]  # the default site: block_in attn_in sa_out sa_sum ffn_in ffn_sum block_out
    source: ClassVar[str]  # paper, year, equation
    off: ClassVar[dict[str, Any]] = {}  # the strength: arguments that make it exactly the identity
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}  # arguments that name a variant
    learns: ClassVar[tuple[str, ...]] = ()  # arguments that learnable=True makes parameters
    causal: ClassVar[dict[str, Any] | None] = None  # the arguments of the causal form, None where there is none
    whole: ClassVar[bool] = False  # whether all tokens must be at hand, as no running sum stands for the others
    learnable: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._start: dict[str, Any] = {}  # where learned arguments started

    @property
    def causal_safe(self) -> bool:
        """Whether no token sees a later one, with this instance's arguments."""
        raise NotImplementedError(f"{type(self).__name__} must declare causal_safe")

    @property
    def is_off(self) -> bool:
        """Whether this instance does nothing, for certain and for good."""
        fixed = bool(self.off) and not self.learnable
        return fixed and all(getattr(self, name) == value for name, value in self.off.items())

    def act(self, X: Tensor, stretch: Stretch) -> Tensor:
        """The formula, on tokens of float32 or wider whose padding is zero. What it gives at padding is dropped."""
        raise NotImplementedError(f"{type(self).__name__} must define act(X, stretch)")

    def forward(self, X: Tensor, mask: Tensor | None = None, *, stretch: Stretch | None = None) -> Tensor:
        """X (..., n, d), mask (..., n) with True where a token counts -> (..., n, d) in the dtype of X.

        stretch takes the place of mask where X is a part of a sequence.
        """
        if self.is_off:
            return X
        stretch = stretch or Stretch(mask)
        mask, name = stretch.mask, type(self).__name__
        if (stretch.past or stretch.group) and self.whole:
            raise UsageError(f"{name}: all tokens of a sequence must be at hand; got a part of it. {NOT_WHOLE}")
        if not X.is_floating_point() or X.ndim < 2:
            raise ShapeError(
                f"{name}: X must hold floating point tokens of shape (..., n, d); got {X.dtype} {tuple(X.shape)}. "
                "Give the embedded tokens."
            )
        wide = X.float() if X.dtype in (torch.float16, torch.bfloat16) else X
        if mask is None:
            return self.act(wide, stretch).to(X.dtype)
        if mask.shape != X.shape[:-1]:
            raise MaskError(
                f"{name}: mask must have one entry for each token, shape {tuple(X.shape[:-1])}; "
                f"got {tuple(mask.shape)}. Give 1 for a token and 0 for padding."
            )
        stretch.mask = mask > 0.5 if mask.is_floating_point() else mask.bool()
        tokens = stretch.mask.unsqueeze(-1)  # (..., n, 1)
        Y = self.act(wide.masked_fill(~tokens, 0.0), stretch)  # zeroed, not weighted: padding may hold NaN
        return torch.where(tokens, Y.to(X.dtype), X)

    def causal_form(self) -> Self:
        """The remedy of the same strength that shows no token its future; itself when it already does not.

        It has the same parameters, not copies: an optimizer may hold them.
        """
        if self.causal_safe:
            return self
        if self.causal is None:
            raise CausalLeakError(
                f"{type(self).__name__}: a causal model needs a form that uses earlier tokens only; it has none, "
                f"because {self.why_not_causal()}. Use DeEscalate(form='sink')."
            )
        new = type(self)(**self.settings() | self.causal)
        for name, parameter in self.named_parameters():
            setattr(new, name, parameter)
        return new.train(self.training)

    def why_not_causal(self) -> str:
        """The reason there is no causal form, for the error."""
        return "every output depends on all tokens"

    def settings(self) -> dict[str, Any]:
        """The arguments that build this remedy again; what was learned since then is in the state dict."""
        names = inspect.signature(type(self)).parameters
        return {name: self._start.get(name, getattr(self, name)) for name in names}

    def extra_repr(self) -> str:
        shown = []
        for name, argument in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if isinstance(value, Tensor):  # a learned strength as it is now, the mean over channels
                value = float(value.detach().double().mean())
            if name in self.off or value != argument.default:
                shown.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
        return ", ".join(shown)

    def _strength(self, argument: str, value: float, *shape: int) -> float | Tensor:
        """A number, or with learnable=True a parameter of that shape which starts at it."""
        if not self.learnable:
            return float(value)
        self._start[argument] = float(value)
        return nn.Parameter(torch.full(shape, float(value)))

    def _choose(self, argument: str, name: str) -> str:
        """The name of a variant, or an error that offers the nearest."""
        if name not in self.choices[argument]:
            where = type(self).__name__
            raise UnknownNameError(f"{where}: " + unknown(argument, name, self.choices[argument]))
        return name

    def _count(self, argument: str, value: int) -> int:
        """A whole number, 1 or more."""
        where = type(self).__name__
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{where}: {argument} must be a whole number, 1 or more; got {value!r}.")
        if value > LARGEST:
            raise UsageError(f"{where}: {argument} must be at most {LARGEST:,}; got {value}.")
        return value

    def _within(self, argument: str, value: float, low: float, high: float, hint: str) -> float:
        """A number inside [low, high], or an error that says what the ends mean."""
        if not isinstance(value, int | float) or not low <= value <= high:  # NaN too
            where = type(self).__name__
            raise UsageError(f"{where}: {argument} must lie in [{low:g}, {high:g}]; got {value!r}. {hint}")
        return float(value)
