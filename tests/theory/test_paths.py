"""The sum over paths against the network itself, computed head by head as its definition says."""

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from depthscope.errors import ShapeError, UsageError
from depthscope.theory.path_samples import draw_paths, sampled_paths
from depthscope.theory.paths import along_path, attend, by_length, every_path, path_matrices
from loops import over

# heads and blocks; all but (3, 3) and (1, 5) have 4096 paths
SIZES = [(8, 4), (2, 12), (4, 6), (3, 3), (64, 2), (1, 5)]
Network = tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]


def network(H: int, L: int, n: int = 5, d: int = 6, d_v: int = 2, batch: tuple[int, ...] = (2,)) -> Network:
    chance = torch.Generator().manual_seed(H + 100 * L)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=chance, dtype=torch.float64)

    P = [draw(*batch, H, n, n).softmax(-1) for _ in range(L)]
    W_V = [draw(H, d, d_v) / d**0.5 for _ in range(L)]
    W_O = [draw(H, d_v, d) / (H * d_v) ** 0.5 for _ in range(L)]
    return draw(*batch, n, d), P, W_V, W_O


def output_of(X: Tensor, P: list, W_V: list, W_O: list, *, skips: bool) -> Tensor:
    """The network by definition: block after block, head after head, the d x d matrix of each built."""
    for block in zip(P, W_V, W_O, strict=True):
        heads = [P_h @ X @ (V_h @ O_h) for P_h, V_h, O_h in zip(block[0].unbind(-3), *block[1:], strict=True)]
        X = (X if skips else 0) + torch.stack(heads).sum(0)
    return X


def off(A: Tensor, B: Tensor) -> float:
    return float((A - B).norm() / B.norm())


def test_attend_is_the_sum_over_heads() -> None:
    X, P, W_V, W_O = network(3, 1)
    assert off(attend(P[0], W_V[0], W_O[0], X), output_of(X, P, W_V, W_O, skips=False)) < 1e-14


@over("heads, blocks", SIZES, every=3)
def test_all_paths_are_the_network_without_skips(heads: int, blocks: int) -> None:
    X, *weights = network(heads, blocks)
    paths = list(every_path([heads] * blocks, skips=False))
    assert len(paths) == len(set(paths)) == heads**blocks
    total = torch.stack([along_path(path, X, *weights) for path in paths]).sum(0)
    true = output_of(X, *weights, skips=False)
    assert off(total, true) < 1e-10
    lengths = by_length(X, *weights, skips=False)
    assert not lengths[:-1].any() and off(lengths[-1], true) < 1e-10


# a small one; (1 + H)^L = 4096 four times, H^L = 4096 twice
@over("heads, blocks", [(2, 5), (7, 4)], long=[(1, 12), (3, 6), (63, 2), (8, 4), (64, 2)])
def test_all_paths_are_the_network_with_skips_and_the_program_equals_the_list_at_every_length(
    heads: int, blocks: int
) -> None:
    X, *weights = network(heads, blocks)
    listed = torch.zeros(blocks + 1, *X.shape, dtype=torch.float64)
    counts = Counter()
    for path in every_path([heads] * blocks, limit=(1 + heads) ** blocks):
        length = sum(h is not None for h in path)
        counts[length] += 1
        listed[length] += along_path(path, X, *weights)
    assert [counts[k] for k in range(blocks + 1)] == [math.comb(blocks, k) * heads**k for k in range(blocks + 1)]
    true = output_of(X, *weights, skips=True)
    assert off(listed.sum(0), true) < 1e-10
    exact = by_length(X, *weights)
    assert off(exact.sum(0), true) < 1e-10
    assert max(off(a, b) for a, b in zip(exact, listed, strict=True)) < 1e-10


@over("heads, blocks", SIZES)
def test_all_lengths_are_the_network_with_skips(heads: int, blocks: int) -> None:
    X, *weights = network(heads, blocks)
    assert off(by_length(X, *weights).sum(0), output_of(X, *weights, skips=True)) < 1e-10


def test_path_matrices_give_the_term_and_p_path_is_stochastic() -> None:
    X, *weights = network(3, 4)
    for path in [(0, 1, 2, 0), (None, 2, None, 1), (None,) * 4]:
        P_path, W_path = path_matrices(path, *weights)
        assert off(P_path @ X @ W_path, along_path(path, X, *weights)) < 1e-13
        torch.testing.assert_close(P_path.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    P, W_V, W_O = weights
    P_path, W_path = path_matrices((2, 1, 0, 2), *weights)
    by_hand = P[3][:, 2] @ P[2][:, 0] @ P[1][:, 1] @ P[0][:, 2]
    assert off(P_path, by_hand) < 1e-13
    W = [V_l @ O_l for V_l, O_l in zip(W_V, W_O, strict=True)]
    assert off(W_path, W[0][2] @ W[1][1] @ W[2][0] @ W[3][2]) < 1e-13


def test_float32_stays_float32_and_batches_are_optional() -> None:
    X, *weights = network(2, 3, batch=())
    single = by_length(X.float(), *([w.float() for w in kind] for kind in weights))
    assert single.dtype == torch.float32 and single.shape == (4, 5, 6)
    assert off(single.double(), by_length(X, *weights)) < 1e-5


def test_too_many_paths_are_refused_before_the_first() -> None:
    with pytest.raises(UsageError, match=r"at most 4096 paths to list; 12 blocks have 10\^13.4. Use by_length"):
        every_path([12] * 12)
    assert len(list(every_path([4] * 5, limit=5000))) == 3125


def test_drawn_paths_have_their_length_and_are_uniform() -> None:
    heads, length, draws = [2, 3, 1], 2, 6000
    drawn = Counter(draw_paths(heads, length, draws, torch.Generator().manual_seed(0)))
    every = [p for p in every_path(heads) if sum(h is not None for h in p) == length]
    assert set(drawn) == set(every) and len(every) == 2 * 3 + 2 * 1 + 3 * 1
    expected = draws / len(every)
    chi_square = sum((drawn[p] - expected) ** 2 / expected for p in every)
    assert chi_square < 29.6  # the 0.1% quantile of 10 degrees of freedom


@over("length", range(5))
def test_the_sampled_mean_is_within_its_error_of_the_exact_one(length: int) -> None:
    X, *weights = network(3, 4)
    found = sampled_paths(X, *weights, length=length, paths=400, generator=torch.Generator().manual_seed(length))
    exact = by_length(X, *weights)[length]
    assert 10**found.log10_count == pytest.approx(math.comb(4, length) * 3**length)
    if length == 0:  # there is one path, so there is no error
        torch.testing.assert_close(found.mean, X)
        assert float(found.standard_error.abs().max()) < 1e-15
        return
    z = (found.total - exact) / (found.standard_error * 10**found.log10_count)
    assert float(z.square().mean()) < 2 and float(z.abs().max()) < 5


def test_the_standard_error_is_that_of_the_drawn_terms() -> None:
    X, *weights = network(3, 4)
    found = sampled_paths(X, *weights, length=2, paths=50, generator=torch.Generator().manual_seed(7))
    paths = draw_paths([3] * 4, 2, 50, torch.Generator().manual_seed(7))
    terms = torch.stack([along_path(path, X, *weights) for path in paths])
    torch.testing.assert_close(found.mean, terms.mean(0))
    torch.testing.assert_close(found.standard_error, terms.std(0) / 50**0.5)


def test_long_networks_are_drawn_too() -> None:
    (path,) = draw_paths([96] * 96, 48, 1, torch.Generator().manual_seed(0))
    assert len(path) == 96 and sum(h is not None for h in path) == 48
    assert all(len(set(itertools.compress(p, p))) == 0 for p in draw_paths([3] * 5, 0, 2))


def test_wrong_shapes_and_paths_are_refused() -> None:
    X, P, W_V, W_O = network(3, 2)
    with pytest.raises(ShapeError, match=r"W_O \(H, d_v, d\).* got \(2, 3, 5, 5\), \(3, 6, 2\) and \(3, 6, 2\)"):
        attend(P[0], W_V[0], W_V[0], X)
    with pytest.raises(ShapeError, match="Heads precede tokens"):
        attend(P[0].transpose(-3, -1), W_V[0], W_O[0], X)
    with pytest.raises(UsageError, match="one tensor for each block; got 2, 1 and 2"):
        by_length(X, P, W_V[:1], W_O)
    with pytest.raises(UsageError, match=r"or None for its skip; got \(0, 3\) for 2 blocks of 3 heads"):
        along_path((0, 3), X, P, W_V, W_O)
    with pytest.raises(UsageError, match="got paths=1"):
        sampled_paths(X, P, W_V, W_O, length=1, paths=1)
    with pytest.raises(UsageError, match="between 0 and the 2 blocks; got 3"):
        sampled_paths(X, P, W_V, W_O, length=3)
