"""delta and lambda_2 against numpy's svd of Pi_2 P and scipy's eigenvalues of P, dense and iterative.

That their stated error holds is in test_honest_error.py.
"""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from depthscope.errors import MaskError, ShapeError, StochasticError
from depthscope.metrics import krylov, pattern
from depthscope.metrics.spectrum import DENSE, EXACT, delta, lambda_2
from loops import over

BOTH = [delta, lambda_2]
each_metric = over("f", BOTH)


def delta_by_definition(P):
    n = len(P)
    return np.linalg.svd((np.eye(n) - np.ones((n, n)) / n) @ P, compute_uv=False)[0]


def lambda_2_by_definition(P):
    return np.sort(np.abs(scipy.linalg.eigvals(P)))[-2]


TRUTH = {delta: delta_by_definition, lambda_2: lambda_2_by_definition}


def truth_of(f, P):
    """The definition for every head of P (..., n, m)."""
    heads = [TRUTH[f](p) for p in P.reshape(-1, *P.shape[-2:]).double().numpy()]
    return torch.tensor(np.array(heads)).reshape(P.shape[:-2])


def softmax(*shape, temperature=1.0, causal=False):
    scores = temperature * torch.randn(*shape, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(torch.ones(shape[-2:]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)


def looking_at(tokens):
    """One-hot rows: token i looks at tokens[i] alone."""
    return torch.eye(len(tokens), dtype=torch.float64)[tokens]


def mix(P, weight=0.9):
    return weight * P + (1 - weight) / len(P)


def cycle(n):
    return looking_at(torch.arange(1, n + 1) % n)


def attention_by_definition(q, k, scale=None, bias=None, causal=False):
    """softmax(scale q k^T + bias) of one head, in float64."""
    scores = q.double().numpy() @ k.double().numpy().T * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = np.where(bias, scores, -np.inf) if bias.dtype == bool else scores + bias
    weights = np.exp(scores) * (np.tri(*scores.shape) if causal else 1)
    return weights / weights.sum(-1, keepdims=True)


RTOL = {delta: 1e-3, lambda_2: 1e-2}  # what an estimate may be off by
SIZES = [8, 50, 150]  # exact; small enough for all of P; iterative


def close(f, found, truth, n):
    """Exact up to DENSE tokens, EXACT for lambda_2, an estimate above."""
    exact = n <= (DENSE if f is delta else EXACT)
    torch.testing.assert_close(found, truth, rtol=1e-10 if exact else RTOL[f], atol=1e-12 if exact else 1e-7)


@each_metric
@over("temperature", [0.1, 1.0, 4.0])
@over("n", [2, 3, 8, 32, 33, 36, 50, 120, 150])
def test_is_its_definition_on_softmax_attention(f, n, temperature):
    P = softmax(2, n, n, temperature=temperature)
    assert f(P).shape == (2,)
    close(f, f(P), truth_of(f, P), n)


@each_metric
def test_is_its_definition_on_long_sequences(f):
    P = torch.stack([softmax(300, 300, temperature=t) for t in (0.3, 2.0, 6.0)])
    close(f, f(P), truth_of(f, P), 300)


SPECIAL = {
    "permutation": lambda n: looking_at(torch.randperm(n)),
    "identity": lambda n: torch.eye(n, dtype=torch.float64),
    "all at token 0": lambda n: looking_at(torch.zeros(n, dtype=torch.int64)),
    "all at token 1": lambda n: looking_at(torch.ones(n, dtype=torch.int64)),
    "uniform": lambda n: torch.full((n, n), 1 / n, dtype=torch.float64),
    "doubly stochastic": lambda n: torch.stack([looking_at(torch.randperm(n)) for _ in range(5)]).mean(0),
    "two groups": lambda n: torch.block_diag(softmax(n // 2, n // 2), softmax(n - n // 2, n - n // 2)),
    "complex pair": lambda n: mix(cycle(n)),
    "complex pair in softmax": lambda n: 0.7 * torch.block_diag(cycle(3), cycle(n - 3)) + 0.3 * softmax(n, n),
    "sink": lambda n: 0.9 * looking_at(torch.ones(n, dtype=torch.int64)) + 0.1 * softmax(n, n),
}


@each_metric
@over("case, n", [(case, n) for case in SPECIAL for n in (5, 60, 150) if n < 150 or "complex" not in case])
def test_is_its_definition_on_special_attention(f, case, n):
    P = SPECIAL[case](n)
    close(f, f(P), truth_of(f, P), n)


@over("n", [7, 60])
def test_a_cycle_has_complex_eigenvalues_of_known_modulus(n):
    assert np.abs(scipy.linalg.eigvals(mix(cycle(n)).numpy()).imag).max() > 0.8
    assert float(lambda_2(mix(cycle(n)))) == pytest.approx(0.9, rel=1e-3)
    assert float(delta(mix(cycle(n)))) == pytest.approx(0.9, rel=1e-6)


@over("n", [2, 6, 50])
def test_known_values_of_extreme_attention(n):
    one, other = torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=torch.int64)
    for f in BOTH:
        assert float(f(torch.eye(n))) == pytest.approx(1, rel=1e-6)
        assert float(f(cycle(n))) == pytest.approx(1, rel=1e-3)
        assert float(f(torch.full((n, n), 1 / n, dtype=torch.float64))) == pytest.approx(0, abs=1e-9)
        assert float(f(looking_at(one))) == pytest.approx(0, abs=1e-7)
        assert float(f(looking_at(other))) == pytest.approx(0, abs=1e-7)


@over("n", [2, *SIZES])
@over("causal", [True, None, False])
def test_causal_attention_is_measured_whether_or_not_it_is_said(n, causal):
    P = softmax(2, n, n, temperature=2.0, causal=True)
    truth = truth_of(lambda_2, P)
    torch.testing.assert_close(truth, P.diagonal(0, -2, -1)[:, 1:].amax(-1), rtol=1e-6, atol=0)
    found, residual = lambda_2(P, causal=causal, return_residual=True)
    close(lambda_2, found, truth, n)
    if causal is not False:
        torch.testing.assert_close(found, P.diagonal(0, -2, -1)[:, 1:].amax(-1), rtol=0, atol=0)
        assert (residual == 0).all()
    close(delta, delta(P, causal=causal), truth_of(delta, P), n)


def test_causal_attention_of_padded_sequences_leaves_out_the_first_token_that_counts():
    P = softmax(2, 8, 8, causal=True)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]]).bool()
    for i in range(2):
        part = P[i][mask[i]][:, mask[i]]
        truth = truth_of(lambda_2, part / part.sum(-1, keepdim=True))
        torch.testing.assert_close(lambda_2(P, mask=mask)[i], truth, rtol=1e-9, atol=0)


@over("n, m", [(5, 9), (9, 5), (40, 60), (100, 40)])
def test_delta_of_cross_attention(n, m):
    P = softmax(2, n, m, temperature=2.0)
    close(delta, delta(P), truth_of(delta, P), min(n, m))


@each_metric
@over("n", SIZES)
@over("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes_are_measured_in_float64(f, n, dtype):
    P = softmax(2, n, n, temperature=3.0).to(dtype)
    found = f(P)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, truth_of(f, P), rtol=RTOL[f], atol=1e-3)
    q, k = torch.randn(2, n, 8).to(dtype), torch.randn(2, n, 8).to(dtype)
    from_qk = torch.tensor(np.stack([attention_by_definition(*pair) for pair in zip(q, k, strict=True)]))
    torch.testing.assert_close(f(q=q, k=k), truth_of(f, from_qk), rtol=RTOL[f], atol=1e-6)


OPTIONS = {
    "plain": {},
    "scale": {"scale": 2.0},
    "causal": {"causal": True},
    "bool bias": {"bias": "bool"},
    "float bias": {"bias": "float"},
    "float bias and causal": {"bias": "float", "causal": True},
}


@each_metric
@over("n", SIZES)
@over("case", OPTIONS)
def test_from_q_and_k_it_is_that_of_their_softmax(f, case, n):
    q, k = torch.randn(2, 2, n, 4, dtype=torch.float64), torch.randn(2, 2, n, 4, dtype=torch.float64)
    options = dict(OPTIONS[case])
    if options.get("bias") == "bool":
        options["bias"] = (torch.rand(2, 1, n, n) < 0.7) | torch.eye(n).bool()
    elif options.get("bias") == "float":
        options["bias"] = torch.randn(2, n, n, dtype=torch.float64)
    P = torch.zeros(2, 2, n, n, dtype=torch.float64)
    for i in range(2):
        for h in range(2):
            literal = dict(options)
            if "bias" in literal:
                literal["bias"] = literal["bias"].expand(2, 2, n, n)[i, h].numpy()
            P[i, h] = torch.from_numpy(attention_by_definition(q[i, h], k[i, h], **literal))
    torch.testing.assert_close(f(q=q, k=k, **options), f(P), rtol=1e-8, atol=1e-12)
    close(f, f(q=q, k=k, **options), truth_of(f, P), n)


@each_metric
@over("key_heads", [1, 2])
def test_grouped_key_heads_serve_neighbouring_queries(f, key_heads):
    q, k = torch.randn(2, 4, 9, 3, dtype=torch.float64), torch.randn(2, key_heads, 9, 3, dtype=torch.float64)
    P = [attention_by_definition(q[i, h], k[i, h * key_heads // 4]) for i in range(2) for h in range(4)]
    truth = truth_of(f, torch.tensor(np.stack(P)).reshape(2, 4, 9, 9))
    torch.testing.assert_close(f(q=q, k=k), truth, rtol=1e-10, atol=1e-12)


@each_metric
@over("n", SIZES)
@over("said", ["mask", "mask and bias", "mask with heads"])
def test_padding_of_q_and_k_is_left_out(f, n, said):
    q, k = torch.randn(2, 2, n, 4, dtype=torch.float64), torch.randn(2, 2, n, 4, dtype=torch.float64)
    keep = torch.rand(2, n) < 0.8
    bias = keep[:, None, None, :] if said == "mask and bias" else None
    mask = keep[:, None, :].expand(2, 2, n) if said == "mask with heads" else keep
    found = f(q=q, k=k, bias=bias, mask=mask)
    for i in range(2):
        truth = f(q=q[i][:, keep[i]], k=k[i][:, keep[i]])
        close(f, found[i], truth, n)
        close(f, truth, truth_of(f, (q[i][:, keep[i]] @ k[i][:, keep[i]].mT / 2).softmax(-1)), n)


@each_metric
def test_rows_that_look_at_padding_are_renormalised(f):
    P = softmax(2, 3, 8, 8)
    keep = torch.arange(8).expand(2, 8) < torch.tensor([[8], [5]])
    part = P[1, :, :5, :5] / P[1, :, :5, :5].sum(-1, keepdim=True)
    torch.testing.assert_close(f(P, mask=keep)[1], truth_of(f, part), rtol=1e-10, atol=0)
    torch.testing.assert_close(f(P, mask=keep)[0], truth_of(f, P[0]), rtol=1e-10, atol=0)


@each_metric
@over("n", SIZES)
def test_padding_rows_of_attention_may_be_nan(f, n):
    """A query that sees nothing but padding: its softmax is 0 / 0."""
    P = torch.full((n + 2, n + 2), torch.nan, dtype=torch.float64)
    P[:n] = torch.nn.functional.pad(softmax(n, n), (0, 2))
    close(f, f(P, mask=torch.arange(n + 2) < n), truth_of(f, P[:n, :n]), n)


@each_metric
@over("n, rows", [(20, 1), (50, 7), (150, 31)])  # the last block is smaller than the others
@over("masked", [False, True])
@over("causal", [None, True])
def test_blocks_of_rows_give_what_the_whole_matrix_gives(f, n, rows, masked, causal, monkeypatch):
    q, k = torch.randn(2, 3, n, 4, dtype=torch.float64), torch.randn(2, 3, n, 4, dtype=torch.float64)
    q[..., n // 2, :] = 5 * k[..., n // 2, :]  # the largest diagonal entry is not in the first block
    bias = torch.randn(2, 1, n, n, dtype=torch.float64)
    mask = torch.arange(n).expand(2, n) < torch.tensor([[n], [n - 7]]) if masked else None
    P = (q @ k.mT / 2 + bias).masked_fill(torch.ones(n, n).triu(1).bool() & bool(causal), -torch.inf).softmax(-1)
    whole = torch.cat([f(P[i], mask=None if mask is None else mask[i].expand(3, n)) for i in range(2)])
    monkeypatch.setattr(pattern, "HELD", rows * n)
    torch.testing.assert_close(f(P, mask=mask).flatten(), whole, rtol=1e-8, atol=1e-12)
    found = f(q=q, k=k, bias=bias, causal=causal, mask=mask)
    torch.testing.assert_close(found.flatten(), whole, rtol=1e-8, atol=1e-12)


class Largest(TorchDispatchMode):
    """The largest memory, in bytes, that any tensor made inside holds."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.bytes = max([self.bytes, *sizes])
        return out


@each_metric
@over("case", ["plain", "causal", "key padding", "mask"])
def test_from_q_and_k_no_square_matrix_is_ever_built(f, case, monkeypatch):
    n = 1024
    q, k = torch.randn(1, 2, n, 4), torch.randn(1, 2, n, 4)
    keep = torch.arange(n)[None] < n - 5
    options = {
        "plain": {},
        "causal": {"causal": True},
        "key padding": {"bias": keep[:, None, None]},
        "mask": {"mask": keep},
    }[case]
    square = n * n * 4
    with Largest() as held:
        f(q=q, k=k, **options)
    assert held.bytes >= square  # the recorder sees a square when there is one
    monkeypatch.setattr(pattern, "HELD", 24000)
    with Largest() as blockwise:
        f(q=q, k=k, **options)
    assert 0 < blockwise.bytes < square / 4


@each_metric
def test_a_small_matrix_is_known_to_rounding(f):
    _, error = f(softmax(3, 12, 12), return_residual=True)
    assert (error < 1e-8).all()


@each_metric
@over("temperature", [0.3, 1.0, 4.0])
@over("n", [50, 120, 150])
def test_the_error_is_stated_small_and_holds(f, n, temperature):
    P = softmax(3, n, n, temperature=temperature)
    found, error = f(P, return_residual=True)
    assert (error > 0).all()
    assert (error <= 0.1 * found).all()
    assert ((found - truth_of(f, P)).abs() <= error).all()


@over("dtype", [torch.float32, torch.float64])
@over("case", ["uniform", "all at token 0", "all at token 1"])
@over("n", SIZES)
@each_metric
def test_attention_that_passes_on_no_difference_leaves_no_residual_either(f, n, case, dtype):
    found, residual = f(SPECIAL[case](n).to(dtype), return_residual=True)
    assert found < 1e-3 if f is lambda_2 else found < 1e-5
    assert abs(found) <= residual < 1e-3


def test_beyond_what_powers_can_bound_it_is_not_known_and_says_so():
    found, error = lambda_2(mix(cycle(600)), return_residual=True)
    assert error >= found
    assert abs(found - 0.9) <= error


@each_metric
def test_the_same_attention_always_gives_the_same_number(f):
    P = softmax(50, 50)
    first = f(P)
    torch.randn(7)
    assert torch.equal(f(P), first)


@over("n", [60, 120, 300])
@over("weight", [0.9, 0.99, 0.999])
def test_delta_of_a_strong_attention_sink_in_float32(n, weight):
    P = (weight * looking_at(torch.ones(n, dtype=torch.int64)) + (1 - weight) * softmax(n, n)).float()
    found, residual = delta(P, return_residual=True)
    truth = truth_of(delta, P)
    torch.testing.assert_close(found, truth, rtol=RTOL[delta], atol=0)
    assert abs(found - truth) <= residual + 1e-6 * truth


@over("n", SIZES)
def test_lambda_2_stays_within_one(n):
    order = torch.randperm(n)
    P = [softmax(n, n, temperature=8.0, causal=True)[order][:, order] for _ in range(10)]
    P += [SPECIAL[case](n) for case in ("permutation", "identity", "two groups")]
    assert (lambda_2(torch.stack(P)) <= 1 + 1e-9).all()


@each_metric
@over("n", SIZES)
def test_attention_that_is_not_finite_is_nan_and_spoils_no_other_head(f, n):
    q, k = torch.randn(2, n, 4), torch.randn(2, n, 4)
    q[1, 3] = torch.nan
    found = f(q=q, k=k)
    assert found.isnan().tolist() == [False, True]
    torch.testing.assert_close(found[0], f(q=q[0], k=k[0]), rtol=RTOL[f], atol=0)


@each_metric
def test_what_is_not_attention_is_refused_with_the_reason(f):
    name = f.__name__
    with pytest.raises(StochasticError, match=rf"^{name}: the rows of P must .* off by 0\.5 .* after the softmax"):
        f(torch.full((2, 2), 0.75))
    with pytest.raises(ShapeError, match=rf"^{name}: P must .* got torch.float32 \(1, 1\)"):
        f(torch.ones(1, 1))
    with pytest.raises(ShapeError, match=rf"^{name}: P must .* got torch.int64 \(3, 3\)"):
        f(torch.eye(3).long())
    with pytest.raises(ShapeError, match=rf"^{name}: give P .* or both q and k; got neither"):
        f()
    with pytest.raises(ShapeError, match=rf"^{name}: give P .* or both q and k"):
        f(q=torch.randn(4, 3))
    with pytest.raises(ShapeError, match=rf"^{name}: q and k must .* got \(2, 4, 3\) and \(2, 4, 5\)"):
        f(q=torch.randn(2, 4, 3), k=torch.randn(2, 4, 5))


@each_metric
def test_one_token_in_q_and_k_is_refused(f):
    with pytest.raises(ShapeError, match=rf"^{f.__name__}: .*two tokens|^{f.__name__}: .*n >= 2"):
        f(q=torch.randn(2, 1, 4), k=torch.randn(2, 1, 4))


def test_lambda_2_of_cross_attention_is_refused():
    with pytest.raises(ShapeError, match=r"^lambda_2: P must be square.* got 4 queries and 6 keys\. Only delta"):
        lambda_2(softmax(4, 6))
    with pytest.raises(ShapeError, match=r"^lambda_2: P must be square.* got 4 queries and 6 keys"):
        lambda_2(q=torch.randn(4, 3), k=torch.randn(6, 3))


@each_metric
@over("heads", [(), (3,)])
def test_wrong_masks_are_refused_with_the_reason(f, heads):
    name, P = f.__name__, softmax(2, *heads, 4, 4)
    with pytest.raises(MaskError, match=rf"^{name}: mask must have one entry for each token.* got \(2, 5\)"):
        f(P, mask=torch.ones(2, 5))
    with pytest.raises(MaskError, match=rf"^{name}: .* all padding"):
        f(P, mask=torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]))
    with pytest.raises(MaskError, match=rf"^{name}: every sequence needs two tokens"):
        f(P, mask=torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]]))


def test_a_given_matrix_shows_by_itself_whether_it_is_causal():
    P = softmax(1, 20, 20)
    torch.testing.assert_close(lambda_2(P, causal=True), lambda_2(P))


def test_a_new_direction_is_orthogonal_though_little_of_it_is_new():
    Q = torch.linalg.qr(torch.randn(3, 200, 16))[0].mT
    beside = torch.randn(3, 8, 200)
    beside -= (beside @ Q.mT) @ Q
    new = krylov._next(torch.randn(3, 8, 16) @ Q + 1e-4 * beside, Q)
    assert (new.norm(dim=-1) - 1).abs().max() < 1e-5
    assert (new @ Q.mT).abs().max() < 2e-6  # once is not enough: 1e-3
