"""Every wiring of the shelf against its formula, written literally for the whole model, and its limits."""

import math

import pytest
import torch

from depthscope.errors import UsageError
from depthscope.models import Block, Design, classic
from depthscope.models.design import shelves, streams_of
from depthscope.models.trials import draw_trials
from depthscope.models.wirings.admin import admin_profile_
from depthscope.models.wirings.layer_scale import first_g
from depthscope.registry import TABLES
from loops import over

shelves()
DEPTH, D, ALPHA = 4, 8, 0.7


def shake_(model):
    """Move norms and scalars away from the start."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or "wiring" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def model_of(wiring, depth=DEPTH, **choices):
    return shake_(classic(depth, D, 2, q=12, wiring=wiring, alpha=ALPHA, **choices).double())


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def ln(norm, X):
    X = (X - X.mean(-1, keepdim=True)) / (X.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    return X if norm.weight is None else X * norm.weight + norm.bias


def plain(weight, X):
    return X @ weight.T


def sa(block, X, before=lambda Y: Y):
    """alpha SA(X) head by head; before acts on the joined heads."""
    a, heads = block.attention, []
    for columns in torch.arange(D).split(D // 2):
        q, k, v = (plain(W.weight, X)[..., columns] for W in (a.W_q, a.W_k, a.W))
        heads.append((q @ k.transpose(-1, -2) / (D // 2) ** 0.5).softmax(-1) @ v)
    joined = before(torch.cat(heads, -1))
    return ALPHA * (plain(a.W_O.weight, joined) if isinstance(a.W_O, torch.nn.Linear) else joined)


def ffn(block, X, before=lambda Y: Y):
    return plain(block.ffn.W_2.weight, before(plain(block.ffn.W_1.weight, X).clamp_min(0)))


# the formulas: one block (x -> x), i from 1


def post(b, w, x, skip_1=1.0, skip_2=1.0, scale=1.0, bottom=0.0):
    y = ln(w.norm_1, skip_1 * x + scale * sa(b, x))
    return ln(w.norm_2, skip_2 * y + scale * ffn(b, y) + bottom * x)


def pre(b, w, x, g_1=1.0, g_2=1.0, scale=1.0):
    x = x + g_1 * sa(b, scale * ln(w.norm_1, x))
    return x + g_2 * ffn(b, scale * ln(w.norm_2, x))


def both_sides(b, w, x):
    x = x + ALPHA * ln(w.norm_a, sa(b, ln(w.norm_1, x)) / ALPHA)
    return x + ln(w.norm_f, ffn(b, ln(w.norm_2, x)))


def zero(b, w, x):
    x = x + w.a * sa(b, x)
    return x + w.a * ffn(b, x)


def sub(b, w, x):
    W_O = b.attention.W_O
    inner = W_O.norm if isinstance(W_O, torch.nn.Linear) else W_O
    x = x + sa(b, ln(w.norm_1, x), lambda heads: ln(inner, heads))
    return x + ffn(b, ln(w.norm_2, x), lambda hidden: ln(b.ffn.W_2.norm, hidden))


BLOCKS = {
    "depth_scaled": lambda b, w, x, i: post(b, w, x, scale=1 / math.sqrt(DEPTH)),
    "even_steps": lambda b, w, x, i: post(b, w, x, scale=1 / 2),
    "rezero": lambda b, w, x, i: zero(b, w, x),
    "skip_init": lambda b, w, x, i: pre(b, w, x, w.a_1, w.a_2),
    "layer_scale": lambda b, w, x, i: pre(b, w, x, w.g_1, w.g_2),
    "deep_norm": lambda b, w, x, i: post(b, w, x, (2 * DEPTH) ** 0.25, (2 * DEPTH) ** 0.25),
    "admin": lambda b, w, x, i: post(b, w, x, w.omega_1, w.omega_2),
    "b2t": lambda b, w, x, i: post(b, w, x, bottom=1.0),
    "sandwich": lambda b, w, x, i: both_sides(b, w, x),
    "peri_ln": lambda b, w, x, i: both_sides(b, w, x),
    "mix_ln": lambda b, w, x, i: (post if i == 1 else pre)(b, w.wired, x),
    "layer_norm_scaling": lambda b, w, x, i: pre(b, w, x, scale=1 / math.sqrt(i)),
    "sub_ln": lambda b, w, x, i: sub(b, w, x),
}
NO_ENDING = {"depth_scaled", "even_steps", "rezero", "deep_norm", "admin", "b2t"}


@over("output", [False, True])
@over("wiring", sorted(BLOCKS))
def test_a_model_is_its_formula(wiring, output):
    depth = 8 if wiring == "even_steps" else DEPTH  # deep enough that branches are divided
    model, X = model_of(wiring, depth, output=output), randn(2, 5, D)
    x = ln(model.beginning, X) if wiring == "peri_ln" else X
    for i, block in enumerate(model, start=1):
        x = BLOCKS[wiring](block, block.wiring, x, i)
    torch.testing.assert_close(model(X), x if wiring in NO_ENDING else ln(model.ending, x))


def test_resi_dual_is_its_formula():
    model, X = model_of("resi_dual"), randn(2, 5, D)
    x = d = X
    for block in model:
        for norm, f in ((block.wiring.norm_1, sa), (block.wiring.norm_2, ffn)):
            branch = f(block, x)
            x, d = ln(norm, x + branch), d + branch
    torch.testing.assert_close(model(X), x + ln(model.ending.norm, d))


def test_hyper_connections_are_their_formula_token_by_token():
    model, X = model_of("hyper_connections"), randn(5, D)
    H = [[x.clone() for _ in range(4)] for x in X]  # token, stream
    for block in model:
        w = block.wiring
        for c, norm, f in ((w.width_1, w.norm_1, sa), (w.width_2, w.norm_2, ffn)):
            A, B, h, mixed = [], [], [], []
            for streams in H:
                A.append([c.A[i] + c.s_a * torch.tanh(ln(c.norm, s) @ c.W_a) for i, s in enumerate(streams)])
                B.append([c.B[i] + c.s_b * torch.tanh(ln(c.norm, s) @ c.w_b) for i, s in enumerate(streams)])
                h.append(sum(A[-1][i][0] * streams[i] for i in range(4)))
                mixed.append([sum(A[-1][i][1 + j] * streams[i] for i in range(4)) for j in range(4)])
            out = f(block, ln(norm, torch.stack(h)))
            H = [[mixed[t][j] + B[t][j] * out[t] for j in range(4)] for t in range(5)]
    torch.testing.assert_close(model(X), ln(model.ending.norm, torch.stack([sum(streams) for streams in H])))


# limits


@over("wiring", ["rezero", "skip_init"])
def test_a_block_that_starts_at_zero_is_the_identity(wiring):
    X = randn(2, 5, D)
    for block in classic(3, D, 2, wiring=wiring).double():
        assert torch.equal(block(X), X)


def twins(wiring, other, **choices):
    """Two models at the start with the same matrices."""
    models = []
    for name in (wiring, other):
        torch.manual_seed(7)
        models.append(classic(DEPTH, D, 2, wiring=name, **choices).double())
    return models


def test_even_steps_are_post_norm_where_blocks_are_few_and_have_nothing_to_learn_in_norms():
    (model, post_norm), X = twins("even_steps", "post_norm"), randn(2, 5, D)
    torch.testing.assert_close(model(X), post_norm(X))
    assert not any("norm" in name for name, _ in model.named_parameters())


@over("depth", [100, 400])
def test_one_step_of_adam_moves_even_steps_alike_at_any_depth_and_depth_scaled_ones_more(depth):
    def moved(wiring, depth):
        torch.manual_seed(0)
        model, X = classic(depth, 16, 2, q=16, wiring=wiring, weights="torch_default", output=True).double(), X_0
        (model(X)[:, 0] * reads).sum().backward()
        with torch.no_grad():
            before = model(X)
            for parameter in model.parameters():
                parameter.sub_(1e-8 * parameter.grad.sign())
            return float((model(X) - before).norm() / before.norm() / 1e-8)

    X_0, reads = randn(4, 6, 16), randn(4, 16)
    assert moved("even_steps", depth) == pytest.approx(moved("even_steps", 20), rel=0.3)
    assert moved("depth_scaled", depth) > 1.5 * (depth / 20) ** 0.5 * moved("depth_scaled", 20)  # gains of norms: 2 L


def test_layer_scale_with_no_scale_is_the_identity_and_with_one_is_pre_norm():
    (model, pre_norm), X = twins("layer_scale", "pre_norm"), randn(2, 5, D)
    for value in (0.0, 1.0):
        with torch.no_grad():
            for block in model:
                block.wiring.g_1.fill_(value), block.wiring.g_2.fill_(value)
        for block, other in zip(model, pre_norm, strict=True):
            torch.testing.assert_close(block(X), other(X) if value else X)


@over("depth, g", [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (100, 1e-6)])
def test_layer_scale_starts_smaller_the_deeper(depth, g):
    assert first_g(depth) == g
    block = Block(Design(depth, D, 2, wiring="layer_scale"))
    torch.testing.assert_close(block.wiring.g_1, torch.full((D,), g))
    assert block.wiring.g_1.data_ptr() != block.wiring.g_2.data_ptr()


@over("wiring, other", [("hyper_connections", "pre_norm"), ("admin", "post_norm")])
def test_some_wirings_start_as_another(wiring, other):
    (model, twin), X = twins(wiring, other), randn(2, 5, D)
    torch.testing.assert_close(model(X), twin(X), rtol=1e-4, atol=1e-4)  # eps of the last norm


def test_the_main_stream_of_resi_dual_is_post_norm_and_the_other_the_sum_of_all_branches():
    (model, twin), X = twins("resi_dual", "post_norm", alpha=ALPHA), randn(2, 5, D)
    streams, total = model.beginning(X), X
    for block in model:
        x = streams[0]
        y = block.steps(*streams)["Y_2"]
        total = total + sa(block, x) + ffn(block, y)
        streams = block(*streams)
    torch.testing.assert_close(streams[0], twin(X))
    torch.testing.assert_close(streams[1], total)


@over("depth, post_norm", [(1, 0), (3, 0), (4, 1), (7, 1), (12, 3)])
def test_mix_ln_is_post_norm_for_a_quarter(depth, post_norm):
    kinds = [type(block.wiring.wired).__name__ for block in classic(depth, D, 2, wiring="mix_ln")]
    assert kinds == ["PostNorm"] * post_norm + ["PreNorm"] * (depth - post_norm)


GAINS = {"deep_norm": lambda depth: (8 * depth) ** -0.25, "sub_ln": lambda depth: math.log(2 * depth) ** 0.5}


@over("wiring", sorted(TABLES["wiring"]))
def test_weights_have_the_variance_of_the_paper(wiring):
    torch.manual_seed(1)
    design = Design(20, 64, 4, q=128, wiring=wiring, weights="xavier", output=True)
    block = Block(design)
    drawn = draw_trials(block, 2)
    gain = GAINS.get(wiring, lambda depth: 1.0)(20)
    for name, W in block.matrices():
        expected = 2 / sum(W.weight.shape) * (gain**2 if name[-3:] not in ("W_q", "W_k") else 1)
        assert W.weight.var().item() == pytest.approx(expected, rel=0.08), name
        assert drawn[f"{name}.weight"].var().item() == pytest.approx(expected, rel=0.06), name


def test_admin_sets_omega_from_the_variances_of_the_branches():
    model, X = classic(3, 32, 2, wiring="admin", weights="xavier").double(), randn(4, 6, 32)
    values = admin_profile_(model, X)
    omegas = [w for b in model for w in (b.wiring.omega_1, b.wiring.omega_2)]
    assert [w.unique().item() for w in omegas] == pytest.approx(values)
    x, squared = X, 1.0
    for i, block in enumerate(model):
        steps = block.steps(x)
        for w, source, f in ((omegas[2 * i], x, block.attention), (omegas[2 * i + 1], steps["Y_2"], block.ffn)):
            assert w[0].item() ** 2 == pytest.approx(squared, rel=1e-9)
            squared = squared * source.var(unbiased=False).item() + f(source).var(unbiased=False).item()
        x = steps["Y_4"]
    assert values == sorted(values) and values[-1] > values[0] == 1


def test_admin_refuses_other_wirings():
    with pytest.raises(UsageError, match=r"^admin_profile_: blocks must be wired as admin; got PostNorm\. Build"):
        admin_profile_(classic(1, 8, 2), torch.randn(2, 3, 8))


def test_streams_between_blocks():
    X = torch.randn(2, 5, D)
    shapes = {name: [tuple(s.shape) for s in streams_of(classic(1, D, 2, wiring=name).beginning(X))] for name in GIVEN}
    assert shapes == GIVEN


GIVEN = {"post_norm": [(2, 5, D)], "resi_dual": [(2, 5, D), (2, 5, D)], "hyper_connections": [(2, 4, 5, D)]}
