"""fix_ and DeEscalate: eq. (21), undone bit for bit, refused where it would be wrong."""

import json

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import BlocksNotFoundError, CausalLeakError, UnknownNameError, UsageError
from depthscope.remedies.fix import TOKEN_SITES as SITES
from loops import over

X = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(2))
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))


def encoder(**options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 2, 32, **{"batch_first": True, **options})
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def bert() -> T.BertModel:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    return T.BertModel(T.BertConfig(**sizes, vocab_size=99)).eval()


def test_de_escalate_is_equation_21() -> None:
    tokens = X.double()
    Pi_1 = torch.ones(7, 7, dtype=torch.float64) / 7
    for tau in (0.0, 0.3, 1.0):
        expected = (torch.eye(7, dtype=torch.float64) - tau * Pi_1) @ tokens
        torch.testing.assert_close(ds.remedies.DeEscalate(tau)(tokens), expected)
    assert not ds.remedies.DeEscalate().state_dict()


@over("model, inputs", [(encoder(), X), (bert(), IDS)])
def test_a_fixed_model_has_no_common_token_left_and_undo_is_bit_equal(model: nn.Module, inputs: Tensor) -> None:
    def run() -> Tensor:
        with torch.no_grad():
            out = model(inputs)
        return out if isinstance(out, Tensor) else out.last_hidden_state

    before = run()
    with ds.fix_(model, ds.remedies.DeEscalate(tau=1.0)) as fix:
        scan = ds.scan(model, inputs)
        assert float(scan["t_sim"][1:].max()) < 1e-6
        assert scan.remedies == ["DeEscalate(tau=1) at block_out"]
        assert not torch.equal(run(), before)
        assert fix.fired > 0
    assert torch.equal(run(), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_block_in() -> None:
    model = encoder()
    seen: list[Tensor] = []
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_in"):
        handle = model.layers[1].self_attn.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            model(X)
        torch.backends.mha.set_fastpath_enabled(True)
        handle.remove()
    assert float(ds.metrics.t_sim(seen[0]).max()) < 1e-6


def test_tau_zero_changes_nothing() -> None:
    model = encoder()
    with torch.no_grad():
        before = model(X)
        with ds.fix_(model, ds.remedies.DeEscalate(0.0)):
            torch.testing.assert_close(model(X), before)


def gpt2() -> nn.Module:
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 0}
    return T.GPT2Model(T.GPT2Config(**sizes)).eval()


def llama() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    return T.LlamaModel(T.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=99)).eval()


def earlier_outputs_that_move(model: nn.Module) -> float:
    """How much the outputs before token 4 move when token 4 changes."""
    other = IDS.clone()
    other[:, 4] = (other[:, 4] + 1) % 99
    with torch.no_grad():
        outs = [model(ids, use_cache=False).last_hidden_state for ids in (IDS, other)]
    assert not torch.equal(outs[0][:, 4:], outs[1][:, 4:])
    return float((outs[0][:, :4] - outs[1][:, :4]).abs().max())


@over("build", [gpt2, llama])
@over("at", SITES)
def test_a_causal_model_gets_the_causal_form_and_no_token_sees_its_future(build, at: str) -> None:
    model = build()
    with ds.fix_(model, ds.remedies.DeEscalate(), at=at) as fix:
        assert earlier_outputs_that_move(model) == 0.0
        assert fix.fired == 2 * 3 and repr(fix) == f"DeEscalate(tau=1, form=sink) at {at}"


def test_a_leak_must_be_insisted_on_and_is_labelled() -> None:
    model = gpt2()
    with ds.fix_(model, ds.remedies.DeEscalate(), causal="leak") as fix:
        assert earlier_outputs_that_move(model) > 1e-3
        assert "LEAKS the future" in repr(fix)
        assert ds.scan(model, IDS).remedies == ["DeEscalate(tau=1) at block_out (LEAKS the future)"]


def test_a_remedy_without_a_causal_form_is_refused() -> None:
    model = gpt2()
    with ds.fix_(model, ds.remedies.SoftDecay()):
        for _ in range(2):  # the second time too
            with pytest.raises(CausalLeakError, match="it has none, because"):
                model(IDS)


def test_where_attention_is_not_seen_the_user_must_say_whether_it_is_causal() -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    model = Mixer()
    with ds.fix_(model, ds.remedies.DeEscalate()):
        for _ in range(2):
            with pytest.raises(CausalLeakError, match='Pass causal="no"'):
                model(X)
    with ds.fix_(model, ds.remedies.DeEscalate(), causal="no"):
        assert float(ds.metrics.t_sim(model(X)).max()) < 1e-6
    with pytest.raises(UnknownNameError, match="no choice of causal is called 'maybe'"):
        ds.fix_(model, ds.remedies.DeEscalate(), causal="maybe")


@over("at", SITES)
def test_padding_does_not_matter(at: str) -> None:
    model = bert()
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[:, 5:] = 0
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(), at=at):
        padded = model(input_ids=IDS, attention_mask=mask).last_hidden_state[:, :5]
        short = model(input_ids=IDS[:, :5]).last_hidden_state
    torch.testing.assert_close(padded, short, rtol=1e-4, atol=1e-5)


def test_a_fix_is_described_and_built_again() -> None:
    model = bert()
    with torch.no_grad():
        with ds.fix_(model, ds.remedies.DeEscalate(0.3), at="sa_sum", blocks="encoder.layer.[01]") as fix:
            first, data = model(IDS).last_hidden_state, json.loads(json.dumps(fix.describe()))
        with ds.fix_(model, data) as again:
            assert torch.equal(model(IDS).last_hidden_state, first)
    assert again.fired == 2 and again.describe() == data


def test_a_remedy_that_never_acts_is_an_error() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = encoder().layers

        def forward(self, x: Tensor) -> Tensor:
            return x

    model = Skips()
    with ds.fix_(model, ds.remedies.DeEscalate()), pytest.raises(BlocksNotFoundError, match="none was seen in Skips"):
        model(X)


@over(
    "call, error, message",
    [
        (lambda: ds.fix_(encoder(), ds.remedies.DeEscalate(), at="block_end"), UnknownNameError, "block_"),
        (lambda: ds.fix_(nn.Linear(2, 2), ds.remedies.DeEscalate()), BlocksNotFoundError, "none was seen in Linear"),
        (lambda: ds.fix_(encoder(), "de_escalate"), UsageError, "must be an nn.Module"),
        (lambda: ds.remedies.DeEscalate(tau=1.5), UsageError, r"tau must lie in \[0, 1\]; got 1.5"),
    ],
)
def test_wrong_use_is_answered(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
