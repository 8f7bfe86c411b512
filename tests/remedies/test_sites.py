"""A remedy at every site of a block, against the block computed by hand, and on other people's models."""

import pytest
import torch
import torch.nn.functional as F
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import HookError, UnknownNameError
from depthscope.remedies.fix import TOKEN_SITES as SITES
from loops import crossed, over

IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))
TOKENS = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(2))
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
VISION = {k: v for k, v in SIZES.items() if k != "vocab_size"} | {"image_size": 12, "patch_size": 4}


def encoder(**options) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


FAMILIES = {
    "torch post": lambda: (encoder(), TOKENS),
    "torch pre": lambda: (encoder(norm_first=True), TOKENS),
    "ours post": lambda: (ds.models.classic(3, 32, 4), TOKENS),
    "ours pre": lambda: (ds.models.classic(3, 32, 4, wiring="pre_norm"), TOKENS),
    "bert": lambda: (T.BertModel(T.BertConfig(**SIZES)).eval(), IDS),
    "roberta": lambda: (T.RobertaModel(T.RobertaConfig(**SIZES)).eval(), IDS),
    "albert": lambda: (T.AlbertModel(T.AlbertConfig(embedding_size=16, **SIZES)).eval(), IDS),
    "distilbert": lambda: (
        T.DistilBertModel(T.DistilBertConfig(dim=32, n_layers=3, n_heads=4, hidden_dim=64, vocab_size=99)).eval(),
        IDS,
    ),
    "vit": lambda: (T.ViTModel(T.ViTConfig(**VISION)).eval(), torch.randn(2, 3, 12, 12)),
    "t5": lambda: (
        T.T5EncoderModel(T.T5Config(d_model=32, num_layers=3, num_heads=4, d_ff=64, d_kv=8, vocab_size=99)).eval(),
        IDS,
    ),
}


@torch.no_grad()
def output(model: nn.Module, inputs: Tensor) -> Tensor:
    out = model(inputs)
    return out if isinstance(out, Tensor) else out.last_hidden_state


@crossed("family, at", list(FAMILIES), SITES)
def test_a_remedy_acts_once_in_every_block_and_is_undone_bit_for_bit(family: str, at: str) -> None:
    model, inputs = FAMILIES[family]()
    before = output(model, inputs)
    with ds.fix_(model, ds.remedies.DeEscalate(tau=0.5), at=at) as fix:
        changed = output(model, inputs)
        assert fix.fired == 3
    assert not torch.equal(changed, before)
    assert torch.equal(output(model, inputs), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@over("at", SITES)
@over("wiring", ["post_norm", "pre_norm"])
@torch.no_grad()
def test_a_block_with_a_remedy_is_the_block_by_hand(wiring: str, at: str) -> None:
    model = ds.models.classic(2, 32, 4, wiring=wiring, alpha=0.7)
    remedy = ds.remedies.DeEscalate(tau=0.6)

    def here(site: str, X: Tensor) -> Tensor:
        return remedy(X) if site == at else X

    Y = TOKENS
    for block in model:
        norms, SA, FFN = (block.wiring.norm_1, block.wiring.norm_2), block.attention, block.ffn
        X = here("block_in", Y)
        if wiring == "post_norm":
            Y = norms[0](here("sa_sum", X + here("sa_out", 0.7 * SA(here("attn_in", X)))))
            Y = here("ffn_in", Y)
            Y = norms[1](here("ffn_sum", Y + FFN(Y)))
        else:
            Y = here("ffn_in", here("sa_sum", X + here("sa_out", 0.7 * SA(here("attn_in", norms[0](X))))))
            Y = here("ffn_sum", Y + FFN(norms[1](Y)))
        Y = here("block_out", Y)
    with ds.fix_(model, remedy, at=at):
        torch.testing.assert_close(model(TOKENS), model.ending(Y))


@over("at", SITES)
def test_gradients_flow_through_a_remedy(at: str) -> None:
    model = ds.models.classic(2, 32, 4)
    with ds.fix_(model, ds.remedies.DeEscalate(tau=0.5), at=at):
        F.mse_loss(model(TOKENS), TOKENS).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_fix_may_be_scanned_before_it_has_run() -> None:
    model, inputs = FAMILIES["bert"]()
    with ds.fix_(model, ds.remedies.DeEscalate()):
        scan = ds.scan(model, inputs)
    assert scan.depth == 3 and float(scan["t_sim"][1:].max()) < 1e-6
    assert scan.remedies == ["DeEscalate(tau=1) at block_out"]


def test_a_site_that_a_model_does_not_have_is_answered_with_those_it_has() -> None:
    model = T.XLNetModel(T.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=64, vocab_size=99)).eval()
    message = r"'attn_in' was not met\. They have block_in, sa_out, sa_sum, ffn_in, ffn_sum, block_out"
    with ds.fix_(model, ds.remedies.DeEscalate(), at="attn_in"), pytest.raises(HookError, match=message):
        model(IDS)
    with pytest.raises(UnknownNameError, match=r"no site is called 'ffn'\. Did you mean ffn_in"):
        ds.fix_(model, ds.remedies.DeEscalate(), at="ffn")


def x_encoder(**options) -> tuple[nn.Module, Tensor]:
    from x_transformers import Encoder

    return Encoder(dim=32, depth=3, heads=4, **options).eval(), TOKENS


EVERYWHERE = FAMILIES | {
    "gpt2": lambda: (T.GPT2Model(T.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=99)).eval(), IDS),
    "llama": lambda: (T.LlamaModel(T.LlamaConfig(**SIZES, num_key_value_heads=2)).eval(), IDS),
    "x pre": lambda: x_encoder(),
    "x post": lambda: x_encoder(pre_norm=False),
    "x sandwich": lambda: x_encoder(sandwich_norm=True),
    "x flash": lambda: x_encoder(attn_flash=True),
}


@over("family", EVERYWHERE, every=3)
def test_complete_de_escalation_leaves_no_common_part_as_21_says(family: str) -> None:
    model, inputs = EVERYWHERE[family]()
    before = output(model, inputs)
    with ds.fix_(model, ds.remedies.DeEscalate(tau=1.0), at="block_out", causal="leak"):
        scan = ds.scan(model, inputs)
        assert scan.depth == 3 and float(scan["t_sim"][1:].max()) < 1e-6
        assert not torch.equal(output(model, inputs), before)
    assert torch.equal(output(model, inputs), before)


@over("at", SITES)
@over("family", ["x pre", "x post"])
def test_sites_of_blocks_that_come_in_two_halves(family: str, at: str) -> None:
    model, inputs = EVERYWHERE[family]()
    with ds.fix_(model, ds.remedies.DeEscalate(tau=0.5), at=at) as fix:
        if at == "block_in":  # its skip is read before any module of the block runs
            with pytest.raises(HookError, match="block_out"):
                output(model, inputs)
            return
        output(model, inputs)
    assert fix.fired == 3


@over("at", ["sa_sum", "ffn_in", "block_out"])
def test_time_first_models_lose_the_mean_over_tokens_and_not_over_the_batch(at: str) -> None:
    torch.manual_seed(0)
    batch_first = encoder()
    time_first = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64), 3, enable_nested_tensor=False).eval()
    time_first.load_state_dict(batch_first.state_dict())
    results = []
    for model, X in ((batch_first, TOKENS), (time_first, TOKENS.transpose(0, 1))):
        with ds.fix_(model, ds.remedies.DeEscalate(), at=at):
            results.append(output(model, X))
    torch.testing.assert_close(results[0], results[1].transpose(0, 1), rtol=1e-4, atol=1e-5)


def test_attention_that_reads_a_multiple_of_the_stream_keeps_it() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.ffn = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 32)
            self.norm = nn.LayerNorm(32)

        def forward(self, X: Tensor) -> Tensor:
            read = 0.1 * X
            X = self.norm(X + self.attention(read, read, read, need_weights=False)[0])
            return X + self.ffn(X).relu()

    class Same(nn.Module):
        def forward(self, X: Tensor) -> Tensor:
            return X

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, X: Tensor) -> Tensor:
            for block in self.blocks:
                X = block(X)
            return X

    model = Model().eval()
    with torch.no_grad():
        plain = model(TOKENS)
        for site in ("attn_in", "sa_out", "sa_sum"):
            with ds.fix_(model, Same(), at=site, causal="no"):
                assert torch.allclose(model(TOKENS), plain, atol=1e-5)
