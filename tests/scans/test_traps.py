"""Ways in which a scan could be silently wrong or leave something behind, each held shut."""

import math

import pytest
import torch
import torch.nn.functional as F
import transformers as T
from torch import Tensor, nn

import depthscope as ds

X = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(3))


class Block(nn.Module):
    """A plain pre-norm block whose parts can be replaced."""

    def __init__(self, d: int = 16, h: int = 2) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.heads = h

    def attend(self, x: Tensor, **options) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(self.norm(x))


def stack(kind: type[Block], depth: int = 3) -> nn.Sequential:
    return nn.Sequential(*(kind() for _ in range(depth))).eval()


def test_a_mask_by_position_counts_as_one_by_name() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = T.BertModel(T.BertConfig(**sizes, vocab_size=99)).eval()
    ids, mask = torch.randint(1, 99, (3, 8)), (torch.arange(8) < 5).long().expand(3, 8)
    named = ds.scan(model, {"input_ids": ids, "attention_mask": mask})
    torch.testing.assert_close(ds.scan(model, (ids, mask))["t_sim"], named["t_sim"])


def test_torch_padding_masks_as_bool_and_as_float() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    pad = torch.arange(9).expand(4, 9) >= 6
    expected = ds.scan(model, X[:, :6])["t_sim"]
    additive = torch.zeros(4, 9).masked_fill(pad, -math.inf)
    for mask in (pad, additive):
        torch.testing.assert_close(
            ds.scan(model, {"src": X, "src_key_padding_mask": mask})["t_sim"], expected, atol=1e-6, rtol=0
        )
    torch.testing.assert_close(ds.scan(model, (X, None, pad))["t_sim"], expected, atol=1e-6, rtol=0)
    scores = torch.zeros(9, 9)
    assert ds.scan(model, {"src": X, "mask": scores}).valid_tokens == 9


def test_a_square_mask_of_x_transformers_is_padding() -> None:
    from x_transformers import Encoder

    model = Encoder(dim=16, depth=2, heads=2, attn_dim_head=8).eval()
    square = X[:, :4]
    mask = (torch.arange(4) < 3).expand(4, 4)
    torch.testing.assert_close(
        ds.scan(model, {"x": square, "mask": mask})["t_sim"][0], ds.metrics.t_sim(square[:, :3]).mean()
    )


def test_an_input_written_in_place_is_measured_as_it_came() -> None:
    class Writes(Block):
        def forward(self, x: Tensor) -> Tensor:
            x += 1.0
            return x + self.attend(self.norm(x))

    scan = ds.scan(stack(Writes, 4), X.clone())
    assert scan.depth == 4
    torch.testing.assert_close(scan["t_sim"][0], ds.metrics.t_sim(X).mean())


def test_tokens_that_vanish_are_not_called_diverse() -> None:
    class Kills(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 0

    verdict = ds.scan(stack(Kills), X).verdict
    assert verdict.status == "not a number" and verdict.block == 1 and "all zero" in str(verdict)


def test_tokens_that_enter_equal_are_blamed_on_the_embeddings() -> None:
    verdict = ds.scan(stack(Block), X[:, :1].expand(4, 9, 16).clone()).verdict
    assert verdict.status == "at the numerical floor" and verdict.shares == {"embeddings": 1.0}


def test_windows_are_not_taken_for_whole_sequences() -> None:
    class Windows(Block):
        def forward(self, x: Tensor) -> Tensor:
            inside = self.norm(x).unflatten(1, (-1, 16)).flatten(0, 1)
            return x + self.attend(inside).unflatten(0, (len(x), -1)).flatten(1, 2)

    tokens = torch.randn(16, 64, 16)
    scan = ds.scan(stack(Windows), tokens)
    assert any("in windows of 16 tokens" in note for note in scan.notes)
    torch.testing.assert_close(scan["t_sim"][0], ds.metrics.t_sim(tokens).mean())


def test_norms_of_queries_and_keys_are_not_what_attention_reads() -> None:
    class Normed(Block):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
            self.q_norm, self.k_norm = nn.LayerNorm(16), nn.LayerNorm(16)

        def forward(self, x: Tensor) -> Tensor:
            q, k = self.q_norm(self.q(x)), self.k_norm(self.k(x))  # (B, n, d), before the heads are split
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (q, k, x))
            return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    model = stack(Normed, 1)
    scan = ds.scan(model, X)
    block = model[0]
    q, k = (
        n(w(X)).unflatten(-1, (2, -1)).transpose(1, 2) for n, w in ((block.q_norm, block.q), (block.k_norm, block.k))
    )
    P = (q @ k.mT / 8**0.5).softmax(-1).detach()
    torch.testing.assert_close(scan.per_head("omega")[0], ds.metrics.omega(X, P).mean(0), atol=1e-5, rtol=0)


def test_a_norm_called_as_a_function_is_seen() -> None:
    class Functional(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.attend(F.layer_norm(x, (16,)))

    scan = ds.scan(stack(Functional), X)
    assert scan.placement == "pre"


def test_nothing_is_left_on_the_inputs() -> None:
    tokens = X.clone().requires_grad_()
    ds.scan(stack(Block), tokens)
    ds.scan(stack(Block), tokens, gradients=lambda out: out.square().mean())
    assert not tokens._backward_hooks and tokens.grad is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_part_is_passed_over() -> None:
    class Scripted(Block):
        def __init__(self) -> None:
            super().__init__()
            self.extra = torch.jit.script(nn.GELU())

        def forward(self, x: Tensor) -> Tensor:
            return x + self.attend(self.extra(self.norm(x)))

    model = stack(Scripted)
    assert ds.scan(model, X).depth == 3
    assert not any(m._forward_hooks for m in model.modules())


def test_buffers_that_grow_or_begin_empty_are_put_back() -> None:
    class Caches(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", None)
            self.register_buffer("grows", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.cache = x.detach()
            self.grows = torch.cat([self.grows, torch.ones(1)])
            return super().forward(x)

    model = stack(Caches)
    kept = model[0].grows
    ds.scan(model, X)
    assert model[0].cache is None and model[0].grows is kept


def test_a_bias_for_each_head() -> None:
    class Biased(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.attend(self.norm(x), attn_mask=torch.arange(2 * 9 * 9.0).reshape(2, 9, 9) / 50)

    model = stack(Biased, 1)
    q, k, _ = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in model[0].qkv(model[0].norm(X)).chunk(3, -1))
    P = (q @ k.mT / 8**0.5 + torch.arange(2 * 9 * 9.0).reshape(2, 9, 9) / 50).softmax(-1).detach()
    torch.testing.assert_close(ds.scan(model, X).per_head("delta")[0], ds.metrics.delta(P).mean(0), atol=1e-6, rtol=0)


def test_shared_weights_have_one_gradient_and_it_is_said() -> None:
    model = stack(Block, 2)
    model[1].qkv = model[0].qkv
    scan = ds.scan(model, X, gradients=lambda out: out.square().mean())
    assert scan["gradient_norm"].min() > 0 and any("share weights" in note for note in scan.notes)


def test_a_head_that_is_not_a_number_is_not_averaged_away() -> None:
    model = stack(Block)
    with torch.no_grad():
        model[1].qkv.weight[:8] = math.nan  # the queries of head 0
    scan = ds.scan(model, X)
    assert math.isnan(scan["delta"][1]) and not math.isnan(scan["delta"][0])
    assert not math.isnan(scan.per_head("delta")[1, 1])
    from depthscope.reports.rows import table

    names, cells = table(scan)
    assert cells[2][names.index("delta")] == "nan"


def test_nothing_is_left_out_of_a_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether states and attentions wait for others of their shape or not, every sequence and head counts."""
    from depthscope.scans import attention_reader, state_reader

    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    together = ds.scan(model, X)
    monkeypatch.setattr(state_reader, "CHUNK", 1)
    monkeypatch.setattr(attention_reader, "TOGETHER", 1)
    alone = ds.scan(model, X)
    for name in ("t_sim", "t_div_core", "relative_residual"):
        torch.testing.assert_close(together[name], alone[name], rtol=1e-12, atol=1e-12)
        one_by_one = torch.stack([ds.scan(model, x[None])[name] for x in X]).mean(0)
        torch.testing.assert_close(together[name], one_by_one, rtol=1e-5, atol=1e-6)
    for name in ("delta", "lambda_2", "omega", "mu_2", "attention_entropy", "sink_mass"):
        torch.testing.assert_close(together.per_head(name), alone.per_head(name), rtol=1e-5, atol=1e-6)
    for step in together.step_names:
        torch.testing.assert_close(together.per_step("gain")[step], alone.per_step("gain")[step])


def test_a_branch_without_visible_attention_is_not_called_a_feed_forward_network() -> None:
    class Averages(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.out(self.norm(x)).mean(1, keepdim=True).expand_as(x)

    def full() -> nn.Module:
        return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)

    scan = ds.scan(nn.Sequential(full(), Averages(), full()).eval(), X)
    assert scan.step_names == ["attention", "ffn", "branch"] and scan.head_counts == [2, 1, 2]
    assert any("in 1 of 3 blocks" in note and "probed" in note for note in scan.notes)
    assert float(scan.heads["delta"][1, 0]) < 1e-5  # a mean over all tokens is uniform attention
    assert scan.per_step("gain")["branch"].isnan().tolist() == [True, False, True]


def test_an_encoder_and_a_decoder_are_both_measured() -> None:
    sizes = {"d_model": 32, "num_layers": 3, "num_heads": 4, "d_ff": 64, "d_kv": 8, "vocab_size": 99}
    model = T.T5Model(T.T5Config(**sizes)).eval()
    ids = torch.randint(1, 99, (2, 8))
    scan = ds.scan(model, {"input_ids": ids, "decoder_input_ids": ids[:, :5]})
    assert {name: one.blocks for name, one in scan.streams.items()} == {
        "encoder": "encoder.block.*",
        "decoder": "decoder.block.*",
    }
    assert scan.streams["decoder"].tokens == 5
    decoder = ds.scan(model, {"input_ids": ids, "decoder_input_ids": ids[:, :5]}, blocks="decoder.block.*")
    assert decoder.tokens == 5 and decoder.causal is True


def test_cross_attention_without_a_metric_of_its_own() -> None:
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True).eval()
    found = ds.scan(model, (X, X[:, :5]), metrics=["delta"])
    assert set(found.streams) == {"encoder", "decoder"} and "delta" in found.heads


def test_one_unbatched_sequence_with_a_mask() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    mask = torch.tensor([1] * 6 + [0] * (X.shape[1] - 6))
    assert ds.scan(model, X[0], mask=mask).valid_tokens == 6


def test_heads_that_are_not_finite_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """LAPACK writes complaints about NaN onto stdout, between the lines of JSON."""
    from depthscope.metrics.pattern import pattern_of
    from depthscope.metrics.spectrum import lambda_2_of

    P = torch.stack([torch.full((20, 20), torch.nan), torch.full((20, 20), 1 / 20)])
    value, _ = lambda_2_of(pattern_of(P, where="test", trusted=True)[0])
    assert value.isnan().tolist() == [True, False]
    assert capfd.readouterr().out == ""
