"""Many layers in normalised form, against the same layers simply run and against dense matrices."""

import itertools
import math

import pytest
import torch
from kinds import attention

from depthscope.errors import ShapeError, StochasticError, UsageError
from depthscope.metrics import hfc_lfc, stable_rank
from depthscope.theory import asymptotics, layer_spectrum
from loops import over

F = torch.float64


def plain_layers(X, As, Hs, residual=1.0):
    """X_0, X_1, ...: the definition, with a list of heads for every layer."""
    states = [X]
    for A, H in zip(As, Hs, strict=True):
        states.append(residual * states[-1] + sum(a @ states[-1] @ h for a, h in zip(A, H, strict=True)))
    return torch.stack(states)


def norms(X):
    mean = X.mean(-2, keepdim=True)
    return mean.expand_as(X).norm(dim=(-2, -1)).log(), (X - mean).norm(dim=(-2, -1)).log()


@over("residual", [True, False])
@over("heads", [1, 3])
@over("changing", ["nothing", "A", "H", "both"])
def test_it_is_the_layers_one_by_one(residual, heads, changing):
    depth, n, d = 12, 6, 4
    X = torch.randn(n, d, dtype=F)
    As = [attention("softmax", heads, n) for _ in range(depth)]
    Hs = [torch.randn(heads, d, d, dtype=F) for _ in range(depth)]
    As = As if changing in ("A", "both") else [As[0]] * depth
    Hs = Hs if changing in ("H", "both") else [Hs[0]] * depth
    states = plain_layers(X, As, Hs, residual)
    found = asymptotics(
        X,
        iter(As) if changing in ("A", "both") else As[0],
        Hs if changing in ("H", "both") else Hs[0],
        depths=(0, 3, depth),
        residual=residual,
    )
    common, rest = norms(states)
    torch.testing.assert_close(found.log_common, common, rtol=1e-9, atol=1e-6)
    torch.testing.assert_close(found.log_rest, rest, rtol=1e-9, atol=1e-6)
    at = states[[0, 3, depth]]
    torch.testing.assert_close(found.hfc_lfc, hfc_lfc(at), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.stable_rank, stable_rank(at), rtol=1e-9, atol=0)
    torch.testing.assert_close(found.angle.tan(), found.hfc_lfc)
    for mark, depth_ in [(1, 3), (2, depth)]:
        one, other = (states[k] / states[k].norm() for k in (depth_ - 1, depth_))
        turn = math.acos(min(1.0, float((one * other).sum().abs())))
        assert float(found.turn[mark]) == pytest.approx(turn, abs=1e-6)
    y = X.mean(0)
    for H in Hs:
        y = residual * y + y @ H.sum(0)
    assert float(found.log_constant[-1]) == pytest.approx(float(y.norm().log()), abs=1e-9)


def test_a_batch_is_its_items_and_one_matrix_serves_all():
    X, A, H = torch.randn(2, 3, 5, 4, dtype=F), attention("softmax", 2, 3, 5), torch.randn(2, 3, 4, 4, dtype=F)
    whole = asymptotics(X, A, H, depths=(7,))
    assert whole.hfc_lfc.shape == (2, 3, 1) and whole.log_rest.shape == (2, 3, 8)
    item = asymptotics(X[1, 2], A[1, 2], H[1, 2], depths=(7,))
    torch.testing.assert_close(whole.hfc_lfc[1, 2], item.hfc_lfc)
    shared = asymptotics(X, A[0, 0], H[0, 0], depths=(7,))
    torch.testing.assert_close(shared.turn[1, 2], asymptotics(X[1, 2], A[0, 0], H[0, 0], depths=(7,)).turn)


def test_exponents_of_many_heads_are_those_of_the_dense_operator():
    n, d, heads = 5, 3, 2
    As, Hs = attention("softmax", 10, heads, n), 0.5 * torch.randn(10, heads, d, d, dtype=F)
    found = asymptotics(torch.randn(10, n, d, dtype=F), As, Hs, depths=(3000,)).exponents
    Pi_2 = torch.eye(n, dtype=F) - 1 / n
    for case, (A, H) in enumerate(zip(As, Hs, strict=True)):
        dense = sum(torch.kron(Pi_2 @ a @ Pi_2, h.mT.contiguous()) for a, h in zip(A, H, strict=True))
        dense = torch.kron(Pi_2, torch.eye(d, dtype=F)) + dense
        rest = torch.linalg.eigvals(dense).abs().max().log()
        constant = torch.linalg.eigvals(torch.eye(d, dtype=F) + H.sum(0)).abs().max().log()
        assert [float(x[case]) for x in found] == pytest.approx([float(constant), float(rest)], abs=3e-3)


def test_thousands_of_layers_neither_overflow_nor_lose_digits():
    a, h = torch.tensor([1.0, 0.5, 0.2], dtype=F), torch.tensor([6.0, 1.0], dtype=F)
    Q = torch.linalg.qr(torch.cat([torch.ones(3, 1, dtype=F), torch.randn(3, 2, dtype=F)], 1)).Q
    A = Q @ a.diag() @ Q.mT
    A = 0.999 * torch.full((3, 3), 1 / 3, dtype=F) + 0.001 * A  # positive; eigenvalues 1, 5e-4, 2e-4
    theory = layer_spectrum(h, torch.linalg.eigvals(A))
    found = asymptotics(torch.randn(3, 2, dtype=F), A, h.diag(), depths=(48, 5000))
    assert float(found.log_common[-1]) > 9000  # e^9000 is no float
    logs = found.log_hfc_lfc
    assert float(logs[-1]) < -9000 and float(found.hfc_lfc[-1]) == 0
    assert float(logs[4000] - logs[5000]) == pytest.approx(1000 * float(theory.margin), rel=1e-9)
    assert [float(x) for x in found.exponents] == pytest.approx([float(theory.constant), float(theory.rest)], abs=1e-8)
    assert float(found.turn[-1]) < 1e-12 and float(found.rank_one_distance[-1]) < 1e-12


def test_changing_attention_cannot_help_positive_weights_nor_harm_negative_ones():
    """H fixed: lambda_H > 0 smooths, lambda_H in [-1, 0) does not, whatever A comes."""
    for sign in (1, -1):
        h = sign * torch.rand(30, 4, dtype=F).clamp(min=0.05)
        changing = (attention("sharp", 30, 6) for _ in itertools.count())
        X = torch.randn(30, 6, 4, dtype=F)
        found = asymptotics(X, changing, torch.diag_embed(h), depths=(750,))
        assert bool(((found.log_hfc_lfc[:, -1] < -10) == (sign > 0)).all())
        constant, rest = found.exponents
        torch.testing.assert_close(constant, (1 + h).abs().amax(-1).log(), rtol=0, atol=1e-3)
        assert bool(((constant > rest) == (sign > 0)).all())


def test_two_H_in_turn_smooth_although_all_their_eigenvalues_are_minus_one_half():
    A = 0.5 * torch.eye(4, dtype=F) + 0.5 / 4
    up = torch.tensor([[-0.5, 4.0], [0.0, -0.5]], dtype=F)
    found = asymptotics(torch.randn(4, 2, dtype=F), A, itertools.cycle([up, up.mT]), depths=(200,))
    constant, rest = found.exponents
    two = torch.linalg.eigvals((torch.eye(2) + up) @ (torch.eye(2) + up.mT)).abs().max().log() / 2
    assert float(constant) == pytest.approx(float(two), abs=1e-9)
    assert float(constant) == pytest.approx(math.log(4.06), abs=1e-3)
    assert float(rest) < float(constant) - 0.4
    assert float(found.log_hfc_lfc[-1]) < -80


def test_start_along_an_eigenvector_of_attention_stays_there():
    """So that no layer is a low-pass filter for all X: this one smooths, and 12 layers leave hfc/lfc as it was."""
    A = attention("causal", 6)
    a, V = torch.linalg.eig(A)
    v = V.real[:, a.real.argsort()[-2]]
    found = asymptotics(torch.outer(v, torch.randn(3, dtype=F)), A, 0.5 * torch.eye(3, dtype=F), depths=(12,))
    assert layer_spectrum([0.5], a).verdict == "smooth"
    torch.testing.assert_close(found.log_hfc_lfc[-1], found.log_hfc_lfc[0], rtol=0, atol=1e-9)


def test_states_without_a_part():
    A, H = attention("softmax", 4), torch.eye(2, dtype=F)
    equal = asymptotics(torch.ones(4, 2), A, H, depths=(5,))
    assert float(equal.hfc_lfc) == 0 and float(equal.rank_one_distance) < 1e-15
    erased = asymptotics(torch.randn(4, 2), torch.full((4, 4), 0.25), H, depths=(5,), residual=False)
    assert float(erased.log_rest[-1]) < -30 and float(erased.log_common[-1]) > -5
    vanished = asymptotics(torch.randn(4, 2), A, 0 * H, depths=(2,), residual=False)
    assert math.isnan(float(vanished.hfc_lfc)) and math.isnan(float(vanished.rank_one_distance))
    balanced = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    centred = asymptotics(balanced, torch.full((2, 2), 0.5), -0.5 * torch.eye(2), depths=(3,))
    assert float(centred.hfc_lfc) == math.inf and float(centred.angle) == pytest.approx(math.pi / 2)


def test_inputs_are_left_alone_and_gradients_do_not_follow():
    X, A, H = torch.randn(4, 3, requires_grad=True), attention("softmax", 4).float(), torch.randn(3, 3)
    before = [M.detach().clone() for M in (X, A, H)]
    found = asymptotics(X, A, H, depths=(5,))
    assert found.hfc_lfc.dtype == F and not found.hfc_lfc.requires_grad
    assert all(torch.equal(M.detach(), old) for M, old in zip((X, A, H), before, strict=True))


def test_what_cannot_be_used_is_refused():
    X, A, H = torch.randn(4, 3), attention("softmax", 4), torch.randn(3, 3)
    with pytest.raises(UsageError, match=r"A and H must last for all 5 layers; they ended after 2\. .*cycle"):
        asymptotics(X, [A, A], H, depths=(5,))
    with pytest.raises(ShapeError, match=r"A must be \(\.\.\., 4, 4\).* got A \(3, 3\) and H \(3, 3\)"):
        asymptotics(X, torch.eye(3), H)
    with pytest.raises(ShapeError, match=r"H must be \(\.\.\., 3, 3\)"):
        asymptotics(X, A, torch.randn(2, 3, 3))
    with pytest.raises(ShapeError, match="must have the same heads"):
        asymptotics(X, attention("softmax", 2, 4), H)
    with pytest.raises(StochasticError, match="asymptotics: the rows of P must be probabilities"):
        asymptotics(X, 2 * A, H)
    with pytest.raises(UsageError, match=r"depths must be counts of layers.* got \(0,\)"):
        asymptotics(X, A, H, depths=(0,))
    with pytest.raises(UsageError, match="X must be finite"):
        asymptotics(X / 0, A, H)
    with pytest.raises(UsageError, match="H must be finite"):
        asymptotics(X, A, H * math.nan)
