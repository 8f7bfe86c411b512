"""Batched trials against a Python loop over copies of the block."""

import copy

import pytest
import torch

from depthscope.models import Block, Design
from depthscope.models import trials as module
from depthscope.models.design import shelves
from depthscope.models.trials import chain, draw_trials, run_trials
from depthscope.registry import TABLES
from loops import over

shelves()
TRIALS = 3
READ_BY_ATTENTION = {"post_norm": "X", "pre_norm": "X_hat"}
each_wiring = over("wiring", sorted(READ_BY_ATTENTION))


def block_of(**choices):
    """A block whose norms are not the identity."""
    block = Block(Design(1, 12, **{"h": 3, "q": 7} | choices)).double()
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return block


def copies(block, weights):
    for trial in range(TRIALS):
        twin = copy.deepcopy(block)
        twin.load_state_dict({name: value[trial] for name, value in weights.items()})
        yield twin


def check_against_a_loop(block, X, letter):
    weights = draw_trials(block, TRIALS)
    found = run_trials(block, weights, X, pattern=True)
    for trial, twin in enumerate(copies(block, weights)):
        with torch.no_grad():
            truth = {"X": X[trial], **twin.steps(X[trial]), "out": twin(X[trial])}
            truth["P"] = twin.attention.pattern(truth[letter])
        assert list(found) == list(truth)
        for name, state in truth.items():
            torch.testing.assert_close(found[name][trial], state, msg=lambda text, name=name: f"{name}: {text}")


@each_wiring
@over("middle", [(), (2,), (2, 4)])
def test_trials_are_a_loop_over_copies(wiring, middle):
    X = torch.randn(TRIALS, *middle, 5, 12, dtype=torch.float64)
    check_against_a_loop(block_of(wiring=wiring, alpha=0.7), X, READ_BY_ATTENTION[wiring])


@pytest.mark.filterwarnings("ignore:sinkhorn attention")
@each_wiring
@over("attention", sorted(TABLES["attention"]))
@over("causal", [False, True])
def test_trials_of_every_formula_are_a_loop_over_copies(wiring, attention, causal):
    block = block_of(wiring=wiring, attention=attention, causal=causal, bias=True, output=True, activation="swiglu")
    check_against_a_loop(block, torch.randn(TRIALS, 5, 12, dtype=torch.float64), READ_BY_ATTENTION[wiring])


def test_without_a_pattern_no_attention_matrix_is_kept():
    block = block_of()
    found = run_trials(block, draw_trials(block, TRIALS), torch.randn(TRIALS, 5, 12, dtype=torch.float64))
    assert list(found) == ["X", "Y_1", "Y_2", "Y_3", "Y_4", "out"]


@over("law", sorted(TABLES["weight law"]))
def test_every_trial_has_matrices_of_its_own_and_the_same_norms(law):
    block = block_of(weights=law, bias=True, output=True, activation="swiglu")
    weights = draw_trials(block, TRIALS)
    assert set(weights) == set(block.state_dict())
    own = dict(block.named_parameters())
    for name, value in weights.items():
        assert value.shape == (TRIALS, *own[name].shape)
        assert value.dtype == torch.float64
        if "norm" in name:
            assert torch.equal(value, own[name].expand_as(value))
        elif name.endswith("weight"):
            assert len({tuple(row) for row in value.flatten(1).tolist()}) == TRIALS, name


@over("law, variance", [("unit_gain", 1 / 12), ("paper_literal", 3 / 12), ("xavier", 1 / 12)])
def test_trials_follow_the_law_of_the_block(law, variance):
    W = draw_trials(block_of(weights=law), 200)["attention.W.weight"]  # 28,800 entries: one standard error is 0.8 %
    assert W.var().item() == pytest.approx(variance, rel=0.04)


def test_the_block_is_left_alone_and_a_seed_repeats_the_trials():
    block = block_of(bias=True)
    before = copy.deepcopy(block.state_dict())
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(draw_trials(block, TRIALS))
        run_trials(block, draws[-1], torch.randn(TRIALS, 5, 12, dtype=torch.float64))
    assert all(torch.equal(draws[0][name], draws[1][name]) for name in before)
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in block.parameters())


def test_nothing_asks_for_gradients():
    block = block_of()
    weights = draw_trials(block, TRIALS)
    found = run_trials(block, weights, torch.randn(TRIALS, 5, 12, dtype=torch.float64), pattern=True)
    assert not any(value.requires_grad for value in (*weights.values(), *found.values()))


# block after block


@pytest.fixture
def drawn(monkeypatch):
    """The blocks and weights that a chain draws, in order."""
    seen = []

    def draw(block, trials):
        seen.append((block, draw_trials(block, trials)))
        return seen[-1][1]

    monkeypatch.setattr(module, "draw_trials", draw)
    return seen


@each_wiring
@over("between", [None, lambda Y: Y - 0.5 * Y.mean(-2, keepdim=True)])
@over("middle", [(), (2,)])
def test_a_chain_is_a_loop_over_transformers(wiring, between, middle, drawn):
    drawn.clear()
    X = torch.randn(TRIALS, *middle, 5, 12)
    design = Design(3, 12, 3, q=7, wiring=wiring)
    found = list(chain(design, X, pattern=True, between=between))
    assert len(found) == len(drawn) == 3
    twins = [list(copies(block, weights)) for block, weights in drawn]
    for trial in range(TRIALS):
        Y = X[trial]
        for states, row in zip(found, twins, strict=True):
            torch.testing.assert_close(states["X"][trial], Y, rtol=1e-4, atol=1e-5)
            with torch.no_grad():
                out = row[trial](Y)
            torch.testing.assert_close(states["out"][trial], out, rtol=1e-4, atol=1e-5)
            Y = out if between is None else between(out)


def test_every_block_of_a_chain_has_its_own_weights(drawn):
    list(chain(Design(3, 12, 3), torch.randn(TRIALS, 5, 12)))
    matrices = torch.stack([weights["attention.W.weight"] for _, weights in drawn]).flatten(2).flatten(0, 1)
    assert len({tuple(row) for row in matrices.tolist()}) == 3 * TRIALS


def test_every_block_of_a_chain_is_told_its_place(monkeypatch):
    places, wiring = [], TABLES["wiring"]["post_norm"]

    class Told(wiring):
        def __init__(self, design, index):
            super().__init__(design, index)
            places.append(index)

    monkeypatch.setitem(TABLES["wiring"], "post_norm", Told)
    list(chain(Design(3, 12, 3), torch.randn(TRIALS, 5, 12)))
    assert places == [1, 2, 3]


def test_a_chain_works_in_the_precision_of_its_input():
    X = torch.randn(TRIALS, 5, 12, dtype=torch.float64)
    assert next(chain(Design(2, 12, 3), X))["out"].dtype == torch.float64
