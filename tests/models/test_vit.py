"""The Vision Transformer: patches cut by hand, pooling by definition, Table 1's sizes, and its errors."""

import math

import pytest
import torch

import depthscope as ds
from depthscope.errors import ShapeError, UnknownNameError, UsageError, VanishedError
from depthscope.models import ViT, vit
from depthscope.models.design import shelves, streams_of
from depthscope.registry import TABLES
from loops import crossed, over

shelves()
each_pooling = over("pooling", ["cls", "mean", "attention"])
SMALL = {"depth": 2, "d": 8, "h": 2, "side": 12, "patch": 4, "classes": 5}


def images(count=2, channels=3, side=12):
    return torch.randn(count, channels, side, side)


@each_pooling
@over("channels", [1, 3])
def test_images_become_tokens_and_scores(pooling, channels):
    model = vit(**SMALL, channels=channels, pooling=pooling)
    assert isinstance(model, ViT)
    assert model.tokens(images(4, channels)).shape == (4, 9 + (pooling == "cls"), 8)
    assert model(images(4, channels)).shape == (4, 5)


@each_pooling
def test_tokens_are_the_patches_row_by_row(pooling):
    model, x = vit(**SMALL, pooling=pooling), images()
    tokens = model.tokens(x)
    first = int(pooling == "cls")
    for row in range(3):
        for column in range(3):
            patch = x[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            i = first + 3 * row + column
            truth = patch.flatten(1) @ model.embed.weight.flatten(1).T + model.embed.bias + model.positions[i]
            torch.testing.assert_close(tokens[:, i], truth, rtol=1e-4, atol=1e-5)
    if first:
        torch.testing.assert_close(tokens[:, 0], (model.cls[0] + model.positions[0]).expand(2, 8))


def test_cls_pooling_reads_the_first_token():
    model, X = vit(**SMALL), torch.randn(3, 10, 8)
    assert torch.equal(model.pool(X), X[:, 0])
    x = images()
    torch.testing.assert_close(model(x), model.head(model.transformer(model.tokens(x))[:, 0]))


@torch.no_grad()
def test_attention_pooling_weighs_tokens_by_probabilities():
    pool, X = vit(**SMALL, pooling="attention").pool, torch.randn(3, 9, 8)
    for b in range(3):
        e = [math.exp(float(x @ pool.w) / math.sqrt(8)) for x in X[b]]
        p = torch.tensor([value / sum(e) for value in e])
        assert p.sum().item() == pytest.approx(1)
        torch.testing.assert_close(pool(X)[b], sum(p_i * x for p_i, x in zip(p, X[b], strict=True)))
    torch.testing.assert_close(pool(X[:, :1].expand(3, 9, 8)), X[:, 0])  # weights that sum to one keep what is equal


@each_pooling
@over("causal", [False, True])
def test_scores_depend_on_the_image(pooling, causal):
    """A cls token in front of a causal model sees itself alone: such a model must be refused or read the image."""
    try:
        model = vit(**SMALL, pooling=pooling, causal=causal)
    except UsageError:
        assert causal and pooling == "cls"
        return
    x = images(1)
    change = (model(x) - model(x + 1)).abs().max().item()
    assert change > 1e-6


@each_pooling
def test_gradients_reach_every_parameter(pooling):
    model = vit(**SMALL, pooling=pooling)
    (model(images()) * torch.randn(2, 5)).sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad != 0).any(), name


# mean pooling

HALF, WIDE = [torch.bfloat16, torch.float16], [torch.float32, torch.float64]
EVERY, LAST, ALL_BUT_LAST = (
    "transformer.blocks.*",
    "transformer.blocks.2",
    [f"transformer.blocks.{i}" for i in range(2)],
)
DEEP = {"depth": 3, "d": 32, "h": 4, "side": 16, "pooling": "mean"}


def centred(n, dtype, share=0.0):
    """Tokens (2, n, 64) of which a share of the energy was common to all, rounded, and then their mean subtracted."""
    X = torch.randn(2, n, 64, dtype=torch.float64)
    X = X - X.mean(1, keepdim=True)
    common = torch.randn(2, 1, 64, dtype=torch.float64)
    X = (X * (1 - share) ** 0.5 + common * share**0.5).to(dtype)
    return X - X.mean(1, keepdim=True)


def removed(model, tau=1.0, blocks=EVERY):
    return ds.fix_(model, ds.remedies.DeEscalate(tau=tau), at="block_out", blocks=blocks)


def test_mean_pooling_gives_every_token_the_same_weight():
    model, X = vit(**SMALL, pooling="mean"), torch.randn(3, 9, 8)
    torch.testing.assert_close(model.pool(X), sum(X[:, i] for i in range(9)) / 9)


@over("n", [3, 17, 256, 4096])
@over("dtype", [*WIDE, *HALF])
def test_what_rounding_leaves_of_a_mean_is_refused(dtype, n):
    pool = vit(**SMALL, pooling="mean").pool
    for share in (0.0, 0.3, 0.5, 0.9, 0.99, 0.9999)[: None if dtype in WIDE else 2]:
        with pytest.raises(VanishedError, match=r"^vit: mean pooling must leave more of the tokens than round"):
            pool(centred(n, dtype, share))


@over("n", [1, 2, 3, 17, 256, 4096])
@over("dtype", [*WIDE, *HALF])
def test_unrelated_and_equal_tokens_are_pooled(dtype, n):
    """Means of unrelated tokens are the smallest that come of themselves: 1 / sqrt(n) of the tokens."""
    pool, X = vit(**SMALL, pooling="mean").pool, torch.randn(2, n, 64, dtype=torch.float64)
    rounding = {"rtol": 0, "atol": 2 * torch.finfo(dtype).eps, "check_dtype": False}
    torch.testing.assert_close(pool(X.to(dtype)), X.to(dtype).double().mean(1), **rounding)
    torch.testing.assert_close(
        pool(X[:, :1].expand(2, n, 64).to(dtype)), X[:, 0].to(dtype), **rounding | {"rtol": 0.01}
    )


def test_no_tokens_and_no_images_are_none_of_its_business():
    pool = vit(**SMALL, pooling="mean").pool
    assert pool(torch.zeros(2, 5, 8)).abs().max() == 0
    assert pool(torch.randn(0, 5, 8)).shape == (0, 8)
    assert pool(torch.full((2, 5, 8), math.nan)).isnan().all()


@torch.no_grad()
@over("blocks", [EVERY, LAST])
@over("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_complete_de_escalation_before_mean_pooling_is_refused(dtype, blocks):
    model, x = vit(**DEEP).to(dtype), images(2, side=16).to(dtype)
    plain = model(x)
    fix = removed(model, blocks=blocks)
    with pytest.raises(VanishedError, match=r'got \S+e-\d+\. .* use pooling="cls", a tau below 1, or leave the last'):
        model(x)
    fix.undo()
    assert torch.equal(model(x), plain)


@torch.no_grad()
@over("pooling", ["cls", "attention"])
def test_complete_de_escalation_before_another_pooling_is_fine(pooling):
    model = vit(**DEEP | {"pooling": pooling})
    with removed(model):
        assert model(images(2, side=16)).isfinite().all()


@torch.no_grad()
@crossed("side, dtype, wiring", [8, 16, 32], [torch.float32, torch.bfloat16], ["post_norm", "pre_norm"])
def test_a_mean_that_is_left_is_pooled(side, dtype, wiring):
    model, x = vit(**DEEP | {"side": side, "wiring": wiring}).to(dtype), images(2, side=side).to(dtype)
    assert model(x).isfinite().all()
    for tau, blocks in ((0.5, EVERY), (0.9, EVERY), (1.0, ALL_BUT_LAST)):
        with removed(model, tau, blocks):
            assert model(x).isfinite().all()


@torch.no_grad()
def test_collapsed_tokens_are_pooled():
    model, x = vit(**DEEP | {"depth": 40}, weights="xavier"), images(2, side=16)
    assert ds.metrics.t_div(model.transformer(model.tokens(x))).max() < 1e-6
    assert model(x).isfinite().all()


@torch.no_grad()
def test_a_final_norm_keeps_the_pooled_vector_off_the_floor():
    """Each token is scaled by a number of its own, so the mean is no longer zero: little, but far from rounding."""
    model, x = vit(**DEEP, wiring="pre_norm"), images(2, side=16)
    with removed(model):
        X = []
        model.pool.register_forward_pre_hook(lambda _, args: X.append(args[0].double()))
        model(x)
    assert 1e-3 < X[0].mean(1).norm() / X[0].norm() * 16**0.5 < 0.1


# Table 1


def test_the_preset_has_the_sizes_of_table_1():
    model = vit("yu2023")
    design = model.transformer.design
    assert (design.depth, design.d, design.q, design.h, design.d // design.h) == (80, 192, 384, 8, 24)
    assert (design.wiring, design.activation, design.attention) == ("post_norm", "relu", "softmax")
    assert len(model.transformer) == 80
    block = model.transformer.blocks[79]
    assert block.attention.W.weight.shape == (192, 192)
    assert block.ffn.W_1.weight.shape == (384, 192)
    assert model.embed.kernel_size == model.embed.stride == (4, 4)
    with torch.no_grad():
        tokens = model.tokens(images(1, side=32))
    assert tokens.shape == (1, 65, 192)
    assert model.head.out_features == 10


def test_the_preset_can_be_laid_out_without_memory():
    with torch.device("meta"):
        model = vit("yu2023")
    block = 4 * 192**2 + 2 * 192 * 384 + 4 * 192  # W_q W_k W W_O, W_1 W_2, two norms
    rest = 3 * 16 * 192 + 192 + 65 * 192 + 192 + 192 * 10 + 10  # patches, positions, cls, head
    assert sum(p.numel() for p in model.parameters()) == 80 * block + rest


def test_keywords_override_a_preset():
    design = vit("yu2023", depth=2, wiring="pre_norm").transformer.design
    assert (design.depth, design.d, design.wiring) == (2, 192, "pre_norm")


def test_without_a_preset_the_defaults_of_the_design_hold():
    with torch.device("meta"):
        design = vit().transformer.design
    assert (design.depth, design.d, design.h) == (12, 256, 8)


# wrong use

WRONG = {
    "patch does not tile": ({"patch": 5}, r"patches must tile the image; got side 12 and patch 5\."),
    "patch above side": ({"patch": 24}, r"patches must tile the image; got side 12 and patch 24\."),
    "patch 0": ({"patch": 0}, r"patch must be a whole number, 1 or more; got 0\."),
    "side -4": ({"side": -4}, r"side must be a whole number, 1 or more; got -4\."),
    "channels 0": ({"channels": 0}, r"channels must be a whole number, 1 or more; got 0\."),
    "classes 0": ({"classes": 0}, r"classes must be a whole number, 1 or more; got 0\."),
}


@over("case", WRONG)
def test_a_wrong_size_is_refused_with_its_value(case):
    choices, reason = WRONG[case]
    with pytest.raises(UsageError, match=f"^vit: {reason}"):
        vit(**SMALL | choices)


@over(
    "choices, reason",
    [
        ({"preset": "yu203"}, r"no preset is called 'yu203'\. Did you mean yu2023"),
        ({"preset": "base"}, r"no preset is called 'base'\. Known: yu2023"),
        ({"pooling": "atention"}, r"no pooling is called 'atention'\. Did you mean attention"),
        ({"pooling": "gem"}, r"no pooling is called 'gem'\. Known: attention, cls, mean"),
        ({"alfa": 2.0}, r"no choice is called 'alfa'\. Did you mean alpha"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(choices, reason):
    with pytest.raises(UnknownNameError, match=f"^vit: {reason}"):
        vit(**SMALL | choices)


def test_a_wrong_design_is_refused_as_elsewhere():
    with pytest.raises(UsageError, match="heads must divide the width; got d = 8 and h = 3"):
        vit(**SMALL | {"h": 3})


@over("shape", [(2, 3, 8, 8), (2, 1, 12, 12), (3, 12, 12), (2, 3, 12, 16), (12, 12)])
def test_images_of_another_shape_are_refused(shape):
    got = ", ".join(map(str, shape))
    with pytest.raises(ShapeError, match=rf"^vit: images must be \(B, 3, 12, 12\); got \({got}\)\. Resize"):
        vit(**SMALL)(torch.randn(shape))


# the scan


@crossed("wiring, pooling", sorted(TABLES["wiring"]), ["cls", "mean", "attention"])
def test_a_scan_reads_a_vit(pooling, wiring):
    model, x = vit(**SMALL, pooling=pooling, wiring=wiring), images(4)
    scan = ds.scan(model, x)
    X = model.tokens(x)
    assert (scan.depth, scan.tokens, scan.width) == (2, X.shape[1], 8)
    streams = streams_of(model.transformer.beginning(X))
    truth = [ds.metrics.t_sim(streams[0]).mean()]
    for block in model.transformer:
        streams = streams_of(block(*streams))
        truth.append(ds.metrics.t_sim(streams[0]).mean())
    torch.testing.assert_close(scan["t_sim"], torch.stack(truth).detach(), rtol=1e-4, atol=1e-6, check_dtype=False)
    if wiring == "post_norm":
        assert scan.placement == "post"
        assert scan.step_names == ["attention", "attention_norm", "ffn", "ffn_norm"]
    if wiring == "pre_norm":
        assert scan.placement == "pre"
        assert scan.step_names == ["attention", "ffn"]
