"""Where a fix could be silently wrong: leaks, and masks of other kinds."""

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import CausalLeakError
from loops import over

R = ds.remedies
X = torch.randn(4, 7, 16, generator=torch.Generator().manual_seed(1)) + 0.5
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}


def encoder(**options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, **{"batch_first": True} | options)
    return nn.TransformerEncoder(layer, 2)


def gpt2(**options) -> nn.Module:
    return T.GPT2Model(T.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99, **options)).eval()


def llama(**options) -> nn.Module:
    return T.LlamaModel(T.LlamaConfig(**SIZES, num_key_value_heads=2, **options)).eval()


def t5(**options) -> nn.Module:
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 64, "vocab_size": 99}
    return T.T5Model(T.T5Config(**sizes, **options)).eval()


LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7, [0, 1, 1, 1, 1, 1, 1]])


# leaks


@over("attention", ["eager", "sdpa"])
@over("build", [gpt2, llama])
@torch.no_grad()
def test_left_padding_does_not_hide_that_a_model_is_causal(build, attention: str) -> None:
    model, other = build(attn_implementation=attention), IDS.clone()
    other[:, -1] = (other[:, -1] + 1) % 99
    with ds.fix_(model, R.DeEscalate()) as fix:
        a, b = (model(input_ids=ids, attention_mask=LEFT).last_hidden_state for ids in (IDS, other))
    real = LEFT[:, :-1].bool()  # what padding gives back is nobody's business
    assert fix.remedy.form == "sink"
    assert torch.equal(a[:, :-1][real], b[:, :-1][real])


@torch.no_grad()
def test_a_mask_of_large_numbers_is_causal_too() -> None:
    model = encoder().eval()
    with ds.fix_(model, R.DeEscalate()) as fix:
        model(X, mask=torch.full((7, 7), -1e9).triu(1))
    assert fix.remedy.form == "sink"


@over("length", [5, 7])
@torch.no_grad()
def test_cross_attention_says_nothing_about_a_decoder(length: int) -> None:
    model, source, other = t5(), torch.randint(1, 99, (3, length)), IDS.clone()
    other[:, 4] = (other[:, 4] + 1) % 99
    with ds.fix_(model, R.DeEscalate(), blocks="decoder.block.*") as fix:
        a, b = (model(input_ids=source, decoder_input_ids=ids).last_hidden_state for ids in (IDS, other))
        assert fix.remedy.form == "sink" and torch.equal(a[:, :4], b[:, :4])
    with ds.fix_(model, R.DeEscalate(), blocks=["encoder.block.*", "decoder.block.*"]) as fix:
        model(input_ids=source, decoder_input_ids=IDS)
        assert fix.remedy.form == "sink"


def test_a_module_that_does_not_say_is_not_trusted() -> None:
    class Mean(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            return tokens - tokens.mean(-2, keepdim=True)

    with ds.fix_(gpt2(), Mean()) as fix, pytest.raises(CausalLeakError, match="does not say whether it shows tokens"):
        fix.model(IDS)
    with ds.fix_(encoder().eval(), Mean()) as fix:
        assert float(ds.metrics.t_sim(fix.model(X)).max()) < 1e-6


def test_one_token_cannot_tell() -> None:
    with ds.fix_(gpt2(), R.DeEscalate()) as fix:
        with pytest.raises(CausalLeakError, match="over two tokens or more"):
            fix.model(IDS[:, :1])
        fix.model(IDS)  # and is not held against it
        assert fix.remedy.form == "sink"


# masks


@over("name", [n for n in dir(R) if getattr(R, n).at == "attn"])
@over("build", [gpt2], long=[llama])
@torch.no_grad()
def test_left_padding_does_not_matter_to_remedies_of_attention(build, name: str) -> None:
    model, mask = build(), torch.ones_like(IDS)
    mask[:, :2] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with ds.fix_(model, getattr(R, name)()):
        padded = model(input_ids=IDS, attention_mask=mask, position_ids=positions).last_hidden_state
        torch.testing.assert_close(padded[:, 2:], model(IDS[:, 2:]).last_hidden_state, rtol=1e-4, atol=1e-5)


@over("training", [False, True])
@torch.no_grad()
def test_torchs_encoder_with_padding_as_it_comes(training: bool) -> None:
    """In evaluation its fast path would make a nested tensor of the batch."""
    model, padding = encoder().train(training), torch.zeros(4, 7, dtype=torch.bool)
    padding[:, 5:] = True
    for at in ("block_out", "sa_sum"):
        with ds.fix_(model, R.DeEscalate(), at=at):
            found = model(X, src_key_padding_mask=padding)[:, :5]
            torch.testing.assert_close(found, model(X[:, :5]), rtol=1e-4, atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


@over("batch", [4, 7])
@torch.no_grad()
def test_time_first_with_masks(batch: int) -> None:
    model = encoder(batch_first=False).eval()
    twin = encoder().eval()
    twin.load_state_dict(model.state_dict())
    tokens, padding = torch.randn(batch, 7, 16), torch.zeros(batch, 7, dtype=torch.bool)
    padding[1:, 5:] = True
    with ds.fix_(model, R.DeEscalate(0.5)), ds.fix_(twin, R.DeEscalate(0.5)):
        if batch == 7:  # as many sequences as tokens: one look without masks tells
            model(tokens.transpose(0, 1))
        out = model(tokens.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)
        torch.testing.assert_close(out[~padding], twin(tokens, src_key_padding_mask=padding)[~padding])


@torch.no_grad()
def test_masks_of_all_kinds_are_one_mask() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = encoder().eval()

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            ones = attention_mask
            if ones is not None and ones.ndim == 4:
                ones = ones[:, 0, -1]
            padding = None if ones is None else (ones < 0 if bool((ones < 0).any()) else ones < 0.5)
            return self.inner(x, src_key_padding_mask=padding)

    model, ones = Masked(), torch.ones(4, 7)
    ones[:, 5:] = 0
    masks = [ones, ones.long(), (1 - ones) * -1e9, ((1 - ones) * -1e9)[:, None, None].expand(4, 1, 7, 7)]
    with ds.fix_(model, R.DeEscalate(), blocks="inner.layers.*"):
        found = [model(X, attention_mask=mask)[:, :5] for mask in masks]
    assert all(torch.allclose(out, found[0], atol=1e-6) for out in found)
    assert float(ds.metrics.t_sim(found[0]).max()) < 1e-6
