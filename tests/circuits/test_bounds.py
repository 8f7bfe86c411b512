"""The bounds from real weights against the definition on plain copies of them, on the families that the theorem covers."""

import json
import math

import pytest
import torch
import transformers as T
from torch import nn

import depthscope as ds
from depthscope.circuits.bounds_record import EMPTY, Chain, power
from depthscope.errors import AttentionNotSeenError, UsageError
from loops import over

TINY = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 20, "vocab_size": 50}


def bert(std=0.2):
    torch.manual_seed(0)
    model = T.BertModel(T.BertConfig(**TINY, initializer_range=std)).eval()
    for p in model.parameters():
        if p.ndim == 1:
            nn.init.normal_(p, std=0.1)  # biases and scales count
    return model, torch.randint(0, 50, (2, 9))


def vit():
    torch.manual_seed(0)
    sizes = {**TINY, "image_size": 8, "patch_size": 2}
    sizes.pop("vocab_size")
    return T.ViTModel(T.ViTConfig(**sizes)).eval(), torch.randn(2, 3, 8, 8)


def encoder(norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 20, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval(), torch.randn(2, 9, 16)


FAMILIES = {
    "bert": bert,
    "albert": lambda: (T.AlbertModel(T.AlbertConfig(**TINY, embedding_size=8)).eval(), torch.randint(0, 50, (2, 9))),
    "vit": vit,
    "post norm encoder": lambda: encoder(False),
    "pre norm encoder": lambda: encoder(True),
    "classic": lambda: (ds.models.classic(depth=3, d=16, h=2), torch.randn(2, 9, 16)),
}


def size(X):
    return math.log10(float((X.abs().sum(-2).max() * X.abs().sum(-1).max()).sqrt()))


def heads_of_bert(layer):
    """W_Q, W_K, W_V (H, d, 8) with their biases and W_O (H, 8, d), from the modules by name."""
    attention = layer.attention
    split = [
        (m.weight.double().T.unflatten(1, (2, 8)).transpose(0, 1), m.bias.double().unflatten(0, (2, 8)))
        for m in (attention.self.query, attention.self.key, attention.self.value)
    ]
    return split, attention.output.dense.weight.double().T.unflatten(0, (2, 8)), attention.output.dense.bias.double()


def attend(layer, X):
    ((W_Q, b_Q), (W_K, b_K), (W_V, b_V)), W_O, b_O = heads_of_bert(layer)
    q, k, v = (X @ W + b[:, None] for W, b in ((W_Q, b_Q), (W_K, b_K), (W_V, b_V)))
    return ((q @ k.mT / math.sqrt(8)).softmax(-1) @ v @ W_O).sum(0) + b_O


@torch.no_grad()
def test_a_block_of_bert_is_what_its_modules_say():
    model, ids = bert()
    reads = []
    hooks = [
        layer.attention.register_forward_pre_hook(lambda _, args: reads.append(args[0].double()))
        for layer in model.encoder.layer
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    found = ds.bounds(model, ids)
    for layer, X, row in zip(model.encoder.layer, reads, found.blocks, strict=True):
        ((W_Q, _), (W_K, _), (W_V, _)), W_O, _ = heads_of_bert(layer)
        W_QK, W, R = W_Q @ W_K.mT, W_V @ W_O, X - X.mean(1, keepdim=True)
        norms = [[float(torch.linalg.matrix_norm(M, p)) for M in W] for p in (1, math.inf)]
        w = [float(torch.linalg.matrix_norm(M, 1)) for M in W_QK]
        beta = max(x * math.sqrt(one * inf) for x, one, inf in zip(w, *norms, strict=True))
        E = R[:, None] @ W_QK @ R[:, None].mT / math.sqrt(8)
        after = [attend(layer, x) for x in X]
        assert row.beta == pytest.approx(beta, rel=1e-5)
        assert float((E.amax(-1) - E.amin(-1)).max()) == pytest.approx(row.D, rel=1e-4)
        assert row.log_in == pytest.approx(sum(size(r) for r in R) / 2, abs=1e-5)
        assert row.log_out == pytest.approx(sum(size(a - a.mean(0)) for a in after) / 2, abs=1e-4)
        assert row.log_size == pytest.approx(sum(size(a) for a in after) / 2, abs=1e-4)


@torch.no_grad()
def test_the_networks_of_attention_alone_are_what_plain_copies_give():
    model, ids = bert()
    found = ds.bounds(model, ids)
    for chain, skip in ((found.pure, 0.0), (found.skips, 1.0)):
        ends = []
        for X in model.embeddings(ids).double():
            for layer in model.encoder.layer:
                X = skip * X + attend(layer, X)
            ends.append((size(X - X.mean(0)), size(X)))
        assert chain.size[-1] == pytest.approx(sum(s for _, s in ends) / 2, abs=1e-4)
        if skip or chain.found[-1] > -10:  # float64 has no digits below
            assert chain.found[-1] == pytest.approx(sum(r for r, _ in ends) / 2, abs=1e-3)


@over("name", FAMILIES)
def test_no_bound_is_passed(name):
    found = ds.bounds(*FAMILIES[name]())
    assert found.depth == 3
    assert all(row.log_out <= row.log_bound for row in found.blocks)
    for chain in (found.pure, found.skips):
        assert all(a <= b + 1e-9 for a, b in zip(chain.found, chain.bound, strict=True))
    assert all(row.ffn_lower <= row.ffn_upper for row in found.blocks)
    assert found.verdict.startswith("Pure attention with this model's weights")


def test_the_rate_is_cubic_near_equal_tokens_and_the_collapse_doubly_exponential():
    found = ds.bounds(*bert(std=0.02))
    assert [row.exponent for row in found.blocks] == pytest.approx([3, 3, 3], abs=0.05)
    steps = found.pure.found
    assert (steps[3] - steps[2]) / (steps[2] - steps[1]) == pytest.approx(3, abs=0.2)
    assert "collapsed into one" in found.verdict


def test_a_deep_network_goes_on_below_the_least_number():
    model = ds.models.classic(depth=9, d=16, h=2)
    found = ds.bounds(model, torch.randn(2, 9, 16)).pure.found
    assert found[-1] < -1000
    assert found[-1] / found[-2] == pytest.approx(3, abs=0.1)


def test_a_bound_is_called_vacuous_where_any_tokens_are_below_it():
    assert ds.bounds(*bert()).pure.vacuous
    found = ds.bounds(*bert())
    over = found.pure.bound[-1] - found.pure.size[-1] - EMPTY
    assert f"vacuous by {over:.0f} orders of magnitude (no residual" in found.verdict
    assert f"{found.pure.excess:.0f} above the truth" in found.verdict
    small = Chain(found=[-3.0, -9.5], bound=[-3.0, -8.0], size=[0.0, 0.0], D=[0.1])
    assert not small.vacuous
    assert small.excess == pytest.approx(1.5)
    assert Chain([0.0, -1.0], [0.0, EMPTY + 0.1], [0.0, 0.0], [0.1]).vacuous


def test_small_tokens_have_a_bound_that_tells_something():
    model = ds.models.classic(depth=2, d=16, h=2)
    found = ds.bounds(model, 1 + 1e-4 * torch.randn(2, 9, 16, dtype=torch.float64).float())
    assert not found.pure.vacuous
    assert "it tells something" in found.verdict


def zeroed(part):
    model, X = encoder(True)
    for layer in model.layers:
        nn.init.zeros_(layer.linear2.weight if part == "ffn" else layer.self_attn.out_proj.weight)
    return model, X


def test_attention_that_starts_at_zero_leaves_nothing_and_the_verdict_says_so():
    found = ds.bounds(*zeroed("attention"))
    assert found.pure.found[1:] == [-math.inf] * 3 == found.pure.bound[1:]
    assert "after 1 of 3 blocks the bound says 0, and nothing at all is found" in found.verdict
    assert "still differ" not in found.verdict
    assert found.to_dict()["blocks"][0]["log_out"] == "-inf"
    assert "nan" not in str(found)


def test_a_network_that_starts_at_zero_leaves_nothing():
    found = ds.bounds(*zeroed("ffn"))
    assert found.with_ffn[1:] == [-math.inf] * 3
    assert found.blocks[0].ffn_upper == 0


def test_scores_far_apart_have_a_finite_bound():
    model, X = encoder(True)
    for layer in model.layers:
        layer.self_attn.in_proj_weight.data.mul_(30)
    found = ds.bounds(model, X)
    assert found.blocks[0].D > 400  # e^2D is no number
    assert all(math.isfinite(one) for one in (*found.pure.bound, *found.skips.bound, *found.with_ffn))
    assert "inf" not in found.verdict


def test_scores_of_any_scale_have_the_printed_bound():
    class Block(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale, self.W = scale, nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            q, k, v = (W(x) for W in self.W[:3])
            q = q[:, None]
            mixed = nn.functional.scaled_dot_product_attention(q, k[:, None], v[:, None], scale=self.scale)
            return x + self.W[3](mixed[:, 0])

    X = torch.randn(2, 5, 8)
    for scale in (0.25, 4.0):
        (row, *_) = ds.bounds(nn.Sequential(Block(scale), Block(scale)), X).blocks
        assert row.log_printed == pytest.approx(math.log10(4 * row.beta * scale) + 3 * row.log_in, abs=1e-9)


def test_positions_are_refused_also_where_tokens_are_so_many_that_each_has_little():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            n = x.shape[1]
            bias = 0.2 * torch.sin(torch.arange(n)[:, None] + torch.arange(n)).to(x)
            q, k, v = (0.1 * W(x)[:, None] for W in self.W[:3])
            return x + self.W[3](nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)[:, 0])

    with pytest.raises(UsageError, match="adds something to its scores: a row of P differs by"):
        ds.bounds(nn.Sequential(Block(), Block()), torch.randn(1, 1500, 8))


def test_padding_is_left_out():
    model, ids = bert()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    whole = ds.bounds(model, {"input_ids": ids[:1], "attention_mask": mask[:1]})
    short = ds.bounds(model, {"input_ids": ids[1:, :6]})
    both = ds.bounds(model, {"input_ids": ids, "attention_mask": mask})
    for a, b, c in zip(whole.blocks, short.blocks, both.blocks, strict=True):
        assert c.log_in == pytest.approx((a.log_in + b.log_in) / 2, abs=1e-4)
        assert c.log_out == pytest.approx((a.log_out + b.log_out) / 2, abs=1e-3)
        assert c.D == pytest.approx(max(a.D, b.D), rel=1e-3)


def test_a_causal_model_is_refused():
    model = T.GPT2Model(T.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50)).eval()
    with pytest.raises(UsageError, match=r"block 1 of GPT2Model has a causal mask.*says nothing"):
        ds.bounds(model, torch.randint(0, 50, (2, 9)))


@over("name", ["Llama", "XLNet"])
def test_positions_inside_attention_are_refused(name):
    sizes = {**TINY, "num_key_value_heads": 2} if name == "Llama" else {"d_model": 16, "n_layer": 2, "n_head": 2}
    config = getattr(T, f"{name}Config")(**sizes | {"vocab_size": 50})
    with pytest.raises(AttentionNotSeenError, match=r"shows no such queries and keys.*depthscope ablate"):
        ds.bounds(getattr(T, f"{name}Model")(config).eval(), torch.randint(0, 50, (2, 9)))


def test_numbers_that_are_not_finite_are_refused():
    model = ds.models.classic(depth=2, d=16, h=2)
    with pytest.raises(UsageError, match=r"numbers that are not finite\. See where: depthscope scan"):
        ds.bounds(model, 1e20 * torch.randn(2, 9, 16))


def test_equal_tokens_are_refused():
    with pytest.raises(UsageError, match="tokens of every sequence must differ"):
        ds.bounds(ds.models.classic(depth=2, d=16, h=2), torch.ones(2, 9, 16))


def test_the_record_is_json_and_prints(tmp_path):
    found = ds.bounds(*FAMILIES["albert"]())  # its activation has no upper constant: infinite
    found.save(tmp_path / "bounds.json")
    record = json.loads((tmp_path / "bounds.json").read_text())
    assert record["format"] == "depthscope.bounds"
    assert record["with_ffn"][-1] == "inf"
    assert len(record["blocks"]) == 3
    assert "power" in str(found)
    assert "activation that torch has by name" in " ".join(str(found).replace("│", " ").split())


def test_powers_of_ten_in_words():
    assert [power(x) for x in (0.0, 2.5, 8.04, -250.3, math.nan, -math.inf, math.inf)] == [
        "1",
        "316",
        "10^8.0",
        "10^-250",
        "?",
        "0",
        "inf",
    ]
