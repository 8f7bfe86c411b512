"""Remedies that learn: a copy for each block among the model's parameters, trained, saved, built again, taken out."""

import copy

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import ShapeError, UsageError
from loops import over

R = ds.remedies
X = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))
LEARNED = [
    R.DeEscalate(0.5, learnable=True),
    R.FeatScale(16),
    R.SoftDecay(learnable=True),
    R.AttnScale(0.0, learnable=True, heads=4),
    R.GFSA(0.0, 1.0, 0.0, learnable=True),
    R.ShapedAttention(learnable=True, heads=4),
    R.QKNorm(learnable=True),
    R.SigmaReparam(),
]
each = over("remedy", LEARNED)


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def target() -> Tensor:
    return torch.randn(X.shape, generator=torch.Generator().manual_seed(3))


def trained(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X) - target()).square().mean().backward()
        optimizer.step()


@each
def test_every_block_learns_for_itself(remedy: nn.Module) -> None:
    model = encoder()
    before = len(list(model.parameters()))
    fix = ds.fix_(model, remedy)
    names = [name for name, _ in model.named_parameters() if name.startswith("depthscope_")]
    each_block = 4 if remedy.at == "weights" else len(list(remedy.parameters()))  # in_proj, out_proj, two of the FFN
    assert len(names) == 3 * each_block and len(list(model.parameters())) == before + len(names)
    start = {name: model.get_parameter(name).clone() for name in names}
    trained(model)
    moved = [name for name in names if not torch.equal(model.get_parameter(name), start[name])]
    assert moved == names
    first, last = (model.get_parameter(name) for name in (names[0], names[-1]))
    assert not torch.equal(first, last), "blocks differ"
    fix.undo()
    assert len(list(model.parameters())) == before and not any("depthscope" in name for name in model.state_dict())


@each
def test_a_trained_fix_is_saved_and_built_again(remedy: nn.Module) -> None:
    model, again = encoder(), encoder()
    fix = ds.fix_(model, remedy)
    trained(model)
    ds.fix_(again, fix.describe())
    again.load_state_dict(model.state_dict())
    for train in (False, True):
        with torch.no_grad():
            torch.testing.assert_close(again.train(train)(X), model.train(train)(X), rtol=1e-5, atol=1e-5)


@each
def test_gradients_of_what_is_learned(remedy: nn.Module) -> None:
    model = encoder().double()
    ds.fix_(model, remedy)
    model(X.double())  # sigmaReparam finds its singular vectors
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    parameter = next(p for name, p in model.named_parameters() if name.startswith("depthscope_"))

    def loss() -> Tensor:
        return (model(X.double()) - target()).square().mean()

    slope = torch.autograd.grad(loss(), parameter)[0].flatten()[0]
    with torch.no_grad():
        flat, step = parameter.view(-1), 1e-5
        flat[0] += step
        up = loss()
        flat[0] -= 2 * step
        down = loss()
    torch.testing.assert_close((up - down) / (2 * step), slope, rtol=1e-5, atol=1e-9)
    torch.backends.mha.set_fastpath_enabled(True)


def test_the_causal_form_keeps_the_parameters_that_an_optimizer_holds() -> None:
    model = T.GPT2Model(T.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99))
    fix = ds.fix_(model, R.DeEscalate(0.5, learnable=True))
    held = [p for name, p in model.named_parameters() if "raw_tau" in name]
    optimizer = torch.optim.SGD(held, lr=1.0)
    model(IDS).last_hidden_state.square().sum().backward()
    optimizer.step()
    assert fix.remedy.form == "sink"
    assert all(a is b for a, b in zip(held, (r.raw_tau for r in fix.copies), strict=True))
    assert all(p.grad is not None and float(p.detach()) != 0.0 for p in held)


def test_shared_blocks_share_what_they_learn() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    model = T.AlbertModel(T.AlbertConfig(**sizes, vocab_size=99, embedding_size=16))
    fix = ds.fix_(model, R.DeEscalate(0.5, learnable=True))
    model(IDS)
    assert len(list(fix.copies)) == 1 and fix.fired == 4


def test_fixed_models_are_scanned_and_their_copies_are_not_taken_for_blocks() -> None:
    model = encoder().eval()
    with ds.fix_(model, R.GFSA(0.5, 1.0, -0.5, learnable=True, heads=4)):
        assert ds.scan(model, X).depth == 3
        with ds.fix_(model, R.DeEscalate(1.0)) as other:
            assert float(ds.scan(model, X)["t_sim"][1:].max()) < 1e-6
            assert other.blocks == ["layers.0", "layers.1", "layers.2"]


def test_the_model_in_half_precision_and_a_copy_of_it() -> None:
    model = encoder().to(torch.bfloat16)
    ds.fix_(model, R.AttnScale(0.5, learnable=True, heads=4))
    assert model(X.bfloat16()).dtype == torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert set(copy.deepcopy(model).state_dict()) == set(model.state_dict())


def test_wrong_use_is_answered() -> None:
    model = encoder()
    ds.fix_(model, R.DeEscalate(learnable=True))
    with pytest.raises(UsageError, match=r"can hold one DeEscalate of its own at block_out; it has one"):
        ds.fix_(model, R.DeEscalate(learnable=True))
    with pytest.raises(UsageError, match="which Sequential would take for a layer"):
        ds.fix_(nn.Sequential(*encoder().layers), R.DeEscalate(learnable=True))
    with ds.fix_(encoder(), R.AttnScale(learnable=True, heads=3)) as fix:
        with pytest.raises(ShapeError, match=r"AttnScale: attention must show its heads as \(B, 3, n, n\)"):
            fix.model(X)
