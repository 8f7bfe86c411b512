"""fix_ and DeEscalate: eq. (21), undone bit for bit, refused where it would be wrong."""

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import BlocksNotFoundError, CausalLeakError, HookError, MaskError, UnknownNameError, UsageError

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


@pytest.mark.parametrize(("model", "inputs"), [(encoder(), X), (bert(), IDS)])
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


def test_a_causal_model_is_refused() -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 0}
    with pytest.raises(CausalLeakError, match="every token would see its future"):
        ds.fix_(T.GPT2Model(T.GPT2Config(**sizes)), ds.remedies.DeEscalate())


def test_padding_is_refused() -> None:
    model = bert()
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[:, 5:] = 0
    with ds.fix_(model, ds.remedies.DeEscalate()), pytest.raises(MaskError, match="this batch has padding"):
        model(input_ids=IDS, attention_mask=mask)


def test_a_remedy_that_never_acts_is_an_error() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = encoder().layers

        def forward(self, x: Tensor) -> Tensor:
            return x

    model = Skips()
    with pytest.raises(HookError, match="in 1 runs it never did"), ds.fix_(model, ds.remedies.DeEscalate()):
        model(X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ds.fix_(encoder(), ds.remedies.DeEscalate(), at="block_end"), UnknownNameError, "block_"),
        (lambda: ds.fix_(encoder(batch_first=False), ds.remedies.DeEscalate()), UsageError, "batch_first=True"),
        (lambda: ds.fix_(nn.Linear(2, 2), ds.remedies.DeEscalate()), BlocksNotFoundError, "none was seen in Linear"),
        (lambda: ds.fix_(encoder(), "de_escalate"), UsageError, "must be an nn.Module"),
        (lambda: ds.remedies.DeEscalate(tau=1.5), UsageError, r"tau must lie in \[0, 1\]; got 1.5"),
    ],
)
def test_wrong_use_is_answered(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
