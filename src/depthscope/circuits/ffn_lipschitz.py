"""How much the feed-forward network of every block can stretch differences between tokens: from below and from above.

From below: the Jacobian at the tokens, by the power method for the 1-norm (Hager 1984), which needs products with J and
J^T alone. From above: |J| <= c |W_1| |W_2| entry by entry, c the steepest slope of the activation; known for networks
of two matrices with one activation between them and nothing after. Gated networks have no finite constant.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.weights import looked_at
from depthscope.traces.attention import no_modes
from depthscope.traces.look import evaluated
from depthscope.traces.stream import Follow, Passage
from depthscope.traces.untouched import untouched
from depthscope.traces.watch import LINEAR

STEEPEST = {"relu": 1.0, "relu_": 1.0, "gelu": 1.1290, "silu": 1.0999, "tanh": 1.0, "elu": 1.0, "softplus": 1.0}
STEPS = 6  # of the power method; it mostly ends after two

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Lipschitz:
    """lower <= lambda <= upper of one feed-forward network, sqrt(lambda_1 lambda_inf) as |.|_{1,inf} needs it."""

    lower: float
    upper: float


def ffn_lipschitz(
    model: nn.Module, inputs: Any, *, blocks: str | Iterable[str] | None = None
) -> list[Lipschitz | None]:
    """One for each block, in the order in which they run; None where no feed-forward network was seen to join."""
    batch, looked = looked_at(model, inputs, blocks)
    look = _Look(model, looked.spans, lambda block, site, tokens: tokens)
    with torch.inference_mode(False), untouched(model), evaluated(model), torch.no_grad(), look:
        model(*batch.args, **batch.kwargs)
    return look.found


@dataclass(eq=False)
class _Passage(Passage):
    source: Tensor | None = None  # what the first matrix of the network reads
    leaf: Tensor | None = None  # the same, as a variable
    matrices_met: list[Tensor] = field(default_factory=list)  # (in, out)
    hidden: Tensor | None = None  # what came last: of a matrix, or of the activation that read it
    written: int = 0  # how often hidden had been written to
    slope: float = 0.0  # 0 for none
    plain: bool = True  # matrix, activation, matrix, each reading what the one before gave

    def gives(self, hidden: Tensor) -> None:
        self.hidden, self.written = hidden, hidden._version

    def reads(self, tokens: Tensor) -> bool:
        """Whether these are the numbers that came last, and nobody has changed them in place."""
        return _same(tokens, self.hidden) and tokens._version == self.written


class _Look(Follow):
    """Makes the network's input a variable, and differentiates where its branch joins the stream."""

    passage = _Passage

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.found: list[Lipschitz | None] = []

    def _starts(self, span: Any) -> Callable[..., None]:
        start = super()._starts(span)

        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            start(module, args, kwargs)
            self.found.append(None)

        return hook

    def _ends(self, *_: Any) -> None:
        torch.set_grad_enabled(False)
        super()._ends()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        now, name = self.open, getattr(func, "__name__", "")
        if not isinstance(now, _Passage) or now.sums != now.attentions or now.is_parallel:
            return super().__torch_function__(func, types, args, kwargs)
        if name in LINEAR:
            return self._matrix(now, func, types, args, kwargs)
        result = super().__torch_function__(func, types, args, kwargs)
        if name in STEEPEST and now.hidden is not None and args:
            now.plain &= now.reads(args[0]) and not now.slope
            now.gives(result)
            now.slope = _slope(name, args, kwargs or {})
        return result

    def _matrix(self, now: _Passage, func: Any, types: Any, args: tuple, kwargs: dict | None) -> Any:
        at = 1 if func.__name__ == "addmm" else 0
        if now.source is None:
            now.source, now.leaf = args[at], args[at].detach().clone().requires_grad_()
            torch.set_grad_enabled(True)
        first = _same(args[at], now.source)
        now.plain &= first == (not now.matrices_met) and (first or now.reads(args[at]))
        weight = args[at + 1].detach().double()
        now.matrices_met.append(weight if at else weight.mT)
        result = super().__torch_function__(
            func, types, (*args[:at], now.leaf, *args[at + 1 :]) if first else args, kwargs
        )
        now.gives(result)
        return result

    def _join(self, now: Any, func: Any, args: tuple, kwargs: dict, stands: list[bool]) -> Any:
        if now.leaf is not None and self.found[-1] is None and stands.count(True) == 1:
            branch = next(a for a, stands_for in zip(args, stands, strict=False) if not stands_for)
            if isinstance(branch, Tensor) and branch.requires_grad and branch.numel() == now.leaf.numel():
                now.plain &= now.reads(branch)  # a scale or a norm after the matrices would count too
                with no_modes():
                    self.found[-1] = Lipschitz(_from_below(branch, now.leaf), _from_above(now))
        torch.set_grad_enabled(False)
        return super()._join(now, func, args, kwargs, stands)


def _same(one: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors are views of the same numbers, as Conv1D makes them."""
    return other is not None and one.data_ptr() == other.data_ptr() and one.numel() == other.numel()


def _slope(name: str, args: tuple, kwargs: dict) -> float:
    """The steepest slope of an activation; that of elu grows with its alpha."""
    alpha = kwargs.get("alpha", args[1] if len(args) > 1 else 1.0) if name == "elu" else 1.0
    return STEEPEST[name] * max(1.0, abs(alpha))


def _from_below(y: Tensor, x: Tensor) -> float:
    """sqrt of the largest |J|_1 and the largest |J|_inf of all tokens."""
    d = x.shape[-1]
    dual = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, dual, create_graph=True)  # J^T dual, linear in dual

    def transposed(v: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, v.reshape(y.shape), retain_graph=True)[0].reshape(-1, d)

    def forward(v: Tensor) -> Tensor:
        return torch.autograd.grad(pulled, dual, v.reshape(x.shape), retain_graph=True)[0].reshape(-1, d)

    rows = y.numel() // d
    columns, lines = (one_norm(*pair, rows, d, y) for pair in ((forward, transposed), (transposed, forward)))
    return math.sqrt(float(columns.max()) * float(lines.max()))


def one_norm(A: Product, A_T: Product, rows: int, d: int, like: Tensor) -> Tensor:
    """The largest column sum of |A| for each of `rows` matrices (d, d), from below; A and A_T map (rows, d)."""
    best = torch.zeros(rows, dtype=torch.float64, device=like.device)
    signs = torch.ones(d, dtype=like.dtype, device=like.device)
    signs[1::2] = -1
    graded = 1 + torch.arange(d, dtype=like.dtype, device=like.device) / d
    starts = torch.ones_like(signs), signs * graded, signs.sort().values * graded
    for start in starts:  # it climbs from where it starts
        x = (start / start.abs().sum()).expand(rows, d)
        for _ in range(STEPS):
            y = A(x).detach()
            best = torch.maximum(best, y.double().abs().sum(-1))
            z = A_T(torch.where(y < 0, -1.0, 1.0).to(y)).detach()
            new = torch.nn.functional.one_hot(z.abs().argmax(-1), d).to(x)
            if torch.equal(new, x):
                break
            x = new
    return best


def _from_above(now: _Passage) -> float:
    """c sqrt(||W_1| |W_2||_1 ||W_1| |W_2||_inf) for two matrices and one activation; else infinite."""
    if len(now.matrices_met) != 2 or not now.plain or not now.slope:
        return math.inf
    first, second = (W.abs() for W in now.matrices_met)
    columns, rows = (first.sum(0) @ second).max(), (first @ second.sum(1)).max()
    return now.slope * math.sqrt(float(columns) * float(rows))
