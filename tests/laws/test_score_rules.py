"""Attention that is written out, and pairs of channels: the same laws as the fused function has, or Monte Carlo."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import depthscope as ds
from depthscope.laws.law import Law
from depthscope.laws.tensor import LawTensor, law_of
from depthscope.laws.written_norms import as_norm
from loops import over

B, N, H, D_H = 2, 6, 4, 8
D = H * D_H
GENERATOR = torch.Generator().manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def heads() -> list[LawTensor]:
    """Queries, keys and values, (B, h, n, d_h), out of tokens."""
    x = LawTensor(torch.Size((B, N, D)), torch.float32, Law.of_tokens(randn(B, N, D) + 0.5 * randn(D)))
    return [F.linear(x, W).view(B, N, H, D_H).transpose(1, 2) for W in (randn(D, D) * D**-0.5 for _ in range(3))]


CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
BIAS = torch.zeros(N, N).masked_fill(~CAUSAL, torch.finfo(torch.float32).min)


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(B * H, N, D_H) for x in (q, k, v))
    bias = BIAS.expand(B * H, N, N)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=D_H**-0.5)
    return torch.bmm(scores.softmax(-1), v).view(B, H, N, D_H)


SPELLINGS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "matmul": lambda q, k, v: torch.matmul((torch.matmul(q, k.transpose(2, 3)) / D_H**0.5 + BIAS).softmax(-1), v),
    "operator": lambda q, k, v: F.dropout(F.softmax((q * D_H**-0.5) @ k.mT + BIAS, dim=-1), 0.0, False) @ v,
    "masked_fill": lambda q, k, v: (
        (q @ k.transpose(-1, -2) * D_H**-0.5).masked_fill(~CAUSAL, -torch.inf).softmax(-1, dtype=torch.float32) @ v
    ),
    "where": lambda q, k, v: torch.where(CAUSAL, q @ k.transpose(-1, -2) * D_H**-0.5, -1e30).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "b h i j, b h j d -> b h i d",
        (torch.einsum("b h i d, b h j d -> b h i j", q, k) * D_H**-0.5 + BIAS).softmax(-1),
        v,
    ),
    "bmm": by_bmm,
}


@over("name", SPELLINGS)
def test_attention_that_is_written_out_has_the_law_of_the_fused_function(name: str) -> None:
    q, k, v = heads()
    fused = law_of(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    found = law_of(SPELLINGS[name](q, k, v))
    torch.testing.assert_close(found.overlaps(), fused.overlaps())
    torch.testing.assert_close(found.shared(), fused.shared())


def test_scores_that_are_capped_far_away_are_scores() -> None:
    q, k, v = heads()
    scores = q @ k.mT * D_H**-0.5
    plain = law_of(scores.softmax(-1) @ v).overlaps()
    torch.testing.assert_close(law_of((torch.tanh(scores / 1e3) * 1e3).softmax(-1) @ v).overlaps(), plain)
    near = law_of((torch.tanh(scores / 1e-3) * 1e-3).softmax(-1) @ v).overlaps()  # no score is left: uniform attention
    torch.testing.assert_close(
        near, law_of(v).overlaps().mean((-2, -1), keepdim=True).expand_as(near), atol=1e-3, rtol=0
    )


def test_other_products_of_laws_are_refused() -> None:
    q, k, v = heads()
    for step in (
        lambda: (q @ k.mT).softmax(-2),  # over queries
        lambda: (q @ k.mT) @ v,  # without a softmax
        lambda: (q @ k.mT * randn(1, H, 1, 1)).softmax(-1),
        lambda: k.mT @ v,  # linear attention
        lambda: F.scaled_dot_product_attention(q, k, v, 5 * randn(1, H, N, N)),  # heads that look elsewhere
    ):
        with pytest.raises(ds.errors.ForecastError, match="not known"):
            step()


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu by erf": lambda u: u * 0.5 * (1 + torch.erf(u / 2**0.5)),
    "squared relu": lambda u: torch.square(F.relu(u)),
    "power": lambda u: F.relu(u).pow(2),
    "mish": F.mish,
}


@over("name", FUNCTIONS)
def test_functions_of_one_entry_against_monte_carlo(name: str) -> None:
    f, X = FUNCTIONS[name], F.layer_norm(randn(B, N, D) + 0.5 * randn(D), (D,))
    W = randn(20000, D) * D**-0.5
    Y = f(X.double() @ W.T.double())
    x = LawTensor(torch.Size((B, N, D)), torch.float32, Law.of_tokens(X))
    found = law_of(f(F.linear(x, W)))
    torch.testing.assert_close(found.overlaps(), Y @ Y.mT / Y.shape[-1], rtol=0.05, atol=0.03)


def test_queries_keys_and_values_by_unbind_and_by_index() -> None:
    X = randn(B, N, D)
    W = randn(3 * D, D) * D**-0.5
    x = LawTensor(X.shape, torch.float32, Law.of_tokens(X))
    expected = [law_of(part) for part in F.linear(x, W).chunk(3, -1)]
    split = F.linear(x, W).view(B, N, 3, H, D_H)
    unbound = [law_of(part) for part in split.unbind(2)]
    indexed = [law_of(split[:, :, i]) for i in range(3)]
    last = F.linear(x, W.view(3, H, D_H, D).transpose(0, 1).reshape(3 * D, D)).view(B, N, H, 3, D_H)
    inner = [law_of(last[..., i, :]) for i in range(3)]
    for laws in (unbound, indexed, inner):
        for found, law in zip(laws, expected, strict=True):
            torch.testing.assert_close(found.shared(), law.shared(), atol=1e-6, rtol=1e-5)


def test_pairs_of_channels_that_are_turned_keep_their_sizes() -> None:
    q, _, _ = heads()
    even, odd = q[..., ::2], q[:, :, :, 1::2]
    turned = torch.stack((-odd, even), dim=-1).flatten(-2)
    assert turned.shape == q.shape
    torch.testing.assert_close(law_of(turned).overlaps(), law_of(q).overlaps(), rtol=0.2, atol=0.2)


def test_a_norm_is_known_by_what_it_does() -> None:
    w, b = randn(D), randn(D)
    rms = as_norm(lambda x: F.rms_norm(x, (D,)) * (1 + w), D, torch.float32)
    assert rms is not None and not rms.centred
    torch.testing.assert_close(rms.gain, (1 + w).double(), atol=1e-4, rtol=1e-4)
    layer = as_norm(lambda x: F.layer_norm(x, (D,), w, b), D, torch.float32)
    assert layer is not None and layer.centred
    torch.testing.assert_close(layer.offset, b.double(), atol=1e-4, rtol=1e-4)
    assert as_norm(lambda x: x * w + b, D, torch.float32) is None  # called a norm in MobileBERT
