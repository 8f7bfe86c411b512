"""Every remedy on the shelf keeps what it declares about itself, also the one that is added tomorrow."""

import itertools
import json
import re

import pytest
import torch
from ops import SHELF, B, D, N, arguments, build, tokens
from torch import Tensor
from torch.nn import functional as F

from depthscope import remedies
from depthscope.errors import CausalLeakError, MaskError, ShapeError, UnknownNameError, UsageError
from depthscope.remedies.fix import TOKEN_SITES
from depthscope.remedies.remedy import Remedy
from loops import over

GARBAGE = [0.0, 1e4, -3.0, torch.nan, torch.inf]


def variants(name: str) -> list[dict]:
    """Every combination of the named variants of a remedy, fixed and learned."""
    choices = dict(SHELF[name].choices)
    if "learnable" in arguments(name):
        choices["learnable"] = (False, True)
    return [dict(zip(choices, names, strict=True)) for names in itertools.product(*choices.values())]


each_remedy = over("name", sorted(SHELF))
each_variant = over("name, variant", [(name, v) for name in sorted(SHELF) for v in variants(name)])


def padded(X: Tensor, left: int, right: int, garbage: float) -> tuple[Tensor, Tensor]:
    """X with padding that holds anything, and the mask."""
    ends = [garbage * torch.ones(len(X), k, X.shape[-1], dtype=X.dtype) for k in (left, right)]
    mask = F.pad(torch.ones(X.shape[:2], dtype=torch.bool), (left, right), value=False)
    return torch.cat([ends[0], X, ends[1]], dim=1), mask


@each_remedy
def test_the_facts_are_declared(name):
    cls = SHELF[name]
    assert issubclass(cls, Remedy)
    assert cls.__name__ == name and getattr(remedies, name) is cls
    assert cls.at in TOKEN_SITES
    assert re.search(r"\b(19|20)\d\d\b", cls.source), "the source names a year"
    assert cls.off and set(cls.off) | set(cls.choices) | set(cls.learns) | set(cls.causal or {}) <= set(arguments(name))
    for argument, names in cls.choices.items():
        assert arguments(name)[argument].default == names[0], "the published variant comes first and is the default"
    assert set(cls.learns) == (set(cls.off) if "learnable" in arguments(name) else set())
    assert isinstance(build(name).causal_safe, bool)
    assert " = " in cls.__doc__.splitlines()[0], "the first line is the formula: depthscope ls prints it"
    assert not [k for k, a in arguments(name).items() if isinstance(a.default, bool) and k != "learnable"]


@each_variant
@over("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_shape_and_dtype_are_kept(name, variant, dtype):
    remedy, X = build(name, **variant), tokens(dtype=dtype)
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[0, 4:] = False
    exact = remedy(X.double()).detach()
    for Y in (remedy(X), remedy(X, mask=mask)):
        assert Y.shape == X.shape and Y.dtype == dtype and Y.isfinite().all()
    if dtype != torch.float64:  # only the result is rounded, not the work
        torch.testing.assert_close(
            remedy(X).double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps * float(exact.abs().max())
        )


@each_variant
def test_one_sequence_and_more_axes(name, variant):
    remedy, X = build(name, **variant), tokens()
    Y = remedy(X)
    torch.testing.assert_close(torch.stack([remedy(x) for x in X]), Y)
    torch.testing.assert_close(remedy(X.unsqueeze(1).expand(B, 3, N, D))[:, 2], Y)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    torch.testing.assert_close(torch.stack([remedy(x, mask=m) for x, m in zip(X, mask, strict=True)]), remedy(X, mask))


@over("n, with_mask", [(3, "mask")], long=[(3, "no mask"), (6, "mask"), (6, "no mask")])
@each_variant
def test_gradients_are_right(name, variant, with_mask, n):
    remedy, X = build(name, **variant).double(), tokens(n).requires_grad_()
    mask = None
    if with_mask == "mask":
        mask = torch.ones(B, n, dtype=torch.bool)
        mask[0, -2:] = mask[1, 0] = False
    values = dict(remedy.named_parameters())

    def run(X: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(remedy, dict(zip(values, parameters, strict=True)), (X, mask))

    assert torch.autograd.gradcheck(run, (X, *values.values()))
    if values:
        assert all(g.abs().max() > 0 for g in torch.autograd.grad(remedy(X).square().sum(), values.values()))


@each_variant
@over("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_switched_off_it_is_the_identity(name, variant, dtype):
    fixed = {"learnable": False} if "learnable" in arguments(name) else {}
    remedy, X = build(name, **SHELF[name].off | variant | fixed), tokens(dtype=dtype)
    assert remedy(X) is X
    assert torch.equal(remedy(X, mask=torch.ones(B, N, dtype=torch.bool)), X)
    assert remedy.is_off and remedy.causal_safe, "switched off it shows no future: causal_safe must say so"
    assert not build(name, **variant).is_off, "the default does something"


@each_variant
@over("left, right", [(0, 2), (2, 0), (1, 3)])
def test_padding_does_not_matter(name, variant, left, right):
    remedy, X = build(name, **variant), tokens()
    found = []
    for garbage in GARBAGE:
        Z, mask = padded(X, left, right, garbage)
        Y = remedy(Z, mask=mask)
        found.append(Y[:, left : left + N])
        outside = ~mask.unsqueeze(-1).expand_as(Z)
        assert torch.equal(Y[outside].nan_to_num(7.0), Z[outside].nan_to_num(7.0)), "padding leaves as it came"
    assert all(torch.equal(Y, found[0]) for Y in found), "bit for bit, whatever the padding holds"
    torch.testing.assert_close(found[0], remedy(X), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(remedy(X, mask=torch.ones(B, N)), remedy(X), rtol=1e-12, atol=1e-12)


@each_variant
def test_gradients_pass_by_padding(name, variant):
    remedy, X = build(name, **variant), tokens().requires_grad_()
    Z, mask = padded(X, 1, 2, 1e4)
    (through,) = torch.autograd.grad(remedy(Z, mask=mask)[:, 1 : 1 + N].square().sum(), X)
    (plain,) = torch.autograd.grad(remedy(X).square().sum(), X)
    torch.testing.assert_close(through, plain, rtol=1e-6, atol=1e-6)


@each_variant
def test_a_sequence_of_padding_alone_passes(name, variant):
    remedy, X = build(name, **variant), tokens()
    mask = torch.tensor([[False] * N, [True] * N])
    assert torch.equal(remedy(X, mask=mask)[0], X[0])
    assert remedy(X[:, :1]).isfinite().all(), "one token is a sequence too"


@each_variant
def test_a_fixed_strength_adds_no_key(name, variant):
    fixed = {"learnable": False} if "learnable" in arguments(name) else {}
    assert not build(name, **variant | fixed).state_dict()
    if fixed:
        learned = build(name, **variant | {"learnable": True})
        assert len(learned.state_dict()) == len(list(learned.parameters())) == len(SHELF[name].learns)


@each_variant
def test_settings_build_it_again(name, variant):
    remedy, X = build(name, **variant), tokens()
    settings = remedy.settings()
    assert set(settings) == set(arguments(name))
    assert json.loads(json.dumps(settings)) == settings
    again = type(remedy)(**settings)
    assert again.settings() == settings
    again.load_state_dict(remedy.state_dict())
    assert torch.equal(again(X), remedy(X)) and repr(again) == repr(remedy)


@each_variant
def test_repr_shows_the_strength(name, variant):
    remedy = build(name, **variant)
    for argument in SHELF[name].off:
        now = torch.as_tensor(getattr(remedy, argument)).double().mean().item()
        assert f"{argument}={now:g}" in repr(remedy)
    for argument, chosen in variant.items():
        assert (f"{argument}={chosen}" in repr(remedy)) == (chosen != arguments(name)[argument].default)
    assert "\n" not in repr(remedy)


def earlier_outputs_moved(remedy: Remedy, mask: Tensor | None) -> bool:
    """Whether an output before token j moves by one bit when token j changes."""
    moved = False
    X = tokens(dtype=torch.float32)
    for j, size in itertools.product(range(1, N), (1e-3, 1.0, 1e6)):
        changed = X.clone()
        changed[:, j:] += size * torch.randn(B, N - j, D)
        moved |= not torch.equal(remedy(changed, mask=mask)[:, :j], remedy(X, mask=mask)[:, :j])
    return moved


MASKS = {"none": None, "left": torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6]).bool(), "whole": torch.ones(B, N).bool()}


@each_variant
@over("mask", MASKS)
def test_causal_safety_is_as_claimed(name, variant, mask):
    remedy = build(name, **variant)
    assert earlier_outputs_moved(remedy, MASKS[mask]) != remedy.causal_safe


@each_variant
@over("mask", MASKS)
def test_the_causal_form_keeps_the_strength_and_the_future_hidden(name, variant, mask):
    remedy = build(name, **variant)
    if not remedy.causal_safe and SHELF[name].causal is None:
        with pytest.raises(CausalLeakError, match=rf"^{name}: a causal model needs .* because .*\. Use "):
            remedy.causal_form()
        return
    form = remedy.causal_form()
    assert type(form) is type(remedy) and (form is remedy) == remedy.causal_safe and form.causal_safe
    assert form.settings() == remedy.settings() | ({} if remedy.causal_safe else SHELF[name].causal)
    assert all(a is b for a, b in zip(form.parameters(), remedy.parameters(), strict=True)), "an optimizer has them"
    assert not earlier_outputs_moved(form, MASKS[mask])


@each_remedy
def test_wrong_use_is_answered(name):
    remedy = build(name)
    with pytest.raises(ShapeError, match=rf"^{name}: X must hold floating point tokens .* got torch.int64 \(2, 6, 4\)"):
        remedy(tokens().long())
    with pytest.raises(
        MaskError, match=rf"^{name}: mask must have one entry for each token, shape \(2, 6\); got \(2, 5\)"
    ):
        remedy(tokens(), mask=torch.ones(2, 5))
    for argument, names in SHELF[name].choices.items():
        with pytest.raises(
            UnknownNameError, match=rf"^{name}: no {argument} is called '{names[-1]}x'. Did you mean {names[-1]}"
        ):
            build(name, **{argument: names[-1] + "x"})


@over(
    "call, message",
    [
        (lambda: remedies.PairNorm(strength=2.0), r"PairNorm: strength must lie in \[0, 1\]; got 2.0"),
        (lambda: remedies.GainControl(torch.nan), r"GainControl: tau must lie in \[0, 1\]; got nan"),
        (lambda: remedies.SoftDecay(-1.0), r"SoftDecay: alpha must lie in \(-1, 0\]; got -1.0"),
        (lambda: remedies.SoftDecay(0.0, learnable=True), "SoftDecay: a learnable alpha must start"),
        (lambda: remedies.ContraNorm(temperature=0.0), "ContraNorm: temperature must be positive; got 0"),
        (lambda: remedies.FeatScale(5)(tokens()), r"FeatScale: X must have the width d = 5 .* got \(2, 6, 4\)"),
    ],
)
def test_numbers_out_of_range_are_refused(call, message):
    with pytest.raises((UsageError, ShapeError), match=message):
        call()
