"""Exported, traced and compiled models compute with the remedy, or are refused with the line that helps."""

import copy
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from small_models import IDS, MODELS, X, bert, encoder, gpt2, out, shifted, written
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import MaskError, UsageError
from loops import over

R = ds.remedies
REMEDIES = [
    (R.DeEscalate(0.7), "block_out"),
    (R.DeEscalate(0.7), "sa_sum"),
    (R.DeEscalate(0.7, learnable=True), "ffn_sum"),
    (R.CentredAttention(), "attn"),
    (R.SigmaReparam(0.5), "weights"),
]
ANY = torch.export.Dim.AUTO
ALL = [(name, remedy_at) for name in MODELS for remedy_at in REMEDIES]
FEW = [("gpt2", REMEDIES[0]), ("encoder", REMEDIES[2]), ("written", REMEDIES[4])]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Logits(nn.Module):
    """A model of tensors: what torch.jit.trace takes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        keeps = hasattr(self.model, "config") and self.model.config.model_type in ("gpt2", "llama")
        found = self.model(x, use_cache=False) if keeps else self.model(x)
        return found if isinstance(found, Tensor) else next(iter(found.values()))


def fixed_by(name: str, remedy: nn.Module, at: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """The model in a wrapper, its inputs, what it gives without the remedy and with it."""
    build, inputs = MODELS[name]
    model = Logits(build()).eval()
    plain = out(model, inputs)
    tells = {"mask": lambda x, **_: torch.ones(x.shape[:2])} if name == "written" else {}  # softmax may hide padding
    ds.fix_(model.model, remedy, at=at, **tells)
    shifted(model)
    fixed = out(model, inputs)
    assert not torch.allclose(fixed, plain, atol=1e-4)
    return model, inputs, plain, fixed


@over("name, remedy_at", FEW, long=[one for one in ALL if one not in FEW])
def test_an_exported_program_has_the_remedy_in_it(name: str, remedy_at: tuple) -> None:
    model, inputs, _, fixed = fixed_by(name, *remedy_at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.export(model, (inputs,), dynamic_shapes=({0: ANY, 1: ANY},))
    torch.testing.assert_close(out(program.module(), inputs), fixed, rtol=1e-4, atol=1e-5)
    other = torch.cat([inputs, inputs.flip(1)[:, :2]], 1).repeat(2, *[1] * (inputs.ndim - 1))  # longer, more of them
    torch.testing.assert_close(out(program.module(), other), out(model, other), rtol=1e-4, atol=1e-5)
    learned = {key for key in model.state_dict() if "depthscope_" in key}
    assert learned <= set(program.state_dict)
    torch.testing.assert_close(out(model, inputs), fixed)  # the model goes on as before


@over("name, remedy_at", FEW, long=[one for one in ALL if one not in FEW])
def test_a_traced_model_has_the_remedy_in_it(name: str, remedy_at: tuple) -> None:
    model, inputs, _, fixed = fixed_by(name, *remedy_at)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, (inputs,))
    torch.testing.assert_close(out(traced, inputs), fixed, rtol=1e-4, atol=1e-5)
    other = inputs.flip(0).flip(1)
    torch.testing.assert_close(out(traced, other), out(model, other), rtol=1e-4, atol=1e-5)


def test_padding_is_an_input_of_the_program() -> None:
    model, mask = bert(), torch.ones(2, 7, dtype=torch.long)
    ds.fix_(model, R.DeEscalate(0.9))
    given = {"input_ids": IDS, "attention_mask": mask}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(**given)
        program = torch.export.export(model, (), given)
        for cut in (7, 5, 3):
            mask[1, cut:] = 0
            expected = model(**given).last_hidden_state
            found = program.module()(**given).last_hidden_state
            torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found[1, :cut], expected[1, :cut], rtol=1e-4, atol=1e-5)


def test_what_cannot_be_exported_says_why() -> None:
    model = encoder()
    fix = ds.fix_(model, R.DeEscalate(0.7))
    with pytest.raises(
        UsageError, match=r"TransformerEncoder must have run once with DeEscalate\(tau=0\.7\) at block_out"
    ):
        torch.export.export(model, (X,))
    out(model, X)
    torch.export.export(model, (X,))
    model.layers[1] = copy.deepcopy(model.layers[0])
    with pytest.raises(UsageError, match="must have run once"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.export(model, (X,))
    fix.undo()
    hand = written()
    with ds.fix_(hand, R.DeEscalate(0.7)):
        out(hand, X)
        with pytest.raises(MaskError, match=r"nothing among those of Written does\. Pass mask= to fix_"):
            torch.export.export(hand, (X,))
        out(hand, X)  # the handle goes on
        with pytest.raises(UsageError, match=r"torch\.jit\.script cannot compile\. Call the model once, then"):
            torch.jit.script(hand)
        with pytest.raises(UsageError, match=r"DeEscalate\(tau=0\.7\) at block_out acts by hooks"):
            torch.jit.script(copy.deepcopy(hand))  # which was never called


class EitherWay(nn.Module):
    """Causal or not, as it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = encoder()

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        n = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n) if causal else None
        return self.stack(x, mask=mask, is_causal=causal)


def test_a_model_with_two_forms_cannot_be_one_graph() -> None:
    model = EitherWay().eval()
    ds.fix_(model, R.DeEscalate(0.7))
    out(model, X)
    out(model, X, causal=True)
    with pytest.raises(UsageError, match=r"must have one form in an exported graph; EitherWay was called in ways"):
        torch.export.export(model, (X,))
    twin = copy.deepcopy(model)
    expected = out(twin, X)
    torch.testing.assert_close(out(torch.export.export(twin, (X,)).module(), X), expected)


@over("build", [encoder], long=[gpt2])
@over("way", ["after", "before"], long=["in place", "around"])
def test_compiled_code_never_hides_a_fix(build: Callable, way: str) -> None:
    """Compiled code does not call hooks that it does not know: it stands aside, or the call is refused."""
    model, inputs = build(), X if build is encoder else IDS
    if way in ("before", "around"):
        compiled = torch.compile(model if way == "before" else Logits(model), backend="eager")
        plain = out(compiled, inputs)
    fix = ds.fix_(model, R.DeEscalate(0.7))  # not through what is compiled
    fixed = out(model, inputs)
    if way in ("before", "around"):
        for _ in range(2):
            assert torch.equal(out(compiled, inputs), fixed)
        fix.undo()
        torch.testing.assert_close(out(compiled, inputs), plain)
        return
    if way == "after":
        compiled = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
        compiled = model
    said = r"was compiled after fix_, or around it: .* compiled = torch\.compile\(model\); ds\.fix_\(compiled, \.\.\.\)"
    for _ in range(2):
        with pytest.raises(UsageError, match=said):
            out(compiled, inputs)
    model._compiled_call_impl = None
    assert torch.equal(out(model, inputs), fixed)
    fix.undo()
    with ds.fix_(compiled, R.DeEscalate(0.7)):
        assert torch.equal(out(compiled, inputs), fixed)


def test_a_model_that_must_be_one_graph_is_refused_with_the_line_that_helps() -> None:
    model = gpt2()
    ds.fix_(model, R.DeEscalate(0.7))
    out(model, IDS)
    with pytest.raises(Exception, match=r"depthscope changes this model by hooks: .* or export with strict=False"):
        torch.export.export(model, (IDS,), strict=True)
    with pytest.raises(Exception, match="depthscope changes this model by hooks: compile first"):
        torch.compile(Logits(model), backend="eager", fullgraph=True)(IDS)
