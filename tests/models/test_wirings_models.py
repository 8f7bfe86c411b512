"""Whole models of every wiring: no leak, gradients, trials, what a scan sees, and other people's code."""

import copy

import pytest
import torch

import depthscope as ds
from depthscope.models import Design, classic, vit
from depthscope.models import trials as module
from depthscope.models.design import shelves, streams_of
from depthscope.models.trials import chain, draw_trials
from depthscope.registry import TABLES
from loops import over

shelves()
WIRINGS = sorted(TABLES["wiring"])
each_wiring = over("wiring", WIRINGS)


def shaken(model):
    """Norms and scalars away from the start, where some blocks are the identity."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or "wiring" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@each_wiring
def test_a_causal_model_does_not_see_the_future(wiring):
    model, X = shaken(classic(5, 16, 2, wiring=wiring, causal=True, output=True)), torch.randn(2, 9, 16)
    before = model(X)
    for j in range(9):
        changed = X.clone()
        changed[:, j] = torch.randn(2, 16)
        after = model(changed)
        assert torch.equal(after[:, :j], before[:, :j])
        assert not torch.equal(after[:, j], before[:, j])
        if j < 8:
            assert not torch.allclose(after[:, 8], before[:, 8])


@each_wiring
def test_gradients_reach_every_parameter_of_a_model(wiring):
    model = shaken(classic(4, 16, 2, wiring=wiring, output=True))
    (model(torch.randn(2, 5, 16)) * torch.randn(2, 5, 16)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and (parameter.grad != 0).any(), name


@over("wiring", ["rezero", "skip_init", "layer_scale", "hyper_connections"])
def test_at_the_start_gradients_reach_what_opens_the_branches(wiring):
    model = classic(3, 16, 2, wiring=wiring)
    (model(torch.randn(2, 5, 16)) * torch.randn(2, 5, 16)).sum().backward()
    opening = {"rezero": ("a",), "skip_init": ("a_1", "a_2"), "layer_scale": ("g_1", "g_2")}
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[-1] in opening.get(wiring, ("A", "B", "W_a", "w_b")):
            assert (parameter.grad != 0).any(), name


@each_wiring
def test_a_seed_repeats_a_model_and_its_state_dict_rebuilds_it(wiring):
    X, outputs = torch.randn(2, 5, 16), []
    for _ in range(2):
        torch.manual_seed(5)
        model = classic(3, 16, 2, wiring=wiring, output=True, bias=True)
        outputs.append(model(X))
    assert torch.equal(*outputs)
    other = classic(3, 16, 2, wiring=wiring, output=True, bias=True)
    other.load_state_dict(shaken(model).state_dict())
    assert torch.equal(other(X), model(X))
    assert torch.equal(copy.deepcopy(model)(X), model(X))


@each_wiring
def test_a_vit_of_every_wiring_learns(wiring):
    model = vit(depth=4, d=16, h=2, side=8, wiring=wiring, output=True, weights="xavier")
    images, labels = torch.randn(8, 3, 8, 8), torch.arange(8) % 4
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(15):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


# trials


@each_wiring
@over("middle", [(), (2,)])
def test_a_chain_of_every_wiring_is_a_loop_over_models(wiring, middle, monkeypatch):
    drawn = []

    def draw(block, trials):
        shaken(block)
        drawn.append((block, draw_trials(block, trials)))
        return drawn[-1][1]

    monkeypatch.setattr(module, "draw_trials", draw)
    X, design = torch.randn(3, *middle, 5, 12, dtype=torch.float64), Design(4, 12, 3, q=7, wiring=wiring, alpha=0.7)
    found = list(chain(design, X, pattern=True))
    assert not any(value.requires_grad for states in found for value in states.values())
    beginning = TABLES["wiring"][wiring].beginning(design).double()
    for trial in range(3):
        streams = streams_of(beginning(X[trial]))
        for (block, weights), states in zip(drawn, found, strict=True):
            twin = copy.deepcopy(block)
            twin.load_state_dict({name: value[trial] for name, value in weights.items()})
            steps = {"X": streams[0], **twin.steps(*streams)}
            for letter, state in steps.items():
                torch.testing.assert_close(states[letter][trial], state)
            P = twin.attention.pattern(steps[twin.wiring.reads])
            torch.testing.assert_close(states["P"][trial], P)
            streams = streams_of(twin(*streams))
            torch.testing.assert_close(states["out"][trial], streams[0])


def test_a_remedy_between_blocks_acts_on_the_main_stream():
    X = torch.randn(3, 5, 12)
    for wiring in ("resi_dual", "hyper_connections"):
        found = list(chain(Design(2, 12, 3, wiring=wiring), X, between=lambda Y: Y - Y.mean(-2, keepdim=True)))
        torch.testing.assert_close(found[1]["X"].mean(-2), torch.zeros_like(found[1]["X"].mean(-2)), atol=1e-5, rtol=0)


# the scan

PLACEMENT = {
    **dict.fromkeys(("post_norm", "deep_norm", "depth_scaled", "even_steps", "resi_dual"), "post"),
    **dict.fromkeys(("pre_norm", "skip_init", "layer_scale", "layer_norm_scaling", "sub_ln"), "pre"),
    **dict.fromkeys(("sandwich", "peri_ln"), "sandwich"),
    **dict.fromkeys(("admin", "hyper_connections"), "unknown"),  # vector weights and mixed streams are not followed
    "b2t": "mixed: post x 24, none x 12",  # the block's input is a third branch
    "mix_ln": "mixed: pre x 18, post x 6",
    "rezero": "none",
}


@each_wiring
def test_a_scan_places_the_norms_or_says_that_it_cannot(wiring):
    model, X = classic(12, 32, 4, wiring=wiring, output=True), torch.randn(3, 10, 32)
    scan = ds.scan(model, X)
    assert (scan.depth, scan.tokens, scan.width) == (12, 10, 32)
    assert scan.samples == (12 if wiring == "hyper_connections" else 3)
    assert scan.placement == PLACEMENT.get(wiring, "a wiring of tomorrow")
    assert bool([note for note in scan.notes if "could not be followed" in note]) == (scan.placement == "unknown")
    assert ((scan["t_sim"] >= 0) & (scan["t_sim"] <= 1)).all()
    assert scan.residual_scale == pytest.approx((2 * 12) ** 0.25 if wiring == "deep_norm" else 1.0)
    assert str(scan)


@pytest.mark.long
@over("weights", ["unit_gain"], long=["xavier"])
def test_at_depth_24_remedies_keep_tokens_apart_where_post_norm_does_not(weights):
    X, t_sim = torch.randn(4, 32, 64), {}
    for wiring in ("post_norm", "depth_scaled", "rezero", "deep_norm", "skip_init", "layer_scale"):
        t_sim[wiring] = ds.scan(classic(24, 64, 4, wiring=wiring, weights=weights), X)["t_sim"][-1].item()
    assert t_sim.pop("post_norm") > 0.95
    assert max(t_sim.values()) < 0.5, t_sim


# x-transformers


def encoder(model, **options):
    """Its Encoder with the matrices and norms of a model: blocks are pairs of layers ([norms], branch, residual)."""
    x = pytest.importorskip("x_transformers")
    design = model.design
    theirs = x.Encoder(
        dim=design.d,
        depth=design.depth,
        heads=design.h,
        attn_dim_head=design.d // design.h,
        ff_mult=4,
        ff_no_bias=True,
        ff_custom_activation=torch.nn.ReLU(),
        attn_flash=True,
        **options,
    )
    with torch.no_grad():
        for i, block in enumerate(model):
            attention, ffn = (theirs.layers[2 * i + j][1] for j in (0, 1))
            attention, ffn = getattr(attention, "fn", attention), getattr(ffn, "fn", ffn)  # LayerScale wraps them
            pairs = [(attention.to_q, "W_q"), (attention.to_k, "W_k"), (attention.to_v, "W"), (attention.to_out, "W_O")]
            for matrix, letter in pairs:
                matrix.weight.copy_(getattr(block.attention, letter).weight)
            first, last = (m for m in ffn.modules() if isinstance(m, torch.nn.Linear))
            first.weight.copy_(block.ffn.W_1.weight), last.weight.copy_(block.ffn.W_2.weight)
    return theirs


@over(
    "wiring, options",
    [
        ("pre_norm", {}),
        ("sandwich", {"sandwich_norm": True}),
        ("post_norm", {"pre_norm": False}),
        ("deep_norm", {"pre_norm": False, "scale_residual_constant": (2 * 3) ** 0.25}),
        ("layer_scale", {"use_layerscale": True, "layerscale_init_value": 0.1}),
    ],
)
def test_x_transformers_agrees(wiring, options):
    model, X = classic(3, 16, 2, wiring=wiring, output=True), torch.randn(2, 5, 16)
    torch.testing.assert_close(model(X), encoder(model, **options)(X), rtol=1e-4, atol=1e-5)
