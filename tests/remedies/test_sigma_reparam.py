"""sigmaReparam: the spectral norms that the model computes with, and what it computes."""

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.remedies.weight_remedy import matrices
from loops import over

R = ds.remedies
X = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))


def encoder(**options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def scaled_by_hand(model: nn.Module, gain: float, power: float = 1.0) -> None:
    with torch.no_grad():
        for name, W in model.named_parameters():
            if W.ndim == 2 and ".layer" in f".{name}":
                W *= (gain / torch.linalg.svdvals(W)[0]) ** power


@over("power", [1.0, 0.3])
@torch.no_grad()
def test_a_gain_is_the_spectral_norm_of_every_matrix(power: float) -> None:
    model = encoder()
    by_hand = encoder()
    by_hand.load_state_dict(model.state_dict())
    scaled_by_hand(by_hand, 0.7, power)
    with ds.fix_(model, R.SigmaReparam(0.7, power=power, learnable=False)) as fix:
        torch.testing.assert_close(model(X), by_hand(X), rtol=1e-5, atol=1e-5)
        assert fix.fired == 2 and not [k for k in model.state_dict() if "depthscope" in k]


def models() -> dict[str, tuple[nn.Module, Tensor]]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    return {
        "torch": (encoder(), X),
        "bert": (T.BertModel(T.BertConfig(**sizes, vocab_size=99)).eval(), IDS),
        "gpt2": (T.GPT2Model(T.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=99)).eval(), IDS),
        "t5": (T.T5EncoderModel(T.T5Config(d_model=32, num_layers=3, num_heads=4, vocab_size=99)).eval(), IDS),
    }


@over("family", ["torch", "bert", "gpt2", "t5"])
@torch.no_grad()
def test_on_other_peoples_models(family: str) -> None:
    model, inputs = models()[family]

    def run() -> Tensor:
        out = model(inputs)
        return out if isinstance(out, Tensor) else out.last_hidden_state

    before, state = run(), {name: value.clone() for name, value in model.state_dict().items()}
    with ds.fix_(model, R.SigmaReparam()):  # starts where the model is
        torch.testing.assert_close(run(), before, rtol=1e-4, atol=1e-5)
    with ds.fix_(model, R.SigmaReparam(1.0, learnable=False)):
        assert not torch.allclose(run(), before, atol=1e-3)
    with ds.fix_(model, R.SigmaReparam(power=0.0, learnable=False)):
        assert torch.equal(run(), before)
    assert torch.equal(run(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(
        isinstance(p, nn.Parameter) is False for m in model.modules() for p in m._parameters.values() if p is not None
    )


def test_training_follows_the_spectral_norm_by_power_iteration() -> None:
    model = encoder().train()
    fix = ds.fix_(model, R.SigmaReparam())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        (model(X) - X.flip(1)).square().mean().backward()
        optimizer.step()
    for matrix in matrices(model, fix.blocks):
        remedy = fix.copies[matrix.path]
        truth = torch.linalg.svdvals(matrix.parameter.detach())[0]
        one_step = torch.linalg.svdvals(remedy.weight(matrix.parameter).detach())[0]
        torch.testing.assert_close(one_step, remedy.g.detach(), rtol=0.02, atol=0.0)
        remedy.eval()
        torch.testing.assert_close(remedy._sigma(matrix.parameter).detach(), truth, rtol=1e-5, atol=0.0)


def test_the_gradient_is_that_of_the_formula() -> None:
    W = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    remedy = R.SigmaReparam().double().eval()
    assert torch.autograd.gradcheck(
        lambda W: remedy.weight(W), W
    )  # singular vectors are stationary, so u, v may be fixed


def test_wrong_use_is_answered() -> None:
    with pytest.raises(UsageError, match="a gain that is not learned must be a number; got None"):
        R.SigmaReparam(learnable=False)
    with pytest.raises(UsageError, match="SigmaReparam must act at weights; got block_out"):
        ds.fix_(encoder(), R.SigmaReparam(), at="block_out")
    model = T.BertModel(T.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
    model.gradient_checkpointing_enable()
    with ds.fix_(model.train(), R.SigmaReparam()):
        with pytest.raises(UsageError, match="with gradient checkpointing blocks run again without it"):
            model(IDS)
