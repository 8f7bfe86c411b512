"""Where a fix could be silently wrong: blocks that are missed, passes that break off, copies."""

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import BlocksNotFoundError, HookError, UsageError
from loops import over

R = ds.remedies
X = torch.randn(4, 7, 16, generator=torch.Generator().manual_seed(1)) + 0.5
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}


def encoder() -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 2)


# blocks and sites


def test_a_block_that_is_not_acted_on_is_an_error_without_a_context_too() -> None:
    class Reshapes(nn.TransformerEncoderLayer):
        def forward(self, x: Tensor, **_) -> Tensor:
            return x.sin()  # no attention and no sum

    model = nn.Module()
    model.layers = nn.ModuleList([*encoder().layers, Reshapes(16, 4, 32)])
    model.forward = lambda x: model.layers[2](model.layers[1](model.layers[0](x)))
    ds.fix_(model, R.DeEscalate(), at="sa_sum", blocks="layers.*", causal="no")
    with pytest.raises(HookError, match=r"must act in every block; in layers\.2 .* 'sa_sum' was not met"):
        model(X)


def test_an_unbatched_sequence_and_a_batch_after_it_are_fixed() -> None:
    model = encoder().eval()
    ds.fix_(model, R.DeEscalate(), causal="no")
    assert float(ds.metrics.t_sim(model(X[0]))) < 1e-6
    assert float(ds.metrics.t_sim(model(X)).max()) < 1e-6
    assert float(ds.metrics.t_sim(model(X[1]))) < 1e-6


def test_two_families_of_blocks_must_be_told_apart_by_what_learns() -> None:
    with pytest.raises(BlocksNotFoundError, match=r'have 2 members each\. Pass blocks="decoder\.block\.\*"'):
        ds.fix_(
            T.T5Model(T.T5Config(d_model=32, num_layers=2, num_heads=4, vocab_size=99)), R.DeEscalate(learnable=True)
        )


@torch.no_grad()
def test_the_feed_forward_network_of_a_decoder_comes_after_cross_attention() -> None:
    layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model, memory, seen = nn.TransformerDecoder(layer, 2).eval(), torch.randn(4, 7, 16), []
    handle = model.layers[1].norm3.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    with ds.fix_(model, R.DeEscalate(), at="ffn_sum", causal="no"):
        model(X, memory)
    handle.remove()
    assert float(ds.metrics.t_sim(seen[0]).max()) < 1e-6
    with ds.fix_(model, R.AttnScale()) as fix:
        model(X, memory)
    assert fix.fired == 2, "cross-attention is left alone, whatever its length"


def test_parallel_blocks_have_no_stream_between_their_branches() -> None:
    config = T.GPTNeoXConfig(**SIZES, use_parallel_residual=True)
    model = T.GPTNeoXModel(config).eval()
    for at in ("sa_out", "ffn_in"):
        with ds.fix_(model, R.DeEscalate(), at=at), pytest.raises(HookError, match="They have block_in"):
            model(IDS)
    with ds.fix_(model, R.DeEscalate()) as fix:
        model(IDS)
        assert fix.fired == 2


@torch.no_grad()
def test_a_remedys_own_sums_and_softmaxes_are_not_the_models() -> None:
    model, read = T.BertModel(T.BertConfig(**SIZES)).eval(), {}
    attention = model.encoder.layer[0].attention.self
    for name in ("query", "key", "value"):
        getattr(attention, name).register_forward_pre_hook(lambda m, args, name=name: read.update({name: args[0]}))
    for remedy in (R.ContraNorm(0.5), R.FeatScale(32, s=-0.5, mean="prefix", learnable=False)):
        with ds.fix_(model, remedy, at="attn_in"):
            scan = ds.scan(model, IDS)
        assert torch.equal(read["query"], read["key"]) and torch.equal(read["query"], read["value"])
        assert scan.head_counts == [4, 4] and scan.placement == "post"
    both = []
    for first, second in ((R.CentredAttention(), R.ContraNorm(0.5)), (R.ContraNorm(0.5), R.CentredAttention())):
        with ds.fix_(model, first), ds.fix_(model, second):
            both.append(model(IDS).last_hidden_state)
    torch.testing.assert_close(*both)


def test_blocks_that_run_outside_their_model_say_so() -> None:
    model = T.BertModel(T.BertConfig(**SIZES)).eval()
    with ds.fix_(model, R.DeEscalate()):
        model(IDS)
        with pytest.raises(HookError, match=r"encoder\.layer\.0 ran by itself\. Fix the module that you call"):
            model.encoder(torch.randn(3, 7, 32))


# passes that break off, copies, threads


@over("remedy", [R.DeEscalate(0.5), R.GainControl(), R.AttnScale(), R.SigmaReparam(0.5, learnable=False)])
@over("error", [RuntimeError, KeyboardInterrupt])
@torch.no_grad()
def test_a_pass_that_breaks_off_leaves_nothing_behind(remedy: nn.Module, error: type[BaseException]) -> None:
    model = encoder().eval()
    before = model(X)
    stop = [False]

    def trip(*_) -> None:
        if stop[0]:
            raise error

    model.layers[1].linear1.register_forward_pre_hook(trip)
    fix = ds.fix_(model, remedy)
    fixed = model(X)
    stop[0] = True
    with pytest.raises(error):
        model(X)
    stop[0] = False
    assert torch.equal(model(X), fixed)
    stop[0] = True
    with pytest.raises(error):
        model(X)
    stop[0] = False
    fix.undo()
    assert torch.equal(model(X), before) and torch.backends.mha.get_fastpath_enabled()
    assert torch._C._len_torch_function_stack() == 0
    assert all(isinstance(p, nn.Parameter) for m in model.modules() for p in m._parameters.values() if p is not None)


def test_described_fixes_that_are_not() -> None:
    model = encoder().eval()
    described = ds.fix_(model, R.DeEscalate(0.5)).describe()
    again = ds.fix_(model, described, at="sa_sum", blocks="layers.0")
    assert again.at == "sa_sum" and again.blocks == ["layers.0"]
    with pytest.raises(UsageError, match="at, blocks, causal, remedy, settings is missing"):
        ds.fix_(model, {})
    with pytest.raises(UsageError, match="settings must be arguments of DeEscalate"):
        ds.fix_(model, described | {"settings": {"tow": 1}})


@torch.no_grad()
def test_weights_that_are_replaced_between_passes_are_seen() -> None:
    model = encoder().eval()
    with ds.fix_(model, R.SigmaReparam(0.7, learnable=False)):
        model(X)
        other = encoder().state_dict()
        model.load_state_dict(other, assign=True)
        model(X)
        assert all(torch.equal(value, other[name]) for name, value in model.state_dict().items())
        weight = model.layers[0].linear1.weight
        weight.data = 3 * weight.data
        before = model(X)
        weight.data = weight.data / 3
        torch.testing.assert_close(model(X), before, rtol=1e-4, atol=1e-5)  # only the direction counts


@torch.no_grad()
def test_a_fix_on_a_part_of_the_scanned_model() -> None:
    model = T.BertForSequenceClassification(T.BertConfig(**SIZES)).eval()
    with ds.fix_(model.bert, R.DeEscalate()):
        assert float(ds.scan(model, IDS)["t_sim"][1:].max()) < 1e-6
