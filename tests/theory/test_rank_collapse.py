"""The bounds on plain networks: 1,000 random ones must keep what holds, two made ones break what is printed."""

import math
from decimal import Decimal, localcontext

import pytest
import torch

from depthscope.errors import UsageError
from depthscope.theory.rank_collapse import (
    attention_bound,
    contraction_radius,
    head_norms,
    printed_skip_bound,
    rank_collapse_bound,
    skip_bound,
)
from depthscope.theory.softmax_perturbation import PRECONDITION, exchange_gamma, score_residual, score_spread
from depthscope.theory.split_attention import SplitTokens, split_attention
from loops import over


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def composite(X):
    return float(X.abs().sum(-2).max().sqrt() * X.abs().sum(-1).max().sqrt())  # each: the product may underflow


def residual(X):
    return composite(X - X.mean(-2, keepdim=True))


class Layer:
    """SA(X) = sum_h softmax((X W_Q + b_Q) (X W_K)^T / sqrt(d_qk)) X W_h + b, as it is written; d_qk = d."""

    def __init__(self, d, H, size, lopsided):
        self.W_Q, self.W_K, self.W = (size * randn(H, d, d) / d for _ in range(3))
        self.W = self.W * (lopsided * randn(H, d, 1)).exp() * (lopsided * randn(H, 1, d)).exp()
        self.b_Q, self.b, self.scale = randn(H, 1, d), randn(d), d**-0.5

    def attends(self, X):
        return ((X @ self.W_Q + self.b_Q) @ (X @ self.W_K).mT * self.scale).softmax(-1)

    def __call__(self, X):
        return (self.attends(X) @ X @ self.W).sum(0) + self.b

    def norms(self):
        return head_norms(self.W_Q @ self.W_K.mT, self.W, scale=self.scale)

    def E(self, R):
        return score_residual(R, self.W_Q, self.W_K, scale=self.scale)

    def beta(self):
        w, W = (self.W_Q @ self.W_K.mT).abs().sum(-2).amax(-1), self.W.abs()
        return float((w * (W.sum(-2).amax(-1) * W.sum(-1).amax(-1)).sqrt()).max())


def random_network(index):
    """1 to 4 layers of 1 to 4 heads, tokens from nearly equal to far apart, matrices from even to lopsided."""
    torch.manual_seed(index)
    n, d, H, L = (int(torch.randint(low, high, ())) for low, high in [(2, 20), (2, 16), (1, 5), (1, 5)])
    size, lopsided = float(2.5 * torch.rand(())) + 0.3, float(torch.rand(()))
    X = randn(1, d) + float(10 ** (2.5 * torch.rand(()) - 2)) * randn(n, d)
    return X, [Layer(d, H, size, lopsided) for _ in range(L)]


def run(X, layers, *, skip):
    """States as mean and differences, and D of every layer; what a plain network gives must be the same.

    The cube of 1e-90 is near the least number there is: a network ends there.
    """
    states, spreads, plain = [SplitTokens.of(X)], [], X
    for layer in layers:
        if composite(states[-1].R) < 1e-90:
            break
        spreads.append(float(score_spread(layer.E(states[-1].R)).max()))
        one = torch.eye(X.shape[1], dtype=torch.float64)
        after = split_attention(
            states[-1], layer.W_Q, layer.W_K, layer.b_Q[:, 0], layer.W, one, offset=layer.b, scale=layer.scale
        )
        states.append(states[-1].plus(after) if skip else after)
        plain = plain * skip + layer(plain)
        torch.testing.assert_close(states[-1].X, plain, rtol=1e-9, atol=1e-9)
    return states, spreads


def networks(*, skip, count=1000):
    """Random networks that meet the precondition in every layer."""
    index = found = 0
    while found < count:
        X, layers = random_network(index)
        states, spreads = run(X, layers, skip=skip)
        index += 1
        if max(spreads) <= PRECONDITION:
            found += 1
            yield layers, states, spreads


@over("count", [200], long=[1000])
def test_the_bounds_hold_on_every_one_of_a_thousand_networks(count):
    """One layer each from what it reads; all layers from the input alone; and the paper's, gamma = 1, with its beta."""
    kept, step, chain, printed = 0, math.inf, math.inf, math.inf  # how far above what is found, log10, at the nearest
    for layers, states, spreads in networks(skip=False, count=count):
        sizes = [math.log10(composite(state.R)) for state in states]
        kept += len(spreads)
        beta, d, H = max(layer.beta() for layer in layers), layers[0].W.shape[1], len(layers[0].W)
        so_far = sizes[0]
        for k, (layer, D) in enumerate(zip(layers, spreads, strict=False)):
            a, b = layer.norms()
            step = min(step, float(attention_bound(10 ** sizes[k], a, b, D=D)) - sizes[k + 1])
            so_far = float(attention_bound(1.0, a, b)) + 3 * so_far  # from the input alone
            chain = min(chain, so_far - sizes[k + 1])
            said = rank_collapse_bound(10 ** sizes[0], k + 1, beta, d, heads=H)
            printed = min(printed, said - sizes[k + 1])
    assert kept > 2 * count  # layers
    assert step > 0.05
    assert chain > 0.05
    assert printed > 0.05  # at these widths no random network breaks it; those below do


@over("count", [200], long=[1000])
def test_with_skips_the_bound_holds_on_every_one_of_a_thousand_networks(count):
    nearest = math.inf
    for layers, states, spreads in networks(skip=True, count=count):
        sizes = [math.log10(composite(state.R)) for state in states]
        so_far = sizes[0]
        for k, (layer, D) in enumerate(zip(layers, spreads, strict=False)):
            a, b = layer.norms()
            nearest = min(nearest, float(skip_bound(sizes[k], a, b, D=D)) - sizes[k + 1])
            so_far = float(skip_bound(so_far, a, b))
            assert sizes[k + 1] <= so_far
    assert nearest > 0


def test_far_outside_the_precondition_the_bounds_hold_with_the_number_of_tokens():
    for index in range(300):
        X, (layer, *_) = random_network(index)
        X, (a, b) = 10 * X, layer.norms()
        for D in (float(score_spread(layer.E(X - X.mean(0))).max()), math.inf):
            assert residual(layer(X)) <= 10 ** attention_bound(residual(X), a, b, D=D, n=len(X)) + 1e-12
            assert residual(X + layer(X)) <= 10 ** skip_bound(math.log10(residual(X)), a, b, D=D, n=len(X))


def test_one_layer_is_cubic_and_three_are_doubly_exponential():
    torch.manual_seed(0)
    layers, R = [Layer(8, 2, 1.0, 0.0) for _ in range(3)], randn(6, 8)
    ends = [residual(layers[0](1 + size * R)) for size in (1e-3, 1e-4)]
    assert math.log10(ends[0] / ends[1]) == pytest.approx(3, abs=0.01)
    far, near = (run(1 + size * R, layers, skip=False)[0][-1].R for size in (1e-1, 1e-2))
    assert math.log10(composite(far) / composite(near)) == pytest.approx(3**3, abs=0.5)


def test_differences_keep_their_digits_far_below_rounding():
    """Against 60 digits of rational arithmetic with a series for the exponential."""
    torch.manual_seed(1)
    layer, R = Layer(3, 1, 1.0, 0.0), 1e-9 * randn(3, 3)
    got = run(1 + R, [layer], skip=False)[0][-1].R  # about 1e-27, beside tokens of size 1
    with localcontext() as context:
        context.prec = 80
        exact = by_decimals(SplitTokens.of(1 + R), layer)
    assert composite(got) < 1e-25
    torch.testing.assert_close(got, exact, rtol=1e-6, atol=0)


def by_decimals(tokens, layer):
    """res(SA(X)) for one head in decimals."""

    def exact(M):
        return [[Decimal(float(v)) for v in row] for row in M]

    def times(A, B):
        return [
            [sum((x * y for x, y in zip(row, column, strict=True)), Decimal(0)) for column in zip(*B, strict=True)]
            for row in A
        ]

    x, R = exact(tokens.x), exact(tokens.R)
    X = [[common + v for common, v in zip(x[0], row, strict=True)] for row in R]
    asked = [
        [v + Decimal(float(b)) for v, b in zip(row, layer.b_Q[0, 0], strict=True)]
        for row in times(X, exact(layer.W_Q[0]))
    ]
    keys = times(X, exact(layer.W_K[0]))
    scores = [[v * Decimal(layer.scale) for v in row] for row in times(asked, list(zip(*keys, strict=True)))]
    powers = [[v.exp() for v in row] for row in scores]
    P = [[v / sum(row) for v in row] for row in powers]
    Y = times(times(P, X), exact(layer.W[0]))
    means = [sum(column) / len(Y) for column in zip(*Y, strict=True)]
    return torch.tensor([[float(v - m) for v, m in zip(row, means, strict=True)] for row in Y], dtype=torch.float64)


def test_a_feed_forward_network_costs_its_lipschitz_constant():
    for index in range(100):
        X, layers = random_network(index)
        layer, d = layers[0], X.shape[1]
        W_1, W_2 = randn(d, 3 * d), randn(3 * d, d)
        Y = torch.relu(layer(X) @ W_1) @ W_2
        if score_spread(layer.E(X - X.mean(0))).max() > PRECONDITION:
            continue
        norms = [float(torch.linalg.matrix_norm(W, p)) for W in (W_1, W_2) for p in (1, math.inf)]
        a, b = layer.norms()
        H = len(layer.W)
        beta = float((a * b).sqrt()) / H * d**0.5
        said = rank_collapse_bound(residual(X), 1, beta, d, heads=H, lipschitz=math.sqrt(math.prod(norms)))
        assert math.log10(residual(Y)) <= said


def two_opposite_tokens(d, tau, rows):
    """Tokens e_1 and -e_1, queries and keys that see e_1 alone, values from e_1 to the given rows (H, d).

    All in closed form: P - 1 q^T = tanh(tau) / 2 (1, -1; -1, 1), with tau = |W_QK|_1 / sqrt(d_qk); D = 2 tau.
    """
    e_1 = torch.zeros(d, dtype=torch.float64)
    e_1[0] = 1
    SA = math.tanh(tau) * rows.sum(0)
    betas = [tau * float((row.abs().max() * row.abs().sum()).sqrt()) for row in rows]
    return torch.stack([e_1, -e_1]), torch.stack([SA, -SA]), max(betas)  # X, SA(X), beta / sqrt(d_qk)


def test_two_opposite_tokens_are_what_attention_makes_of_them():
    d, tau, rows = 6, 0.4, randn(2, 6)
    X, SA, beta = two_opposite_tokens(d, tau, rows)
    W_QK, W = torch.zeros(1, d, d, dtype=torch.float64), torch.zeros(2, d, d, dtype=torch.float64)
    W_QK[0, 0, 0], W[:, 0] = tau * d**0.5, rows
    P = (X @ W_QK @ X.T / d**0.5).softmax(-1)
    torch.testing.assert_close((P @ X @ W).sum(0), SA)
    assert max(composite(w) for w in W) * tau == pytest.approx(beta)
    E = X @ W_QK[0] @ X.T / d**0.5
    assert float(exchange_gamma(E)) == pytest.approx(1)  # so that gamma cannot save a bound that fails here
    assert float(score_spread(E)) == pytest.approx(2 * tau)


def test_the_printed_bound_with_skips_fails_for_a_wide_row_and_ours_does_not():
    d, tau = 1024, 0.01
    row = torch.full((1, d), 4 / (d * math.tanh(tau)), dtype=torch.float64)  # |W|_inf is d times |W|_1
    X, SA, beta = two_opposite_tokens(d, tau, row)
    printed = printed_skip_bound(residual(X), 1, beta, 1)
    assert residual(X + SA) / 10**printed == pytest.approx(1.120, abs=1e-3)  # a bound would not be passed
    a, b = tau * float(row.abs().max()), tau * float(row.abs().sum())
    assert math.log10(residual(X + SA)) <= skip_bound(math.log10(residual(X)), a, b, D=2 * tau)


def test_the_printed_bound_for_two_heads_fails_for_one_narrow_and_one_wide_head_and_ours_does_not():
    d, tau = 2**17, 0.01
    rows = torch.stack([torch.eye(1, d)[0], torch.full((d,), d**-0.5)]).double()  # |W_h|_{1,inf} = 1 for both
    X, SA, beta = two_opposite_tokens(d, tau, rows)
    printed = rank_collapse_bound(residual(X), 1, beta, 1, heads=2)
    assert residual(SA) / 10**printed == pytest.approx(1.192, abs=2e-3)
    a, b = (tau * float(norm.sum()) for norm in (rows.abs().amax(-1), rows.abs().sum(-1)))
    assert math.log10(residual(SA)) <= attention_bound(residual(X), a, b, D=2 * tau)


def test_the_bound_of_many_layers_is_the_cubic_step_again_and_again():
    log_r = math.log10(0.3)
    for depth in range(8):
        assert rank_collapse_bound(0.3, depth, 0.7, 16, heads=3, lipschitz=2.0) == pytest.approx(log_r, rel=1e-12)
        log_r = math.log10(4 * 0.7 * 3 * 2 / 4) + 3 * log_r


def test_the_bound_contracts_below_the_radius_and_not_above():
    radius = contraction_radius(0.7, 16, heads=3, lipschitz=2.0)
    assert radius == pytest.approx((4 * 0.7 * 3 * 2 / 4) ** -0.5)
    said = rank_collapse_bound(torch.tensor([0.99, 1.01]) * radius, 6, 0.7, 16, heads=3, lipschitz=2.0)
    assert said[0] < math.log10(radius) < said[1]


@over("name", ["residual", "beta", "d_qk", "heads", "gamma"])
def test_one_tensor_among_numbers_makes_a_tensor(name):
    numbers = {"residual": 0.3, "beta": 0.7, "d_qk": 16.0, "heads": 3.0, "gamma": 2.0}
    for bound in (rank_collapse_bound, printed_skip_bound):
        plain = bound(depth=2, **numbers)
        several = bound(depth=2, **numbers | {name: torch.tensor([numbers[name]] * 2)})
        assert isinstance(plain, float) and several.tolist() == pytest.approx([plain] * 2, rel=1e-6)


def test_a_deep_network_overflows_nothing():
    assert rank_collapse_bound(10.0, 96, 5.0, 128, heads=96) > 1e45
    assert rank_collapse_bound(0.0, 3, 5.0, 128) == -math.inf
    assert rank_collapse_bound(0.5, 3, 0.0, 128) == -math.inf
    assert math.isfinite(skip_bound(1e6, 3.0, 2.0))
    assert skip_bound(-5.0, 0.0, 0.0) == pytest.approx(-5.0)
    assert printed_skip_bound(10.0, 12, 5.0, 64, heads=12) > 1e5
    assert attention_bound(1.0, 0.0, 0.0, D=math.inf) == attention_bound(0.0, 1.0, 1.0, D=math.inf) == -math.inf
    assert attention_bound(1e-200, 1e-90, 1e-90) == pytest.approx(-690, abs=1)  # small is not nothing
    assert skip_bound(0.5, 0.0, 0.0, D=math.inf) == pytest.approx(0.5)


def test_the_printed_bound_with_skips_is_its_formula_and_never_contracts():
    by_hand = [
        math.log10((8 * 0.7 * 3 / 4) ** ((3**k - 1) / 2) * 6 ** (3**k * (3 - k)) * 0.1 ** (3**k)) for k in range(4)
    ]
    assert printed_skip_bound(0.1, 3, 0.7, 16, heads=3) == pytest.approx(max(by_hand))
    assert printed_skip_bound(1e-9, 3, 0.7, 16, heads=3) >= -9


@over(
    "given, reason",
    [
        ({"residual": -1.0}, r"residual must lie in \[0, inf\); got -1"),
        ({"d_qk": 0}, r"d_qk must lie in \[1, inf\); got 0"),
        ({"heads": 0}, r"heads must lie in \[1, inf\); got 0"),
        ({"gamma": 0.0}, r"gamma must lie in \(0, inf\); got 0"),
        ({"depth": -1}, r"depth must lie in \[0, inf\); got -1"),
    ],
)
def test_wrong_numbers_are_refused_with_the_reason(given, reason):
    with pytest.raises(UsageError, match=rf"rank_collapse_bound: {reason}"):
        rank_collapse_bound(**{"residual": 1.0, "depth": 2, "beta": 1.0, "d_qk": 4} | given)
