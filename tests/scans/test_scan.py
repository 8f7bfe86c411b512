"""ds.scan as a user meets it: inputs, masks, dtypes, dropout, gradients, broken numbers, wrong use."""

import math
import warnings

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import (
    AttentionNotSeenError,
    BlocksNotFoundError,
    ForwardError,
    MaskError,
    ShapeError,
    UnknownNameError,
    UsageError,
)
from loops import over


def encoder(depth: int = 3, d: int = 16, **options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(d, 2, 32, **{"batch_first": True, "dropout": 0.0, **options})
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).eval()


def bert(**options) -> T.BertModel:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    return T.BertModel(T.BertConfig(**sizes, vocab_size=99, initializer_range=0.1, **options)).eval()


X = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(3))
IDS = torch.randint(1, 99, (4, 9), generator=torch.Generator().manual_seed(3))


def all_numbers(scan: ds.Scan) -> dict[str, Tensor]:
    out = {f"state {k}": v for k, v in scan.states.items()}
    out |= {f"{step} {k}": v for step, row in scan.steps.items() for k, v in row.items()}
    return out | {f"head {k}": v for k, v in scan.heads.items()}


# inputs


def test_tensor_tuple_mapping_and_batches_give_the_same_numbers() -> None:
    model = bert()
    one = ds.scan(model, IDS)
    for inputs in ((IDS,), {"input_ids": IDS}, T.BatchEncoding({"input_ids": IDS}), [IDS[:1], IDS[1:]], iter([IDS])):
        other = ds.scan(model, inputs)
        assert other.samples == 4
        for name, value in all_numbers(one).items():
            torch.testing.assert_close(all_numbers(other)[name], value, rtol=1e-5, atol=1e-7, msg=name)


def test_every_metric_of_the_shelf_has_depth_or_depth_plus_one_values() -> None:
    refused = {"eta", "block_influence", "angular_distance"}  # they need more than numbers of states
    shelf = [m for m in dir(ds.metrics) if m not in refused]
    scan = ds.scan(encoder(), X, metrics=shelf)
    for name in shelf:
        facts = getattr(ds.metrics, name).facts
        values = scan[name] if isinstance(scan[name], tuple) else (scan[name],)
        assert len(values) == len(facts.parts)
        assert all(len(v) == (4 if facts.kind == "state" else 3) and v.isfinite().all() for v in values), name


def test_metrics_of_two_states_are_refused_with_the_call_that_measures_them() -> None:
    for name in ("block_influence", "angular_distance"):
        with pytest.raises(ds.errors.UsageError, match=rf"{name} compares .* ds.depth\(model, inputs\)"):
            ds.scan(encoder(), X, metrics=[name])


# padding


@over("family", ["bert", "encoder", "gpt2", "xlnet"])
def test_padding_a_batch_changes_no_metric(family: str) -> None:
    torch.manual_seed(0)
    if family == "bert":
        model, plain, pad = bert(), {"input_ids": IDS}, "attention_mask"
    elif family == "xlnet":
        sizes = {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 64, "vocab_size": 99}
        model, plain, pad = T.XLNetModel(T.XLNetConfig(**sizes)).eval(), {"input_ids": IDS}, "attention_mask"
    elif family == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 0}
        model, plain, pad = T.GPT2Model(T.GPT2Config(**sizes)).eval(), {"input_ids": IDS}, "attention_mask"
    else:
        model, plain, pad = encoder(), {"src": X}, "src_key_padding_mask"
    name, value = next(iter(plain.items()))
    longer = torch.cat([value, value[:, :5]], dim=1)
    keep = torch.arange(14).expand(4, 14) < 9
    padded = {name: longer, pad: ~keep if pad.startswith("src") else keep.long()}
    before, after = ds.scan(model, plain), ds.scan(model, padded)
    for quantity, expected in all_numbers(before).items():
        torch.testing.assert_close(
            all_numbers(after)[quantity],
            expected,
            rtol=0,
            atol=1e-6 * max(1, float(expected.abs().max())),
            msg=quantity,
        )


def test_attention_to_padding_is_said_aloud() -> None:
    mask = torch.ones(4, 9)
    mask[:, 7:] = 0
    assert any("padding" in note for note in ds.scan(encoder(), X, mask=mask).notes)


@over(
    "mask, message",
    [
        (torch.ones(4, 8), r"mask must have one entry for each token.*\(4, 8\)"),
        (torch.zeros(4, 9), "sequence 0 is all padding"),
        (torch.eye(9)[:4], "sequence 0 has one"),
    ],
)
def test_a_wrong_mask_is_refused(mask: Tensor, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        ds.scan(encoder(), X, mask=mask)


# as many sequences as tokens


@over("time_first", [False, True])
def test_a_square_batch_does_not_confuse_the_axes(time_first: bool) -> None:
    model = encoder(batch_first=not time_first)
    square = X[:, :4]
    scan = ds.scan(model, square.transpose(0, 1) if time_first else square)
    assert scan.token_axis == (0 if time_first else 1)
    expected = ds.metrics.t_sim(square).mean()
    torch.testing.assert_close(scan["t_sim"][0], expected)


def test_hyper_connection_streams_fold_into_the_batch() -> None:
    from x_transformers import Encoder

    model = Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, num_residual_streams=4).eval()
    ends: list[float] = []
    for i in (1, 3):
        model.layers[i][2].register_forward_hook(lambda m, a, out: ends.append(float(ds.metrics.t_sim(out).mean())))
    scan = ds.scan(model, X)
    assert scan.depth == 2
    assert scan["t_sim"][1:].tolist() == pytest.approx(ends[:2], abs=1e-9)


# how the model runs


def test_dropout_noise_does_not_hide_a_collapse() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 24)
    tokens = torch.randn(4, 32, 64)
    for train in (True, False):
        scan = ds.scan(model.train(train), tokens)
        assert scan.verdict.status == "collapsed"
        assert scan.verdict.fix_needed
        assert "attention" in scan.verdict.driver
    noisy = ds.scan(model.train(), tokens)
    assert float(noisy["t_div"][-1]) > 0.02 > float(noisy.without_dropout[-1]) * 10
    assert any("dropout" in note for note in noisy.notes)


def test_train_mode_measures_the_very_pass_that_the_seed_gives() -> None:
    model = encoder(dropout=0.3).train()
    states: list[Tensor] = []
    handles = [b.register_forward_hook(lambda m, a, out: states.append(out.detach())) for b in model.layers]
    torch.manual_seed(5)
    with torch.no_grad():
        model(X)
    for handle in handles:
        handle.remove()
    torch.manual_seed(5)
    scan = ds.scan(model, X)
    for i, state in enumerate(states, start=1):
        torch.testing.assert_close(scan["t_sim"][i], ds.metrics.t_sim(state).mean())


@over("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    plain = ds.scan(encoder(), X)
    torch.manual_seed(0)
    scan = ds.scan(encoder().to(dtype), X.to(dtype))
    assert scan.dtype == str(dtype).removeprefix("torch.")
    assert scan["t_sim"].dtype == torch.float64
    torch.manual_seed(0)
    same = ds.scan(encoder(), X)
    torch.testing.assert_close(scan["t_sim"], same["t_sim"], rtol=0, atol=0.02)
    assert plain.depth == scan.depth


def test_a_compiled_model_is_unwrapped() -> None:
    model = encoder()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(ds.scan(compiled, X)["t_sim"], ds.scan(model, X)["t_sim"])
    for i, block in enumerate(model.layers):
        model.layers[i] = torch.compile(block, backend="eager")
    assert ds.scan(model, X).depth == 3


def test_inside_inference_mode_and_no_grad() -> None:
    model = encoder()
    expected = ds.scan(model, X)["t_sim"]
    with torch.inference_mode():
        torch.testing.assert_close(ds.scan(model, X.clone())["t_sim"], expected)
    with torch.no_grad():
        torch.testing.assert_close(ds.scan(model, X)["t_sim"], expected)


def test_running_statistics_are_put_back() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.norm = nn.BatchNorm1d(16)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attention(x, x, x)[0]  # need_weights=True: the softmax path of nn.MultiheadAttention
            return self.norm(x.mT).mT

    model = nn.Sequential(Block(), Block(), Block()).train()
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    scan = ds.scan(model, X)
    assert scan.depth == 3 and scan.heads["delta"].shape == (3, 2)
    assert all(torch.equal(v, kept[k]) for k, v in model.state_dict().items())


def test_a_scan_that_fails_half_way_leaves_no_trace() -> None:
    class Bomb(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("boom")

    model = nn.Sequential(*encoder().layers, Bomb())
    state = torch.get_rng_state()
    with pytest.raises(ForwardError, match=r"Sequential raised RuntimeError: boom\. Call the model yourself"):
        ds.scan(model, X)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    from torch.overrides import _get_current_function_mode_stack

    assert not _get_current_function_mode_stack()


def test_gradient_norms_are_those_of_autograd() -> None:
    model = bert()
    scan = ds.scan(
        model,
        IDS,
        gradients=lambda out: out.last_hidden_state.square().sum() / 100 + out.last_hidden_state[..., 0].sum(),
    )
    assert all(p.grad is None for p in model.parameters())
    out = model(IDS)
    (out.last_hidden_state.square().sum() / 100 + out.last_hidden_state[..., 0].sum()).backward()
    for i, block in enumerate(model.encoder.layer):
        expected = math.sqrt(sum(float(p.grad.double().square().sum()) for p in block.parameters()))
        assert float(scan["gradient_norm"][i]) == pytest.approx(expected, rel=1e-5)
    assert len(scan["token_gradient_norm"]) == 4 and scan["token_gradient_norm"].isfinite().all()


# numbers that are none


def test_the_first_nan_is_named_and_the_rest_delivered() -> None:
    model = encoder(depth=4)
    with torch.no_grad():
        model.layers[2].linear2.weight[0, 0] = math.nan
    scan = ds.scan(model, X)
    assert scan.broken == (3, "ffn")
    assert scan.verdict.status == "not a number" and scan.verdict.block == 3 and scan.verdict.step == "ffn"
    assert scan["t_sim"][:3].isfinite().all() and scan["t_sim"][3:].isnan().all()
    assert "block 3" in str(scan.verdict)


def test_infinity_in_float16() -> None:
    model = encoder().half()
    with torch.no_grad():
        model.layers[1].linear1.weight[:, 0] = 60000.0
    scan = ds.scan(model, X.half())
    assert scan.verdict.status == "not a number" and scan.broken[0] == 2


def test_below_the_floor_it_says_so() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.eye(16))

        def forward(self, x: Tensor) -> Tensor:
            P = torch.zeros(len(x), 9, 9).softmax(-1)
            return 0.01 * (x @ self.w) + (P @ x)

    scan = ds.scan(nn.Sequential(*[Mean() for _ in range(8)]), X)
    assert scan.verdict.status == "at the numerical floor"
    assert scan.verdict.fix_needed


# verdicts


def test_models_that_train_are_not_called_collapsed() -> None:
    from x_transformers import Encoder

    torch.manual_seed(0)
    tokens = torch.randn(4, 32, 64)
    pre = ds.scan(Encoder(dim=64, depth=24, heads=4, attn_dim_head=16).eval(), tokens)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 24, "num_attention_heads": 4}
    config = T.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=100, initializer_range=0.02 * 12**0.5)
    llama = ds.scan(T.LlamaModel(config).eval(), torch.randint(0, 100, (4, 32)))
    for scan in (pre, llama):
        assert scan.verdict.status == "diverse"
        assert not scan.verdict.fix_needed
        assert "No fix needed" in str(scan.verdict)
        assert scan.verdict.driver
    assert "attention" in llama.verdict.driver


def test_a_common_offset_from_biases_is_told_from_mixing() -> None:
    model = encoder(depth=6)
    with torch.no_grad():
        for block in model.layers:
            block.self_attn.out_proj.weight.zero_()
            block.linear2.weight.zero_()
            block.linear2.bias.fill_(0.0)
            block.linear2.bias[:8] = 3.0
    scan = ds.scan(model, X)
    assert max(scan.verdict.shares, key=scan.verdict.shares.get) == "biases"
    assert "common offset from biases" in str(scan.verdict)


def test_deepnorm_scale_is_seen() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
            self.ffn = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm1(x * 2.5 + self.attention(x, x, x, need_weights=False)[0])
            return self.norm2(2.5 * x + self.ffn(x))

    scan = ds.scan(nn.ModuleDict({"b": nn.Sequential(Deep(), Deep())})["b"], X)
    assert scan.placement == "post" and scan.residual_scale == 2.5


# wrong use


def test_no_blocks() -> None:
    with pytest.raises(BlocksNotFoundError, match=r"none was seen in Linear"):
        ds.scan(nn.Linear(16, 16), X)


def test_a_block_called_again_and_again_is_found() -> None:
    class Universal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(5):
                x = self.block(x)
            return x

    model = Universal().eval()
    expected = [ds.metrics.t_sim(X).mean()]
    Y = X
    for _ in range(5):
        Y = model.block(Y)
        expected.append(ds.metrics.t_sim(Y).mean())
    for scan in (ds.scan(model, X), ds.scan(model, X, blocks="block")):
        assert scan.blocks == "block"
        torch.testing.assert_close(scan["t_sim"], torch.stack(expected))


def test_attention_that_cannot_be_seen() -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(9, 9)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.mix(x.mT).mT

    model = nn.Sequential(Mixer(), Mixer())
    scan = ds.scan(model, X)
    torch.testing.assert_close(scan["t_sim"][2], ds.metrics.t_sim(model(X)).mean())
    assert any("no attention was seen" in note for note in scan.notes)
    alone = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2)))
    with pytest.raises(AttentionNotSeenError, match=r"no token was seen to change another.*attention=False"):
        ds.scan(alone, X)
    assert ds.scan(alone, X, attention=False).depth == 2


def test_one_token() -> None:
    with pytest.raises(ShapeError, match=r"at least two tokens; got states of shape \(4, 1, 16\)"):
        ds.scan(encoder(), X[:, :1])


def test_one_sequence_without_a_batch_axis() -> None:
    model = encoder()
    for scan in (ds.scan(model, X[0]), ds.scan(model, X[0], attention=False)):
        torch.testing.assert_close(scan["t_sim"], ds.scan(model, X[:1])["t_sim"])
        assert (scan.tokens, scan.width, scan.samples) == (9, 16, 1)


def test_blocks_by_pattern() -> None:
    model = bert()
    assert ds.scan(model, IDS, blocks="encoder.layer.*").block_names == [f"encoder.layer.{i}" for i in range(3)]
    with pytest.raises(BlocksNotFoundError, match=r"Did you mean encoder\.layer\.\*"):
        ds.scan(model, IDS, blocks="encoder.layers.*")


@over(
    "call, error, message",
    [
        (lambda: ds.scan(encoder(), X, metrics=["t_simm"]), UnknownNameError, "Did you mean t_sim"),
        (lambda: ds.scan(encoder(), X)["t_sin"], UnknownNameError, "Did you mean t_sim"),
        (lambda: ds.scan(encoder(), X)["effective_rank"], UnknownNameError, "was not measured"),
        (lambda: ds.scan(encoder(), X, metrics=["eta"]), UsageError, "law of the weights"),
        (lambda: ds.scan(lambda x: x, X), UsageError, "must be a torch.nn.Module"),
        (lambda: ds.scan(encoder(), "text"), UsageError, "Call your tokenizer first"),
        (lambda: ds.scan(encoder(), []), UsageError, "empty iterable"),
        (lambda: ds.scan(encoder(), [3]), UsageError, "batch 0 is int"),
        (lambda: ds.scan(encoder(), X, gradients=lambda out: out), UsageError, "returns a scalar loss"),
        (lambda: ds.scan(encoder(), torch.randn(4, 9, 17)), ForwardError, "TransformerEncoder raised"),
    ],
)
def test_wrong_use_is_answered(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_two_towers_are_both_measured() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = encoder(3).layers, encoder(2).layers

        def forward(self, x: Tensor) -> Tensor:
            y = x
            for block in self.left:
                x = block(x)
            for block in self.right:
                y = block(y)
            return x + y

    model = Two().eval()
    scan = ds.scan(model, X)
    assert scan.blocks == "left.*" and scan.depth == 3 and [*scan.streams] == ["left", "right"]
    alone = ds.scan(model, X, blocks="right.*")
    assert alone.depth == 2 and torch.equal(alone["t_sim"], scan.streams["right"]["t_sim"])
    assert torch.equal(ds.scan(model, X, stream="right")["t_sim"], alone["t_sim"])
    with pytest.raises(UnknownNameError, match=r"stream.*left"):
        ds.scan(model, X, stream="middle")


def test_no_warning_is_raised_by_a_scan() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds.scan(encoder(), X)
