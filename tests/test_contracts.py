"""Every registered metric keeps what it declares about itself, also the one that is added tomorrow."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depthscope import metrics
from depthscope.errors import MaskError, ShapeError
from depthscope.metrics.chunks import chunks, energies
from depthscope.metrics.pattern import pattern_of
from depthscope.registry import TABLES
from loops import over

METRICS = TABLES["metric"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
each_metric = over("name", sorted(METRICS))
quick = settings(max_examples=25, deadline=None, derandomize=True)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@st.composite
def inputs(draw):
    """A batch of states X -> Y and the attention heads P between them: X, Y (b, n, d), P (b, h, n, n)."""
    b, h, n, d = (draw(st.integers(low, high)) for low, high in [(1, 3), (1, 3), (2, 6), (1, 5)])
    offset, temperature = draw(st.sampled_from([0.0, 1.0, 30.0])), draw(st.sampled_from([0.0, 0.3, 1.0, 3.0]))
    torch.manual_seed(draw(st.integers(0, 10_000)))
    causal = torch.ones(n, n).triu(1).bool() & draw(st.booleans())
    P = (temperature * randn(b, h, n, n)).masked_fill(causal, -torch.inf).softmax(-1)
    return {"X": randn(b, n, d) + offset, "Y": 2 * randn(b, n, d) - offset, "P": P}


def some_input():
    return {"X": randn(2, 5, 4) + 1, "Y": randn(2, 5, 4), "P": randn(2, 3, 5, 5).softmax(-1)}


def measure(name, data, mask=None):
    """The parts of a metric, stacked in front: (parts, b) or (parts, b, h)."""
    f = METRICS[name]
    found = f(*(data[taken] for taken in f.facts.takes), mask=mask)
    parts = found if isinstance(found, tuple) else (found,)
    assert len(parts) == len(f.facts.parts)
    return torch.stack(parts)


def agree(found, expected, tolerance=1e-9, of=""):
    """of: the metric, where one test walks over all of them on the same inputs."""
    said = lambda text: f"{of}: {text}"  # noqa: E731
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=said)


def token_order(data):
    order = torch.randperm(data["X"].shape[-2])
    return {"X": data["X"][:, order], "Y": data["Y"][:, order], "P": data["P"][:, :, order][..., order]}, None


def scale(data):
    return data | {"X": 3.7 * data["X"], "Y": 3.7 * data["Y"]}, None


def scale_of_x(data):
    return data | {"X": 3.7 * data["X"]}, None


def scale_of_each_token(data):
    return data | {"X": data["X"] * (torch.rand(data["X"].shape[:2])[..., None] + 0.1)}, None


def rotation(data):
    Q = torch.linalg.qr(randn(data["X"].shape[-1], data["X"].shape[-1])).Q
    return data | {"X": data["X"] @ Q, "Y": data["Y"] @ Q}, None


def padding(data, garbage=100.0):
    """Two more tokens that no token looks at, and that look at anything themselves."""
    b, n, d = data["X"].shape
    states = {name: torch.cat([data[name], garbage * randn(b, 2, d)], dim=1) for name in ("X", "Y")}
    rows = randn(b, data["P"].shape[1], 2, n + 2).softmax(-1)
    P = torch.cat([torch.nn.functional.pad(data["P"], (0, 2)), rows], dim=-2)
    return states | {"P": P}, (torch.arange(n + 2) < n).expand(b, n + 2)


def by_formula(facts, data, mask):
    """What a scan computes: the formula on chunks of a state, on the energies of a step, on parts of a pattern."""
    if facts.kind == "step":
        found = [facts.formula(energies(data["X"], mask), energies(data["Y"], mask))]
    elif facts.kind == "state":
        found = [facts.formula(chunk) for chunk in chunks(data["X"], mask, where="test")]
    else:
        pattern, _ = pattern_of(data["P"], mask=mask, where="test", trusted=True)
        tokens = (data["X"],) if "X" in facts.takes else ()
        found = [facts.formula(part, *tokens) for part in pattern.pieces()]
        found = [value for value, _ in found] if facts.estimated else found
    columns = zip(*(value if isinstance(value, tuple) else (value,) for value in found), strict=True)
    shape = data["P"].shape[:2] if facts.kind == "attention" else data["X"].shape[:1]
    return torch.stack([torch.cat(column).reshape(shape) for column in columns])


CHANGES = {
    "token order": token_order,
    "scale": scale,
    "scale of X": scale_of_x,
    "scale of each token": scale_of_each_token,
    "rotation": rotation,
    "padding": padding,
}


@quick
@given(data=inputs())
def test_values_stay_within_the_declared_bounds(data):
    for name in sorted(METRICS):
        low, high = METRICS[name].facts.bounds
        found = measure(name, data)
        assert not found.isnan().any(), name
        assert (found >= low - 1e-9).all(), name
        assert (found <= high + 1e-9).all(), name


@each_metric
def test_every_declared_invariance_is_known(name):
    unknown = set(METRICS[name].facts.invariant) - CHANGES.keys()
    assert not unknown, f"{name} declares {unknown}: add that to CHANGES"


@over("change", sorted(CHANGES))
@quick
@given(data=inputs())
def test_the_declared_invariance_holds(change, data):
    """Inputs are drawn and changed once for all metrics that declare it."""
    changed, mask = CHANGES[change](data)
    for name in sorted(METRICS):
        if change in METRICS[name].facts.invariant:
            agree(measure(name, changed, mask), measure(name, data), of=name)


@over("change", CHANGES)
def test_each_change_does_change_the_tokens(change):
    data = some_input()
    changed, mask = CHANGES[change](data)
    assert changed["X"].shape != data["X"].shape or (changed["X"] != data["X"]).any(-1).sum() >= 2
    assert (mask is not None) == (change == "padding")


@each_metric
@over("garbage", [1.0, 1e6, torch.nan, torch.inf])
def test_padding_changes_no_metric(name, garbage):
    data = some_input()
    padded, mask = padding(data, garbage)
    agree(measure(name, padded, mask), measure(name, data), tolerance=1e-12)


@quick
@given(data=inputs())
def test_a_batch_is_its_items(data):
    for name in sorted(METRICS):
        found = measure(name, data)
        for i in range(len(data["X"])):
            agree(found[:, i], measure(name, {key: value[i] for key, value in data.items()}), of=name)


@quick
@given(data=inputs(), padded=st.booleans())
def test_the_formula_on_what_its_kind_shares_is_the_metric(data, padded):
    data, mask = padding(data) if padded else (data, None)
    for name in sorted(METRICS):
        facts = METRICS[name].facts
        if facts.formula:
            agree(by_formula(facts, data, mask), measure(name, data, mask), tolerance=1e-12, of=name)


@each_metric
@over("dtype", DTYPES)
def test_any_float_dtype_gives_a_float64_result(name, dtype):
    data = some_input()
    found = measure(name, {key: value.to(dtype) for key, value in data.items()})
    assert found.dtype == torch.float64
    agree(found, measure(name, data), tolerance=10 * torch.finfo(dtype).eps)


@each_metric
def test_gradients_and_arguments_are_left_alone(name):
    data = some_input()
    before = {key: value.clone() for key, value in data.items()}
    padded, mask = padding({key: value.requires_grad_() for key, value in data.items()})
    assert not measure(name, data).requires_grad
    assert not measure(name, padded, mask).requires_grad
    assert all(torch.equal(data[key], before[key]) for key in data)


@each_metric
def test_the_docstring_starts_with_the_summary_and_cites_a_formula(name):
    f = METRICS[name]
    lines = f.__doc__.splitlines()
    assert lines[0].strip() == f.facts.summary
    assert f.facts.summary.endswith(".")
    assert re.search(r"\n\n *\S.* = .*\n\n", f.__doc__), "no formula in a paragraph of its own"
    assert re.search(r"\([^)]*n, [dnm]\)", f.__doc__), "no shape"


@each_metric
def test_the_facts_say_what_the_metric_is(name):
    f = METRICS[name]
    assert f.facts.name == name == f.__name__
    assert getattr(metrics, name) is f
    assert set(f.facts.takes) <= {"X", "Y", "P"}
    assert f.facts.kind == ("step" if "Y" in f.facts.takes else "attention" if "P" in f.facts.takes else "state")
    assert len(set(f.facts.parts)) == len(f.facts.parts) >= 1
    assert f.facts.bounds[0] < f.facts.bounds[1]
    assert f.facts.formula or not f.facts.default, "a scan measures by the formula"
    if f.facts.estimated:
        value, residual = f(randn(2, 5, 5).softmax(-1), return_residual=True)
        assert value.shape == residual.shape == (2,)


def test_the_shelf_shows_the_registered_metrics():
    assert dir(metrics) == sorted(METRICS)
    with pytest.raises(AttributeError, match="no attribute 't_same'"):
        _ = metrics.t_same


WRONG = {
    "one token": (ShapeError, r"n >= 2 tokens; got .*1, [14]\)", lambda x: x[:1], lambda p: p[:, :1, :1] ** 0),
    "no token axis": (ShapeError, r"must .* got .*\(4,\)", lambda x: x[0], lambda p: p[0, 0, :4]),
    "integers": (ShapeError, r"must .*floating point.* got torch.int64", lambda x: x.long(), lambda p: p.long()),
}


@each_metric
@over("case", WRONG)
def test_wrong_input_is_refused_with_the_reason(name, case):
    error, reason, change_state, change_attention = WRONG[case]
    X, P = randn(5, 4), randn(3, 5, 5).softmax(-1)
    data = {"X": change_state(X), "Y": change_state(X), "P": change_attention(P)}
    with pytest.raises(error, match=rf"^\w+: [XP] .*{reason}|^\w+: [XP] {reason}"):
        measure(name, data)


WRONG_MASKS = {
    "of wrong shape": (r"mask must have one entry for each token", [[1, 1, 1, 1]] * 2),
    "all padding": (r"every sequence needs tokens that are not masked; sequence .* is all padding", [[0] * 5, [1] * 5]),
    "one token": (r"every sequence needs two tokens that are not masked", [[1] * 5, [0, 0, 1, 0, 0]]),
}


@each_metric
@over("case", WRONG_MASKS)
def test_a_wrong_mask_is_refused_with_the_reason(name, case):
    reason, mask = WRONG_MASKS[case]
    data = some_input()
    with pytest.raises(MaskError, match=rf"^\w+: {reason}"):
        measure(name, data, torch.tensor(mask))
