"""Each op on tokens, written literally."""

import torch
from ops import SHELF, B, D, N, build, tokens
from torch import Tensor

from depthscope import fix_, models, remedies
from loops import over


def mean_seen(X: Tensor, form: str, t: int) -> Tensor:
    """The mean token that token t (from 0) may see, one sequence X (n, d)."""
    if form == "full":
        return sum(X) / len(X)
    if form == "past":
        return sum(X[:t]) / t if t else torch.zeros_like(X[0])
    return sum(X[: t + 1]) / (t + 1 if form == "prefix" else t + 2)


@over("mean", SHELF["PairNorm"].choices["mean"])
@over("form", SHELF["PairNorm"].choices["form"])
def test_pair_norm(form, mean):
    X = tokens()[0]
    C = [x - mean_seen(X, mean, t) for t, x in enumerate(X)]
    squared = [sum(c**2) for c in C]
    for t in range(N):
        seen = squared if mean == "full" else squared[: t + 1]
        size = sum(seen) / len(seen) if form == "pn" else squared[t]
        expected = 2.5 * C[t] / (size + 1e-6).sqrt()
        torch.testing.assert_close(remedies.PairNorm(2.5, form=form, mean=mean)(X)[t], expected)
        mixed = remedies.PairNorm(2.5, form=form, mean=mean, strength=0.3)(X)[t]
        torch.testing.assert_close(mixed, 0.7 * X[t] + 0.3 * expected)


def test_pair_norm_keeps_the_total_distance_between_pairs():
    Y = remedies.PairNorm(3.0, eps=0.0)(tokens())
    torch.testing.assert_close(torch.cdist(Y, Y).square().sum((-2, -1)), torch.full((B,), 2 * 9.0 * N**2).double())
    lengths = remedies.PairNorm(3.0, form="pn_si", eps=0.0)(tokens()).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.full((B, N), 3.0).double())


def layer_norm(x: Tensor, eps: float) -> Tensor:
    return (x - x.mean()) / ((x - x.mean()).square().mean() + eps).sqrt()


@over("over", ["all", "prefix"])
@over("form", ["plain", "identity"])
def test_contra_norm(form, over):
    X, s, T = tokens()[0], 0.4, 0.7
    for t in range(N):
        seen = X if over == "all" else X[: t + 1]
        weights = torch.stack([(x @ X[t] / x.norm() / X[t].norm() / T).exp() for x in seen])
        away = sum(w * x for w, x in zip(weights / weights.sum(), seen, strict=True))
        kept = X[t] if form == "plain" else (1 + s) * X[t]
        found = remedies.ContraNorm(s, temperature=T, form=form, over=over)(X)[t]
        torch.testing.assert_close(found, layer_norm(kept - s * away, 1e-6))


@over("mean", SHELF["FeatScale"].choices["mean"])
@over("form, times", [("paper", 1), ("repo", 2)])
def test_feat_scale(form, times, mean):
    X, remedy = tokens()[0], build("FeatScale", form=form, mean=mean).double()
    for t in range(N):
        M, scaled = mean_seen(X, mean, t), X[t]
        for _ in range(times):
            scaled = scaled + remedy.s * M + remedy.t * (X[t] - M)
        torch.testing.assert_close(remedy(X)[t], scaled)


@over("dtype", [torch.float32, torch.bfloat16])
def test_feat_scale_starts_as_the_identity_and_learns(dtype):
    remedy, X = remedies.FeatScale(D), tokens(dtype=dtype)
    assert torch.equal(remedy(X), X)
    assert {k: tuple(v.shape) for k, v in remedy.state_dict().items()} == {"s": (D,), "t": (D,)}
    remedy(X).float().square().sum().backward()
    assert remedy.s.grad.abs().min() > 0 and remedy.t.grad.abs().min() > 0


@torch.no_grad()
def test_gain_control_keeps_the_mean_of_the_residual():
    """LN(X + SA(X) - mean SA(X)) in a post-norm block, X + SA(LN X) - mean SA(LN X) in a pre-norm one."""
    for wiring in ("post_norm", "pre_norm"):
        model = models.classic(1, 16, 4, wiring=wiring).double()
        block, X = model.blocks[0], torch.randn(2, 6, 16, dtype=torch.float64) + 1.0

        def centred(X, block=block):
            SA = block.attention(X)
            return torch.stack([sa - sum(sa) / len(sa) for sa in SA])

        expected = block.wiring(X, centred, block.ffn)
        with fix_(model, remedies.GainControl()):
            found = model(X)
        torch.testing.assert_close(found, expected if wiring == "post_norm" else model.ending(expected))


@over("n", [3, 6])
@over("alpha", [-0.2, -0.8])
def test_soft_decay(alpha, n):
    X = 3 * tokens(n)[0]
    energy, V = torch.linalg.eigh(X.T @ X)  # another way to the singular values
    expected = torch.zeros_like(X)
    f = [-torch.log(1 - alpha * (e.clamp(min=0).sqrt() + alpha)) / alpha for e in energy]
    for e, v, value in zip(energy, V.T, f, strict=True):
        if e > 1e-12 * energy[-1]:
            expected += torch.outer(X @ v / e.sqrt(), v) * value * energy[-1].sqrt() / f[-1]
    Y = remedies.SoftDecay(alpha)(X)
    torch.testing.assert_close(Y, expected)
    torch.testing.assert_close(torch.linalg.matrix_norm(Y, 2), torch.linalg.matrix_norm(X, 2))


def test_soft_decay_flattens_and_goes_over_into_the_identity():
    X = 10 * tokens()
    ratio = [torch.linalg.svdvals(remedies.SoftDecay(a)(X))[:, 1] for a in (-0.001, -0.2, -0.8)]
    assert (ratio[0] < ratio[1]).all() and (ratio[1] < ratio[2]).all()
    torch.testing.assert_close(remedies.SoftDecay(-1e-7)(X), X, rtol=1e-4, atol=1e-4)


def test_soft_decay_leaves_a_missing_direction_out():
    X = tokens()
    X = 3 * (X - X.mean(-2, keepdim=True))[:, :4]  # n = d = 4
    X = (X - X.mean(-2, keepdim=True)).requires_grad_()  # one singular value is zero, its direction arbitrary
    Y = remedies.SoftDecay(-0.5)(X)
    torch.testing.assert_close(Y.mean(-2), torch.zeros(B, D, dtype=torch.float64), atol=1e-12, rtol=0)
    Y.square().sum().backward()
    assert X.grad.isfinite().all()
