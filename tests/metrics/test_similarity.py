"""t_sim, t_div and t_cos against Yu & Zhang 2023, Definition 1.1 and eq. (1), with n x n projectors and loops."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from depthscope.errors import MaskError, ShapeError
from depthscope.metrics import chunks
from depthscope.metrics.similarity import t_cos, t_div, t_sim
from loops import over


def t_sim_by_definition(X):
    n = len(X)
    Pi_1 = np.ones((n, n)) / n
    return np.linalg.norm(Pi_1 @ X) ** 2 / np.linalg.norm(X) ** 2


def t_div_by_definition(X):
    n = len(X)
    Pi_2 = np.eye(n) - np.ones((n, n)) / n
    return np.linalg.norm(Pi_2 @ X) ** 2 / np.linalg.norm(X) ** 2


def t_cos_by_definition(X):
    n, total = len(X), 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                sizes = np.linalg.norm(X[i]) * np.linalg.norm(X[j])
                total += X[i] @ X[j] / sizes if sizes > 0 else 0.0
    return total / (n * (n - 1))


def t_div_in_fractions(X):
    rows = [[Fraction(float(x)) for x in row] for row in X]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    centred = sum((x - m) ** 2 for row in rows for x, m in zip(row, mean, strict=True))
    return float(centred / sum(x**2 for row in rows for x in row))


DEFINITIONS = {t_sim: t_sim_by_definition, t_div: t_div_by_definition, t_cos: t_cos_by_definition}
each_metric = over("f", DEFINITIONS)


@each_metric
@over("shape", [(2, 1), (7, 5), (5, 9), (3, 6, 4), (2, 3, 6, 4)])
@over("offset", [0.0, 3.0])
def test_is_its_definition(f, shape, offset):
    X = torch.randn(shape, dtype=torch.float64) + offset
    found = f(X)
    assert found.shape == shape[:-2]
    truth = [DEFINITIONS[f](x) for x in X.reshape(-1, *shape[-2:]).numpy()]
    np.testing.assert_allclose(found.reshape(-1), truth, rtol=1e-11, atol=1e-13)


def test_t_cos_counts_a_zero_token_as_orthogonal_to_all_others():
    X = torch.randn(6, 4, dtype=torch.float64)
    X[2] = 0
    np.testing.assert_allclose(t_cos(X), t_cos_by_definition(X.numpy()), rtol=1e-12)


@over("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@over("n", [2, 3, 7, 100])
def test_equal_tokens_have_exactly_no_diversity(n, dtype):
    X = torch.randn(2, 1, 33).to(dtype).expand(2, n, 33) * 0.1
    padded = torch.cat([torch.randn(2, 1, 33).to(dtype), X], dim=1)
    mask = (torch.arange(n + 1) > 0).expand(2, -1)
    assert (t_div(X) == 0).all()
    assert (t_sim(X) == 1).all()
    assert (t_div(padded, mask=mask) == 0).all()
    assert (t_sim(padded, mask=mask) == 1).all()


@over("size", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_t_div_of_float32_tokens_keeps_its_digits_near_collapse(size):
    X = torch.rand(5) + 0.5 + size * torch.randn(9, 5)
    truth = t_div_in_fractions(X)
    assert truth == pytest.approx(size**2, rel=0.9)  # down to about 1e-12: the case is what it says
    assert float(t_div(X)) == pytest.approx(truth, rel=1e-3)
    assert float(t_div(X.double())) == pytest.approx(truth, rel=1e-3)


def test_one_unit_in_the_last_place_of_float32_is_seen():
    X = torch.full((4, 3), 0.7)
    X[1, 2] = torch.nextafter(X[1, 2], torch.tensor(1.0))
    truth = t_div_in_fractions(X)
    assert 0 < truth < 1e-14
    assert float(t_div(X)) == pytest.approx(truth, rel=1e-3)


@each_metric
@over("dtype", [torch.bool, torch.int64, torch.float32])
def test_a_mask_leaves_the_tokens_it_keeps_wherever_they_stand(f, dtype):
    X = torch.randn(2, 7, 4, dtype=torch.float64) + 1
    keep = torch.tensor([[0, 1, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0]]).bool()
    truth = [DEFINITIONS[f](X[i, keep[i]].numpy()) for i in range(2)]
    np.testing.assert_allclose(f(X, mask=keep.to(dtype)), truth, rtol=1e-12)


@each_metric
def test_the_size_of_a_chunk_does_not_matter(f, monkeypatch):
    X = torch.randn(5, 6, 4) + 1
    mask = torch.rand(5, 6) > 0.2
    whole, masked = f(X), f(X, mask=mask)
    monkeypatch.setattr(chunks, "CHUNK", 2 * 6 * 4)
    assert torch.equal(f(X), whole)
    assert torch.equal(f(X, mask=mask), masked)


@each_metric
def test_one_nan_spoils_its_own_sample_only(f):
    X = torch.randn(3, 6, 4)
    X[1, 2, 3] = torch.nan
    assert f(X).isnan().tolist() == [False, True, False]


@each_metric
def test_wrong_tokens_are_refused_with_the_reason(f):
    name = f.__name__
    with pytest.raises(ShapeError, match=rf"^{name}: X must .* n >= 2 tokens; got \(1, 5\)\. Similarity needs two"):
        f(torch.randn(1, 5))
    with pytest.raises(ShapeError, match=rf"^{name}: X must .* got \(5,\)\. Add a token axis"):
        f(torch.randn(5))
    with pytest.raises(ShapeError, match=rf"^{name}: X must hold floating point numbers; got torch.int64\."):
        f(torch.ones(4, 5, dtype=torch.int64))


@each_metric
def test_wrong_masks_are_refused_with_the_reason(f):
    name, X = f.__name__, torch.randn(2, 4, 3)
    with pytest.raises(MaskError, match=rf"^{name}: mask must .* shape \(2, 4\); got \(4,\)"):
        f(X, mask=torch.ones(4))
    with pytest.raises(MaskError, match=rf"^{name}: every sequence .* sequence 1 is all padding"):
        f(X, mask=torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]))
    with pytest.raises(MaskError, match=rf"^{name}: every sequence needs two tokens .* sequence 0 has one"):
        f(X, mask=torch.tensor([[0, 0, 1, 0], [1, 1, 1, 1]]))
