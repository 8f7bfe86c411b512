"""omega and mu against Yu & Zhang 2023, eq. (10) and (12), head by head with n x n projectors."""

import numpy as np
import pytest
import torch

from depthscope.errors import ShapeError, StochasticError
from depthscope.metrics import pattern
from depthscope.metrics.mixing import mu, mu_of, omega, sampled_mu_of
from depthscope.metrics.pattern import pattern_of
from depthscope.metrics.spectrum import delta
from loops import over


def projectors(n):
    Pi_1 = np.ones((n, n)) / n
    return Pi_1, np.eye(n) - Pi_1


def omega_by_definition(X, P):
    e = np.ones(len(X)) / np.sqrt(len(X))
    return np.linalg.norm(e @ P @ projectors(len(X))[1] @ X) / np.linalg.norm(e @ X)


def mu_by_definition(X, P):
    return [np.linalg.norm(Pi @ P @ X) / np.linalg.norm(Pi @ X) for Pi in projectors(len(X))]


def tokens_and_heads(batch, heads, n=6, d=4, temperature=2.0):
    X = torch.randn(*batch, n, d, dtype=torch.float64) + 0.5
    return X, (temperature * torch.randn(*batch, *heads, n, n, dtype=torch.float64)).softmax(-1)


def both(X, P, mask=None):
    """omega, mu_1, mu_2 in one tensor (..., 3)."""
    return torch.stack([omega(X, P, mask=mask), *mu(X, P, mask=mask)], dim=-1)


def truth_of(X, P):
    return [omega_by_definition(X, P), *mu_by_definition(X, P)]


@over("batch", [(), (2,), (2, 2)])
@over("heads", [(), (1,), (3,)])
def test_omega_is_eq_12_and_mu_is_eq_10(batch, heads):
    X, P = tokens_and_heads(batch, heads)
    found = both(X, P)
    assert found.shape == (*batch, *heads, 3)
    each_head = X.reshape(-1, 1, 6, 4).expand(-1, *(heads or (1,)), 6, 4).reshape(-1, 6, 4).numpy()
    truth = [truth_of(x, p) for x, p in zip(each_head, P.reshape(-1, 6, 6).numpy(), strict=True)]
    np.testing.assert_allclose(found.reshape(-1, 3), truth, rtol=1e-11)


@over("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_a_narrow_dtype_keeps_the_digits_it_has(dtype):
    X, P = tokens_and_heads((), (), n=40)
    np.testing.assert_allclose(both(X, P.to(dtype)), truth_of(X.numpy(), P.numpy()), rtol=3 * torch.finfo(dtype).eps)


def test_the_mask_takes_padding_out_of_tokens_rows_and_columns():
    X, P = tokens_and_heads((2,), (3,))
    keep = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 0]]).bool()
    found = both(X, P, mask=keep)
    for i in range(2):
        part = P[i][:, keep[i]][:, :, keep[i]]
        part = (part / part.sum(-1, keepdim=True)).numpy()
        np.testing.assert_allclose(found[i], [truth_of(X[i, keep[i]].numpy(), p) for p in part], rtol=1e-11)


@over("masked", [False, True])
@over("held", [200, 2 * 400, 4 * 400])  # half a head; 2 or 4 heads, where a sample has 3
def test_blocks_of_rows_give_what_the_whole_matrix_gives(monkeypatch, held, masked):
    X, P = tokens_and_heads((2,), (3,), n=20)
    mask = torch.arange(20).expand(2, 20) < torch.tensor([[20], [13]]) if masked else None
    whole = both(X, P, mask)
    monkeypatch.setattr(pattern, "HELD", held)
    torch.testing.assert_close(both(X, P, mask), whole, rtol=1e-11, atol=0)


def test_bounds_of_eq_11_hold():
    X, P = tokens_and_heads((20,), (3,))
    mu_1, mu_2 = mu(X, P)
    assert (mu_1 >= (1 - omega(X, P)).abs() - 1e-12).all()
    assert (mu_2 <= delta(P) + 1e-12).all()


def test_doubly_stochastic_attention_leaves_the_mean_token():
    X, _ = tokens_and_heads((), ())
    P = torch.stack([torch.eye(6, dtype=torch.float64)[torch.randperm(6)] for _ in range(4)]).mean(0)
    assert float(omega(X, P)) == pytest.approx(0, abs=1e-14)
    assert float(mu(X, P)[0]) == pytest.approx(1, rel=1e-14)


def test_equal_tokens_are_moved_by_exactly_nothing():
    X = torch.randn(2, 1, 4).expand(2, 6, 4) * 0.1
    P = torch.randn(2, 3, 6, 6).softmax(-1)
    mu_1, mu_2 = mu(X, P)
    assert (omega(X, P) == 0).all()
    assert (mu_1 == 1).all()
    assert mu_2.isnan().all()


@over("n, d", [(12, 40), (12, 11), (30, 300)])
@over("dtype, rtol", [(torch.float64, 1e-11), (torch.float32, 2e-6)])
def test_more_channels_than_tokens(n, d, dtype, rtol):
    X, P = tokens_and_heads((), (), n=n, d=d)
    np.testing.assert_allclose(both(X, P.to(dtype)), truth_of(X.numpy(), P.to(dtype).double().numpy()), rtol=rtol)


@over("n, d", [(140, 20), (140, 150), (300, 310)])  # by channels, and by inner products
@over("causal", [False, True])
def test_many_tokens_are_measured_strip_by_strip(n, d, causal):
    X, (q, k) = torch.randn(1, n, d, dtype=torch.float64) + 0.5, torch.randn(2, 1, 2, n, 4, dtype=torch.float64)
    hidden = torch.ones(n, n).triu(1).bool() & causal
    P = (q @ k.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1)
    found = torch.stack(mu_of(pattern_of(None, q=q, k=k, causal=causal, where="test")[0], X), -1)
    np.testing.assert_allclose(found, [mu_by_definition(X[0].numpy(), p) for p in P[0].numpy()], rtol=1e-10)


def test_attention_that_looks_where_tokens_hardly_differ():
    """Rows of P differ only along a direction of tokens with 1e-4 of their size: inner products alone would lose it."""
    torch.manual_seed(0)
    n, d = 16, 64
    U = torch.linalg.qr(torch.cat([torch.ones(n, 1), torch.randn(n, n - 1)], 1).double()).Q[:, 1:]
    sizes = torch.full((n - 1,), 1.0, dtype=torch.float64)
    sizes[0] = 1e-4
    X = (U * sizes) @ torch.linalg.qr(torch.randn(d, n - 1, dtype=torch.float64)).Q.T
    P = (1 / n + 0.02 * torch.randn(n, 1, dtype=torch.float64) * U[:, 0]).float()
    assert (P > 0).all()
    exact = mu_by_definition(X.numpy(), P.double().numpy())[1]
    np.testing.assert_allclose(mu(X, P)[1], exact, rtol=1e-3)


def test_a_sample_of_channels_tells_its_own_error():
    """Estimates from many draws of 16 of 96 channels spread as each of them says."""
    X, P = tokens_and_heads((), (2,), n=24, d=96)
    exact, found, errors = mu(X, P), [], []
    for _ in range(300):
        part, _ = pattern_of(P, where="test")
        (mu_1, mu_2), error = sampled_mu_of(part, X[None], torch.linalg.qr(torch.randn(96, 16).double()).Q)
        torch.testing.assert_close(mu_1, exact[0], rtol=1e-12, atol=0)
        found.append(mu_2)
        errors.append(error)
    found, errors = torch.stack(found), torch.stack(errors)
    torch.testing.assert_close(found.mean(0), exact[1], rtol=0.01, atol=0)
    ratio = found.std(0) / errors.square().mean(0).sqrt()
    assert ((ratio > 0.7) & (ratio < 1.15)).all()  # below one: orthonormal channels are better than independent ones


@over("f", [omega, mu])
@over(
    "X_shape, P_shape",
    [
        ((5, 4), (6, 6)),
        ((5, 4), (3, 5)),  # fewer queries than tokens
        ((2, 5, 4), (3, 5, 5)),
        ((2, 5, 4), (2, 1, 3, 5, 5)),
        ((4, 4, 3), (4, 4)),  # the batch axis is missing, though 4 = 4
    ],
)
def test_attention_that_does_not_fit_the_tokens_is_refused_with_both_shapes(f, X_shape, P_shape):
    with pytest.raises(ShapeError, match=rf"^{f.__name__}: P must be \(\.\.\., n, n\) .* got P \({P_shape[0]}, "):
        f(torch.randn(X_shape), torch.randn(P_shape).softmax(-1))


@over("f", [omega, mu])
def test_rows_that_are_no_probabilities_are_refused(f):
    with pytest.raises(StochasticError, match=rf"^{f.__name__}: the rows of P must .* off by 1 "):
        f(torch.randn(5, 4), 2 * torch.eye(5))
    with pytest.raises(ShapeError, match=rf"^{f.__name__}: X must hold floating point"):
        f(torch.ones(5, 4).long(), torch.eye(5))


def test_mu_of_rows_that_give_a_part_to_a_sink_is_its_definition() -> None:
    """P 1 is not 1 there: what attention makes of the mean token differs between tokens."""
    X, P = (
        torch.randn(1, 16, 8).double() + 2,
        torch.rand(1, 2, 16, 1).double() * torch.randn(1, 2, 16, 16).double().softmax(-1),
    )
    pattern, _ = pattern_of(P, where="test", trusted=True, sink=True)
    centre = torch.eye(16).double() - 1 / 16
    mean = torch.full((16, 16), 1 / 16).double()
    for found, Pi in zip(mu_of(pattern, X), (mean, centre), strict=True):
        truth = (Pi @ P @ X[:, None]).norm(dim=(-2, -1)) / (Pi @ X).norm(dim=(-2, -1))
        torch.testing.assert_close(found, truth.flatten(), rtol=1e-9, atol=0)
