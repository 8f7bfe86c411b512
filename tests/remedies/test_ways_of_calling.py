"""A model that is open in one call and causal in the next: by a number, a word, an attribute, a buffer, a length, a row.

Each remedied call may move the past no further than the plain model does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import depthscope as ds
from depthscope.errors import DepthscopeError
from loops import over

N, D = 12, 16


class Mode(Enum):
    OPEN = 1
    CAUSAL = 2


@dataclass
class Given:
    mask: Tensor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], bias)[:, 0])


class Model(nn.Module):
    """bias(self, x, how): what is added to the scores."""

    def __init__(self, bias: Callable[..., Tensor], between: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.bias, self.between, self.autoregressive = bias, between, False
        self.register_buffer("table", torch.zeros(N, N))

    def forward(self, x: Tensor, how: Any = None) -> Tensor:
        bias = self.bias(self, x, how)
        for layer in self.layers:
            x = self.between(layer(x, bias))
        return x


def closed(n: int, at: float = -1e9, prefix: int = 0) -> Tensor:
    bias = torch.full((n, n), at).triu(1)
    bias[:, :prefix] = 0
    return bias


def by(test: Callable[[Any], Any]) -> Callable[..., Tensor]:
    return lambda model, x, how: closed(x.shape[1]) if bool(test(how)) else torch.zeros(x.shape[1], x.shape[1])


def kinds(model: Model, x: Tensor, how: Tensor) -> Tensor:
    """Tokens of kind 0 are seen by all, as in prefix models that are told by token_type_ids."""
    seen = torch.ones(N, N, dtype=torch.bool).tril() | (how[:, None, None, :] == 0)
    return torch.where(seen, 0.0, -1e9)


def past_moves(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    other = x.clone()
    other[:, -1] += 3 * torch.randn(len(x), D)
    return float((call(x) - call(other))[:, :-1].abs().max())


X = torch.randn(2, N, D, generator=torch.manual_seed(0))
ZEROS, ONES = torch.zeros(2, N, dtype=torch.long), torch.ones(2, N, dtype=torch.long)
WAYS: dict[str, tuple[Callable[..., Tensor], Any, Any]] = {
    "a number": (by(lambda how: how == 1), 0, 1),
    "a tensor of one number": (by(lambda how: how == 1), torch.tensor(0), torch.tensor(1)),
    "an enum": (by(lambda how: how is Mode.CAUSAL), Mode.OPEN, Mode.CAUSAL),
    "a word": (by(lambda how: how == "causal"), "open", "causal"),
    "a dataclass": (lambda model, x, how: how.mask, Given(torch.zeros(N, N)), Given(closed(N))),
    "kinds of tokens": (kinds, ZEROS, ONES),
}


@over("name", list(WAYS))
def test_a_second_way_of_calling_gets_a_form_of_its_own(name: str) -> None:
    bias, first, second = WAYS[name]
    model = Model(bias).eval()
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(1.0)) as fix:
        model(X, first)
        assert past_moves(lambda x: model(x, second), X) < 1e-5 and not fix.leaks


def test_attributes_and_buffers_that_change_are_seen() -> None:
    model = Model(lambda model, x, how: model.table + (closed(N) if model.autoregressive else 0.0)).eval()
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(1.0)):
        model(X)
        model.autoregressive = True
        assert past_moves(model, X) < 1e-5
        model.autoregressive = False
        model(X)
        model.table.copy_(closed(N))
        assert past_moves(model, X) < 1e-5


def test_a_prefix_that_fills_a_short_sequence_shows_in_a_longer_one() -> None:
    model = Model(lambda model, x, how: closed(x.shape[1], prefix=7)).eval()
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(1.0)):
        model(X[:, :7])
        assert past_moves(model, X) < 1e-5


def test_one_row_does_not_speak_for_another() -> None:
    model = Model(kinds).eval()
    rows = torch.stack([ZEROS[0], ONES[0]])
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(1.0)):
        assert past_moves(lambda x: model(x, rows)[1:], X) < 1e-5


@over("value", [-8.0, -10.0, -12.0, -20.0])
def test_a_soft_mask_is_not_opened_by_a_remedy(value: float) -> None:
    torch.manual_seed(1)
    model = Model(lambda model, x, how: closed(N, value)).eval()
    with torch.no_grad():
        plain = past_moves(model, X)
        with ds.fix_(model, ds.remedies.DeEscalate(1.0)):
            assert past_moves(model, X) < 10 * plain + 1e-5


def test_a_scan_calls_nobody_causal_who_takes_the_mean_of_all_tokens() -> None:
    causal = Model(lambda model, x, how: closed(x.shape[1])).eval()
    leaking = Model(causal.bias, between=lambda x: x - x.mean(1, keepdim=True)).eval()
    longer = torch.randn(2, 40, D)
    for x in (X, longer):
        assert ds.scan(causal, x).causal is True
        assert ds.scan(leaking, x).causal is not True


class Again(torch.autograd.Function):
    """A checkpoint of somebody's own: the forward pass runs again in the backward one."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        ctx.run, ctx.weights = run, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        return None, *torch.autograd.grad(y, (x, *ctx.weights), gradient)


class AgainBlock(Block):
    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        weights = (*self.qkv.parameters(), *self.norm.parameters())
        return x + self.out(Again.apply(lambda y: self.attended(y, bias), x, *weights))

    def attended(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], bias)[:, 0]


def test_a_checkpoint_of_ones_own_around_attention_is_refused() -> None:
    model = Model(by(lambda how: False))
    model.layers = nn.ModuleList(AgainBlock() for _ in range(2))
    with ds.fix_(model, ds.remedies.AttnScale(1.0)), pytest.raises(DepthscopeError, match="checkpoint"):
        model(X).sum().backward()
