"""Every attention formula against its definition written entry by entry, and what a causal mask must promise."""

import math
import warnings

import numpy as np
import pytest
import torch

from depthscope.models import Design, SelfAttention
from depthscope.models.design import shelves
from depthscope.registry import TABLES
from loops import over

shelves()
FORMULAS = TABLES["attention"]
each_formula = over("name", sorted(FORMULAS))
quiet_sinkhorn = pytest.mark.filterwarnings("ignore:sinkhorn attention")


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def attention(name, q, k, causal=False):
    return FORMULAS[name](q, k, causal).softmax(-1)


def dot(q_i, k_j):
    return sum(a * b for a, b in zip(q_i, k_j, strict=True)) / math.sqrt(len(q_i))


def distance(q_i, k_j):
    return sum((a - b) ** 2 for a, b in zip(q_i, k_j, strict=True)) / (2 * math.sqrt(len(q_i)))


ENTRY = {
    "softmax": lambda q_i, k_j: math.exp(dot(q_i, k_j)),
    "uniform": lambda q_i, k_j: 1.0,
    "sigmoid": lambda q_i, k_j: 1 / (1 + math.exp(-dot(q_i, k_j))),
    "gaussian": lambda q_i, k_j: math.exp(-distance(q_i, k_j)),
    "sinkhorn": lambda q_i, k_j: math.exp(dot(q_i, k_j)),
}


def by_definition(name, q, k, allowed=None):
    """P (n, n) entry by entry; q, k (n, d_h), allowed (n, n)."""
    assert name in ENTRY, f"{name} is new: write its formula in ENTRY"
    n = len(q)
    P = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if allowed is None or allowed[i, j]:
                P[i, j] = ENTRY[name](q[i].tolist(), k[j].tolist())
    for _ in range(3000 if name == "sinkhorn" else 0):
        P = P / P.sum(0)
        P = P / P.sum(1, keepdims=True)
    return torch.from_numpy(P / P.sum(1, keepdims=True))


def lower(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def layer(name="softmax", causal=False, dtype=torch.float64, **choices):
    return SelfAttention(Design(1, 12, 3, attention=name, causal=causal, **choices)).to(dtype)


# the formulas


@each_formula
@over("n", [1, 2, 7])
def test_a_formula_is_its_definition(name, n):
    q, k = randn(n, 5), randn(n, 5)
    torch.testing.assert_close(attention(name, q, k), by_definition(name, q, k), rtol=1e-8, atol=1e-8)


@each_formula
def test_a_formula_under_a_causal_mask_is_its_definition(name):
    q, k = randn(6, 5), randn(6, 5)
    truth = torch.eye(6, dtype=q.dtype) if name == "sinkhorn" else by_definition(name, q, k, lower(6))
    torch.testing.assert_close(attention(name, q, k, causal=True), truth)


@each_formula
@over("causal", [False, True])
@over("scale", [0.0, 1.0, 30.0])
def test_rows_are_probabilities_at_any_scale(name, causal, scale):
    q, k = scale * torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 4)
    P = attention(name, q, k, causal)
    assert P.shape == (2, 3, 9, 9)
    assert (P >= 0).all()
    torch.testing.assert_close(P.sum(-1), torch.ones(2, 3, 9))


@each_formula
def test_leading_axes_are_independent(name):
    q, k = randn(2, 3, 6, 4), randn(2, 3, 6, 4)
    P = attention(name, q, k)
    for b in range(2):
        for head in range(3):
            torch.testing.assert_close(P[b, head], attention(name, q[b, head], k[b, head]))


@each_formula
def test_equal_tokens_are_attended_to_uniformly(name):
    q, k = randn(1, 4).expand(6, 4), randn(1, 4).expand(6, 4)
    torch.testing.assert_close(attention(name, q, k), torch.full((6, 6), 1 / 6, dtype=q.dtype))


def test_uniform_does_not_read_queries_and_keys():
    assert attention("uniform", randn(5, 3), randn(5, 3)).eq(1 / 5).all()
    assert attention("uniform", randn(5, 3), randn(5, 3), True)[3].tolist() == [0.25, 0.25, 0.25, 0.25, 0]


def test_gaussian_sees_differences_alone():
    q, k, shift = randn(6, 4), randn(6, 4), 3 * randn(4)
    P = attention("gaussian", q, k)
    torch.testing.assert_close(attention("gaussian", q + shift, k + shift), P)
    assert (attention("gaussian", q, k + shift) - P).abs().max() > 0.1


def test_gaussian_looks_most_at_the_nearest_key():
    q, k = randn(8, 4), randn(8, 4)
    assert torch.equal(attention("gaussian", q, k).argmax(-1), torch.cdist(q, k).argmin(-1))


@over("dtype", [torch.float32, torch.float64])
@over("std", [0.5, 1.0, 2.0])
@over("n", [4, 8, 16, 64])
def test_sinkhorn_is_doubly_stochastic(n, std, dtype):
    q, k = std * torch.randn(40, n, 32, dtype=dtype), torch.randn(40, n, 32, dtype=dtype)  # scores of that std
    P = attention("sinkhorn", q, k)
    torch.testing.assert_close(P.sum(-1), torch.ones(40, n, dtype=dtype), rtol=0, atol=1e-5)
    torch.testing.assert_close(P.sum(-2), torch.ones(40, n, dtype=dtype), rtol=0, atol=1e-4)


@each_formula
def test_the_docstring_starts_with_the_formula(name):
    assert FORMULAS[name].__doc__.splitlines()[0].startswith(("P_ij ~ ", "P = "))


# the mask


@each_formula
@quiet_sinkhorn
def test_a_causal_pattern_is_zero_above_the_diagonal(name):
    P = layer(name, causal=True).pattern(randn(2, 7, 12))
    assert P.shape == (2, 3, 7, 7)
    assert (P.triu(1) == 0).all()
    torch.testing.assert_close(P.sum(-1), torch.ones(2, 3, 7, dtype=P.dtype))


@each_formula
@quiet_sinkhorn
@over("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_later_token_moves_no_earlier_output_by_one_bit(name, dtype):
    attend = layer(name, causal=True, dtype=dtype, output=True, bias=True)
    X = torch.randn(2, 9, 12, dtype=dtype)
    before = attend(X)
    for j in range(9):
        changed = X.clone()
        changed[:, j] = 5 * torch.randn(2, 12, dtype=dtype)
        after = attend(changed)
        assert torch.equal(after[:, :j], before[:, :j])
        assert not torch.equal(after[:, j], before[:, j])


@each_formula
def test_without_a_mask_every_token_moves_every_output(name):
    attend, X = layer(name), randn(1, 5, 12)
    changed = X.clone()
    changed[:, 4] += 1
    assert ((attend(changed) - attend(X)).abs().amax(-1) > 1e-6).all()


def test_sinkhorn_under_a_causal_mask_warns_and_does_not_mix():
    with pytest.warns(UserWarning, match="only doubly stochastic matrix under a causal mask is the identity"):
        attend = layer("sinkhorn", causal=True)
    X = randn(2, 5, 12)
    assert torch.equal(attend.pattern(X), torch.eye(5, dtype=X.dtype).expand(2, 3, 5, 5))
    torch.testing.assert_close(attend(X), attend.W(X))


@each_formula
def test_no_other_choice_warns(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(name)
        layer("softmax", causal=True)


# the layer


@each_formula
@quiet_sinkhorn
@over("causal", [False, True])
@over("front", [(), (2,), (2, 3)])
def test_the_layer_is_the_pattern_times_the_values_head_by_head(name, causal, front):
    """For softmax: scaled_dot_product_attention, which never builds P, gives what P gives."""
    attend, X = layer(name, causal, bias=True, output=True), randn(*front, 6, 12)
    P, values = attend.pattern(X), X @ attend.W.weight.T + attend.W.bias
    heads = [P[..., m, :, :] @ values[..., 4 * m : 4 * m + 4] for m in range(3)]
    truth = torch.cat(heads, -1) @ attend.W_O.weight.T + attend.W_O.bias
    torch.testing.assert_close(attend(X), truth)


@each_formula
def test_each_head_reads_its_own_columns_of_queries_and_keys(name):
    attend, X = layer(name, bias=True), randn(5, 12)
    q, k = (X @ W.weight.T + W.bias for W in (attend.W_q, attend.W_k))
    for m in range(3):
        columns = slice(4 * m, 4 * m + 4)
        truth = by_definition(name, q[:, columns], k[:, columns])
        torch.testing.assert_close(attend.pattern(X)[m], truth, rtol=1e-8, atol=1e-8)


def test_no_output_projection_and_no_bias_by_default():
    assert [name for name, _ in layer().named_parameters()] == ["W_q.weight", "W_k.weight", "W.weight"]


def test_the_text_of_a_layer_names_its_formula():
    assert "attention=gaussian, h=3, causal=True" in repr(layer("gaussian", causal=True))
