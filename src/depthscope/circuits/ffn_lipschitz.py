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

from depthscope.circuits.subject import Subject, subject_of
from depthscope.circuits.wide import wide
from depthscope.traces.events import Join, Passage, StreamListener
from depthscope.traces.operations import Operation
from depthscope.traces.watcher import unwatched

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
    return lipschitz_of(subject_of(model, inputs, blocks))


def lipschitz_of(subject: Subject) -> list[Lipschitz | None]:
    """The same of a model that was surveyed."""
    listener = _Differentiate()
    with torch.inference_mode(False):
        subject.listen(listener)
    return listener.found


@dataclass(eq=False)
class _Network:
    """The feed-forward network of the block that is running, as far as it was seen."""

    source: Tensor | None = None  # what the first matrix of the network reads
    leaf: Tensor | None = None  # the same, as a variable
    matrices: list[Tensor] = field(default_factory=list)  # (in, out)
    hidden: Tensor | None = None  # what came last: of a matrix, or of the activation that read it
    written: int = 0  # how often hidden had been written to
    slope: float = 0.0  # 0 for none
    plain: bool = True  # matrix, activation, matrix, each reading what the one before gave

    def gives(self, hidden: Tensor) -> None:
        self.hidden, self.written = hidden, hidden._version

    def reads(self, tokens: Tensor) -> bool:
        """Whether these are the numbers that came last, and nobody has changed them in place."""
        return _same(tokens, self.hidden) and tokens._version == self.written


class _Differentiate(StreamListener):
    """Makes the network's input a variable, and differentiates where its branch joins the stream."""

    hears_everything = True

    def __init__(self) -> None:
        self.found: list[Lipschitz | None] = []
        self.network = _Network()

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self.found.append(None)
        self.network = _Network()
        return tokens

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        torch.set_grad_enabled(False)

    def operation(self, now: Passage, op: Operation) -> Any:
        network = self.network
        if now.sums != now.attentions or now.is_parallel:
            return op.run()
        if op.name in ("linear", "addmm"):
            return self._matrix(op)
        result = op.run()
        if op.name in STEEPEST and network.hidden is not None and op.args:
            network.plain &= network.reads(op.args[0]) and not network.slope
            network.gives(result)
            network.slope = _slope(op)
        return result

    def _matrix(self, op: Operation) -> Any:
        network, at = self.network, 1 if op.name == "addmm" else 0  # where the tokens are; the weight is next
        tokens, weight = op.args[at], wide(op.args[at + 1])
        if network.source is None:
            network.source, network.leaf = tokens, tokens.detach().clone().requires_grad_()
            torch.set_grad_enabled(True)
        first = _same(tokens, network.source)
        network.plain &= first == (not network.matrices) and (first or network.reads(tokens))
        network.matrices.append(weight if at else weight.mT)
        result = (op.with_args(*op.args[:at], network.leaf) if first else op).run()
        network.gives(result)
        return result

    def join(self, now: Passage, join: Join) -> Any:
        network = self.network
        if network.leaf is not None and self.found[-1] is None and join.stands.count(True) == 1:
            branch = join.branch
            if isinstance(branch, Tensor) and branch.requires_grad and branch.numel() == network.leaf.numel():
                network.plain &= network.reads(branch)  # a scale or a norm after the matrices would count too
                with unwatched():
                    self.found[-1] = Lipschitz(_from_below(branch, network.leaf), _from_above(network))
        torch.set_grad_enabled(False)
        return join.run()


def _same(one: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors are views of the same numbers, as Conv1D makes them."""
    return other is not None and one.data_ptr() == other.data_ptr() and one.numel() == other.numel()


def _slope(op: Operation) -> float:
    """The steepest slope of an activation; that of elu grows with its alpha."""
    alpha = op.kwargs.get("alpha", op.args[1] if len(op.args) > 1 else 1.0) if op.name == "elu" else 1.0
    return STEEPEST[op.name] * max(1.0, abs(alpha))


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
    best = torch.zeros(rows, dtype=torch.float64)
    signs = torch.ones(d, dtype=like.dtype, device=like.device)
    signs[1::2] = -1
    graded = 1 + torch.arange(d, dtype=like.dtype, device=like.device) / d
    starts = torch.ones_like(signs), signs * graded, signs.sort().values * graded
    for start in starts:  # it climbs from where it starts
        x = (start / start.abs().sum()).expand(rows, d)
        for _ in range(STEPS):
            y = A(x).detach()
            best = torch.maximum(best, wide(y).abs().sum(-1))
            z = A_T(torch.where(y < 0, -1.0, 1.0).to(y)).detach()
            new = torch.nn.functional.one_hot(z.abs().argmax(-1), d).to(x)
            if torch.equal(new, x):
                break
            x = new
    return best


def _from_above(network: _Network) -> float:
    """c sqrt(||W_1| |W_2||_1 ||W_1| |W_2||_inf) for two matrices and one activation; else infinite."""
    if len(network.matrices) != 2 or not network.plain or not network.slope:
        return math.inf
    first, second = (W.abs() for W in network.matrices)
    columns, rows = (first.sum(0) @ second).max(), (first @ second.sum(1)).max()
    return network.slope * math.sqrt(float(columns) * float(rows))
