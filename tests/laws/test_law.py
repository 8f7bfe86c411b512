"""The algebra of laws, against Monte Carlo over the weights that a law does not know."""

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.laws.hidden_units import Units
from depthscope.laws.law import Law
from depthscope.laws.rules import normed
from depthscope.laws.tensor import LawTensor, follow
from depthscope.laws.token_modes import modes
from depthscope.theory.participation import participation, participation_by_table
from loops import over

B, N, D = 2, 6, 64
GENERATOR = torch.Generator().manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


X = randn(B, N, D) + randn(1, 1, D) * 0.8  # tokens with a part in common


def overlaps(Y: Tensor) -> Tensor:
    return Y @ Y.mT / Y.shape[-1]


def tensor(law: Law) -> LawTensor:
    return LawTensor(torch.Size((B, N, D)), torch.float32, law)


def test_the_law_of_tokens_that_are_there_has_their_overlaps() -> None:
    law = Law.of_tokens(X)
    torch.testing.assert_close(law.overlaps(), overlaps(X))
    common, centred = law.energies()
    torch.testing.assert_close(common, N * X.mean(1).square().mean(-1))
    torch.testing.assert_close(centred, (X - X.mean(1, keepdim=True)).square().sum((1, 2)) / D)
    torch.testing.assert_close(law.settled().overlaps(), law.overlaps())
    torch.testing.assert_close(law.about_mean().overlaps(), law.overlaps())
    Q = modes(N)
    torch.testing.assert_close(Q.T @ Q, torch.eye(Q.shape[1], dtype=torch.float64))
    torch.testing.assert_close(Q @ (Q.T @ torch.ones(N, dtype=torch.float64)), torch.ones(N, dtype=torch.float64))


def test_what_is_done_to_tokens_is_done_to_their_law() -> None:
    law, M, D_i = Law.of_tokens(X), randn(1, N, N), randn(B, N)
    S, I = law.overlaps(), torch.eye(N, dtype=torch.float64)  # noqa: E741
    torch.testing.assert_close(law.mixed(M).overlaps(), M @ S @ M.mT)
    torch.testing.assert_close(law.weighed(D_i).overlaps(), D_i.unsqueeze(-1) * S * D_i.unsqueeze(-2))
    torch.testing.assert_close(law.times(-2.0).overlaps(), 4 * S)
    torch.testing.assert_close(law.plus(law.mixed(M), 0.5).overlaps(), (I + 0.5 * M) @ S @ (I + 0.5 * M).mT)
    mean = law.mixed(torch.full((1, 1, N), 1 / N, dtype=torch.float64))
    less = I - 0.7 / N
    torch.testing.assert_close(law.plus(mean, -0.7).overlaps(), less @ S @ less)
    first, rest = (law.mixed(part.unsqueeze(0)) for part in (I[:2], I[2:]))
    torch.testing.assert_close(Law.stacked(first, rest).overlaps(), S)


def expectation(f, draws: int = 400) -> tuple[Tensor, Tensor]:
    """Mean and its standard error over draws of whatever f draws."""
    found = torch.stack([f() for _ in range(draws)])
    return found.mean(0), found.std(0) / draws**0.5


def close(law: Law, f, slack: float = 0.0) -> None:
    mean, error = expectation(f)
    assert bool(((law.overlaps() - mean).abs() < 4.5 * error + slack * mean.abs().max()).all())


def exact(Y: Tensor) -> Law:
    """A law with the very overlaps of tokens, of which nothing else is known."""
    return Law.fresh(overlaps(Y))


def test_a_random_matrix() -> None:
    """Its known part is exact for the matrix at hand, the other part on average."""
    law = Law.of_tokens(X)
    close(exact(X).drawn_through(0.25 * D, 0.0), lambda: overlaps(X @ (0.5 * randn(D, 48))))
    W, b = 0.3 * randn(48, D), randn(48)
    known = sum(t.unsqueeze(-1) * v.unsqueeze(1) for t, v in law.known)
    through = law.through(W, b)
    torch.testing.assert_close(sum(t.unsqueeze(-1) * v.unsqueeze(1) for t, v in through.known), known @ W.T + b)


@over("centred", [True, False])
def test_norms(centred: bool) -> None:
    weight, bias = randn(D), randn(D) if centred else None
    found = normed(Law.of_tokens(X), weight, bias, centred=centred).overlaps()
    truth = F.layer_norm(X, (D,), weight, bias) if centred else F.rms_norm(X, (D,), weight)
    assert float((found - overlaps(truth)).abs().max()) < 0.25  # one draw of weights, 64 channels
    plain = normed(Law.of_tokens(X), None, None, centred=centred).overlaps()
    torch.testing.assert_close(plain.diagonal(dim1=1, dim2=2), torch.ones(B, N, dtype=torch.float64))


@over("f", [torch.relu, F.gelu, F.silu, torch.tanh])
def test_hidden_units(f) -> None:
    tokens = F.rms_norm(X, (D,))
    law = exact(tokens)

    def draw() -> Tensor:
        W_1, W_2 = randn(D, 128) / D**0.5, randn(128, D) / 128**0.5
        return overlaps(f(tokens @ W_1) @ W_2)

    hidden = Units.of(law.drawn_through(1.0, 0.0)).then(f).settled()
    close(hidden.drawn_through(1.0, 0.0), draw, slack=0.01)


def test_a_gated_network() -> None:
    tokens = F.rms_norm(X, (D,))
    law = exact(tokens)

    def draw() -> Tensor:
        G, U, W_2 = randn(D, 128) / D**0.5, randn(D, 128) / D**0.5, randn(128, D) / 128**0.5
        return overlaps((F.silu(tokens @ G) * (tokens @ U)) @ W_2)

    gate = Units.of(law.drawn_through(1.0, 0.0)).then(F.silu)
    hidden = gate.times(Units.of(law.drawn_through(1.0, 0.0))).settled()
    close(hidden.drawn_through(1.0, 0.0), draw, slack=0.02)


@over("causal", [False, True])
@over("scale", [0.3, 1.0, 1.5])
def test_attention(causal: bool, scale: float) -> None:
    """Within the error of the draws, for strong scores (1.5) on the diagonal; uniform attention would be far off."""
    tokens = F.rms_norm(X, (D,))
    law = exact(tokens)

    def draw() -> Tensor:
        q, k, v = (tokens @ (randn(D, D) * (scale if i < 2 else 1.0) / D**0.5) for i in range(3))
        heads = [x.unflatten(-1, (2, 32)).transpose(1, 2) for x in (q, k, v)]
        return overlaps(F.scaled_dot_product_attention(*heads, is_causal=causal).transpose(1, 2).flatten(2))

    q, k = (law.drawn_through(scale**2, 0.0) for _ in range(2))
    shape = torch.Size((B, 2, N, 32))
    tensors = [LawTensor(shape, torch.float32, one) for one in (q, k, law.drawn_through(1.0, 0.0))]
    found = follow(F.scaled_dot_product_attention, tuple(tensors), {"is_causal": causal})
    assert found.shape == shape
    mean, error = expectation(draw, 1500)
    off = (found.law.overlaps() - mean).abs()
    assert bool((off.diagonal(dim1=1, dim2=2) < 4.5 * error.diagonal(dim1=1, dim2=2)).all())
    assert bool((off < 4.5 * error + (0.05 if scale > 1 else 0.0)).all())
    if scale >= 1:
        C = torch.ones(N, N, dtype=torch.float64)
        C = C.tril() if causal else C
        C = C / C.sum(-1, keepdim=True)
        uniform = (C @ law.overlaps() @ C.mT - mean).diagonal(dim1=1, dim2=2)
        assert float(uniform.mean()) < -8 * float(error.max())


def test_elementwise_chains_are_functions_of_one_law() -> None:
    """GELU by tanh, written out as some models do."""
    x = tensor(Law.of_tokens(X).drawn_through(1.0, 0.0))
    written = 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))
    torch.testing.assert_close(
        written.law.settled().overlaps(), F.gelu(x, approximate="tanh").law.settled().overlaps(), rtol=1e-6, atol=1e-9
    )


def test_the_table_of_participation() -> None:
    n = torch.tensor([1.0, 2.0, 3.0, 17.0, 100.0, 1000.0]).double().unsqueeze(-1)
    v = torch.tensor([0.0, 1e-4, 0.3, 1.0, 5.0, 15.0]).double()
    exact = participation(n.expand(-1, 6), v.expand(6, -1))
    torch.testing.assert_close(participation_by_table(n.expand(-1, 6), v.expand(6, -1)), exact, rtol=5e-3, atol=0.0)
