"""A stack of blocks, its design and its errors, symmetries of the whole, and what a scan sees of it."""

import copy
import inspect
import math
import pickle
import re

import pytest
import torch

import depthscope as ds
from depthscope.errors import DepthscopeError, UnknownNameError, UsageError
from depthscope.models import Block, Design, Transformer, classic
from depthscope.models.design import TABLE_OF, shelves, streams_of
from depthscope.registry import TABLES
from loops import crossed, over

shelves()
WIRINGS, ATTENTIONS, ACTIVATIONS = (sorted(TABLES[t]) for t in ("wiring", "attention", "activation"))
each_wiring = over("wiring", WIRINGS)
each_attention = over("attention", ATTENTIONS)
each_activation = over("activation", ACTIVATIONS)


# the stack


def test_a_transformer_is_its_blocks_in_order():
    model = classic(5, 8, 2)
    assert len(model) == model.design.depth == 5
    assert all(isinstance(block, Block) for block in model)
    assert list(model) == list(model.blocks)
    X = torch.randn(2, 4, 8)
    Y = X
    for block in model:
        Y = block(Y)
    assert torch.equal(model(X), Y)


def test_classic_takes_depth_width_and_heads_by_place():
    parameters = inspect.signature(classic).parameters
    assert [(p.name, p.default) for p in parameters.values()][:3] == [("depth", 12), ("d", 256), ("h", 8)]
    assert [p.kind for p in parameters.values()][3:] == [inspect.Parameter.VAR_KEYWORD]
    assert classic(3, 16, 4, q=10, alpha=0.5).design == Design(depth=3, d=16, h=4, q=10, alpha=0.5)


def test_the_defaults_are_algorithm_1_in_the_setting_of_the_theory():
    design = Design()
    assert (design.wiring, design.attention, design.activation) == ("post_norm", "softmax", "relu")
    assert (design.alpha, design.weights, design.causal) == (1.0, "unit_gain", False)
    assert (design.output, design.bias, design.ffn_width) == (False, False, 4 * design.d)


def test_blocks_have_their_own_weights():
    first, second = classic(2, 8, 2)
    for (name, one), (_, two) in zip(first.matrices(), second.matrices(), strict=True):
        assert not torch.equal(one.weight, two.weight), name


@each_wiring
def test_any_leading_axes_and_any_float_dtype(wiring):
    model = classic(2, 8, 2, wiring=wiring)
    X = torch.randn(2, 3, 5, 8)
    Y = model(X)
    torch.testing.assert_close(model(X[1, 2]), Y[1, 2])
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 0.1)):
        torch.testing.assert_close(model.to(dtype)(X.to(dtype)).float(), Y, rtol=tolerance, atol=tolerance)
        model = model.float()


@each_activation
def test_a_model_can_be_copied_and_pickled(activation):
    model, X = classic(2, 8, 2, activation=activation, wiring="pre_norm"), torch.randn(4, 8)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(X), model(X))
        assert twin.design == model.design


def test_a_causal_transformer_does_not_see_the_future():
    model, X = classic(3, 8, 2, causal=True, wiring="pre_norm"), torch.randn(2, 6, 8)
    changed = X.clone()
    changed[:, 4] += 1
    assert torch.equal(model(changed)[:, :4], model(X)[:, :4])


# wrong designs

WRONG = {
    "d not divisible by h": (
        {"d": 10, "h": 4},
        r"heads must divide the width; got d = 10 and h = 4\. Try d = (8|12)\.",
    ),
    "d below h": ({"d": 3, "h": 8}, r"heads must divide the width; got d = 3 and h = 8\. Try d = 8\."),
    "alpha 0": ({"alpha": 0}, r"alpha must be positive and finite; got 0\."),
    "alpha -1": ({"alpha": -1}, r"alpha must be positive and finite; got -1\."),
    "alpha inf": ({"alpha": math.inf}, r"alpha must be positive and finite; got inf\."),
    "alpha nan": ({"alpha": math.nan}, r"alpha must be positive and finite; got nan\."),
    "depth 0": ({"depth": 0}, r"depth must be a whole number, 1 or more; got 0\."),
    "depth 2.5": ({"depth": 2.5}, r"depth must be a whole number, 1 or more; got 2\.5\."),
    "d 0": ({"d": 0}, r"\bd must be a whole number, 1 or more; got 0\."),
    "q 0": ({"q": 0}, r"\bq must be a whole number, 1 or more; got 0\."),
    "h 0": ({"h": 0}, r"\bh must be a whole number, 1 or more; got 0\."),
}


@over("case", WRONG)
def test_a_wrong_size_is_refused_with_its_value(case):
    choices, reason = WRONG[case]
    with pytest.raises(UsageError, match=rf"^design: .*{reason}|^design: {reason}"):
        classic(**{"depth": 1, "d": 16, "h": 4} | choices)
    with pytest.raises(UsageError, match=reason):
        Design(**{"depth": 1, "d": 16, "h": 4} | choices)


def test_the_offered_width_is_a_good_one():
    for d in range(1, 30):
        for h in range(1, 10):
            try:
                Design(1, d, h)
            except UsageError as error:
                Design(1, int(re.search(r"Try d = (\d+)", str(error))[1]), h)


@over(
    "table, name, hint",
    [
        ("wiring", "post_nrom", "Did you mean post_norm or pre_norm"),
        ("wiring", "PreNorm", "Did you mean pre_norm"),
        ("attention", "softmx", "Did you mean softmax"),
        ("attention", "linear", "Known: gaussian, sigmoid, sinkhorn, softmax, uniform"),
        ("activation", "swiglue", "Did you mean swiglu"),
        ("weights", "xaver", "Did you mean xavier"),
        ("weights", "paper", "Did you mean paper_literal"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(table, name, hint):
    with pytest.raises(UnknownNameError, match=rf"^design: no {TABLE_OF[table]} is called '{name}'\. {hint}"):
        classic(1, 8, 2, **{table: name})


@over("keyword, hint", [("alfa", "alpha"), ("Wiring", "wiring"), ("atention", "attention")])
def test_an_unknown_keyword_is_answered_with_the_nearest(keyword, hint):
    with pytest.raises(UnknownNameError, match=rf"^classic: no choice is called '{keyword}'\. Did you mean {hint}"):
        classic(1, 8, 2, **{keyword: 1})


def test_wrong_designs_can_be_caught_as_depthscope_or_as_builtin_errors():
    for error in (DepthscopeError, ValueError):
        with pytest.raises(error, match="depth"):
            classic(0)
    for error in (DepthscopeError, LookupError):
        with pytest.raises(error, match="softmx"):
            classic(1, attention="softmx")


def test_a_design_cannot_be_changed_behind_the_models_back():
    with pytest.raises(AttributeError):
        classic(1, 8, 2).design.depth = 3


# symmetries


@crossed("wiring, attention, activation", WIRINGS, ATTENTIONS, ACTIVATIONS)
def test_permuting_tokens_permutes_outputs(wiring, attention, activation):
    model = classic(2, 8, 2, wiring=wiring, attention=attention, activation=activation, bias=True).double()
    X, order = torch.randn(2, 6, 8, dtype=torch.float64), torch.randperm(6)
    torch.testing.assert_close(model(X[:, order]), model(X)[:, order])


@pytest.mark.filterwarnings("ignore:sinkhorn attention")
@over("causal, n", [(False, 2), (True, 6)])
@crossed("wiring, attention, activation", WIRINGS, ATTENTIONS, ACTIVATIONS)
def test_equal_tokens_stay_equal(wiring, attention, activation, causal, n):
    """t_sim = 1 is invariant: P 1 = 1, and every other step works token by token."""
    choices = {"wiring": wiring, "attention": attention, "activation": activation, "causal": causal}
    model = Transformer(Design(3, 8, 2, bias=True, output=True, **choices)).double()
    Y = model(torch.randn(2, 1, 8, dtype=torch.float64).expand(2, n, 8))
    torch.testing.assert_close(Y, Y[:, :1].expand_as(Y), rtol=0, atol=1e-10)


# the scan


@crossed("wiring, attention", WIRINGS, ATTENTIONS)
def test_a_scan_names_the_steps_and_measures_the_states(wiring, attention):
    model, X = classic(3, 8, 2, wiring=wiring, attention=attention), torch.randn(4, 6, 8)
    scan = ds.scan(model, X)
    streams = streams_of(model.beginning(X))
    states = [streams[0]]
    for block in model:
        streams = streams_of(block(*streams))
        states.append(streams[0])
    truth = torch.stack([ds.metrics.t_div(state).mean() for state in states])
    torch.testing.assert_close(scan["t_div"], truth.detach().to(scan["t_div"].dtype), rtol=1e-4, atol=1e-9)
    assert scan.depth == 3
    assert scan.head_counts == [2, 2, 2]
    if wiring in STEPS:
        assert (scan.step_names, scan.placement) == STEPS[wiring]


STEPS = {
    "post_norm": (["attention", "attention_norm", "ffn", "ffn_norm"], "post"),
    "pre_norm": (["attention", "ffn"], "pre"),
}


@pytest.mark.filterwarnings("ignore:sinkhorn attention")
@each_attention
@over("causal", [False, True])
def test_a_scan_knows_whether_a_model_is_causal(attention, causal):
    found = ds.scan(classic(2, 8, 2, attention=attention, causal=causal), torch.randn(4, 6, 8)).causal
    # Sinkhorn divides by sums over columns, which later tokens take part in: its zeros are causal, what it does is not
    assert found is (None if attention == "sinkhorn" and causal else causal)
