"""Remedies of attention: their formulas written literally, and on models of all kinds."""

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.registry import TABLES
from depthscope.remedies.attention_remedy import AttentionRemedy
from loops import crossed, over

R = ds.remedies
X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))
NAMES = sorted(n for n, c in TABLES["remedy"].items() if issubclass(c, AttentionRemedy))
each = over("name", NAMES)
I = torch.eye(6, dtype=torch.float64)  # noqa: E741


def uniform(causal: bool) -> Tensor:
    U = torch.zeros(6, 6, dtype=torch.float64)
    for i in range(6):
        last = i + 1 if causal else 6
        U[i, :last] = 1 / last
    return U


def seen(U: Tensor) -> Tensor:
    return (U > 0).sum(-1, keepdim=True)


FORMULAS = [
    (R.AttnScale(0.7), lambda P, U: U + 1.7 * (P - U)),
    (R.CentredAttention(), lambda P, U: P - U),
    (R.CentredAttention(0.3), lambda P, U: P - 0.3 * U),
    (R.MindTheGap(0.4), lambda P, U: P - 0.4 * U),
    (R.MindTheGap(upscale="sqrt"), lambda P, U: seen(U) ** 0.5 * (P - U)),
    (R.ShapedAttention(0.2, 0.5, 0.9), lambda P, U: 0.2 * I + 0.5 * P - 0.9 * U),
    (R.GFSA(0.3, 0.8, -0.6, K=5), lambda P, U: 0.3 * I + 0.8 * P - 0.6 * (P + 4 * (P @ P - P))),
    (R.LaplacianHeads(), lambda P, U: torch.cat([I - P[:, :2], P[:, 2:]], 1)),
    (R.LaplacianHeads(0.75), lambda P, U: torch.cat([I - P[:, :3], P[:, 3:]], 1)),
    (R.LaplacianHeads(0.01), lambda P, U: torch.cat([I - P[:, :1], P[:, 1:]], 1)),
]


@over("causal", [False, True])
@over("remedy, formula", FORMULAS)
@torch.no_grad()
def test_a_remedy_of_the_pattern_is_its_formula(remedy: nn.Module, formula, causal: bool) -> None:
    model = ds.models.classic(1, 16, 4, causal=causal).double()
    SA = model.blocks[0].attention
    P, v = SA.pattern(X), X @ SA.W.weight.T
    values = v.unflatten(-1, (4, 4)).transpose(1, 2)  # (B, h, n, d_h)
    mixed = (formula(P, uniform(causal)) @ values).transpose(1, 2).flatten(-2)
    truth = model.blocks[0].wiring(X, lambda _: mixed, model.blocks[0].ffn)
    with ds.fix_(model, remedy) as fix:
        torch.testing.assert_close(model(X), truth)
        assert fix.fired == 1


LEARNED = [
    (R.AttnScale(learnable=True, heads=4), ["w"], lambda P, U, w: U + (1 + w) * (P - U)),
    (R.ShapedAttention(learnable=True, heads=4), ["a", "b", "c"], lambda P, U, a, b, c: a * I + b * P - c * U),
    (
        R.GFSA(learnable=True, heads=4),
        ["w_0", "w_1", "w_K"],
        lambda P, U, w_0, w_1, w_K: w_0 * I + w_1 * P + w_K * (P + 2 * (P @ P - P)),
    ),
]


@over("remedy, names, formula", LEARNED)
@torch.no_grad()
def test_every_head_has_its_own(remedy: nn.Module, names: list[str], formula) -> None:
    P = torch.rand(2, 4, 6, 6, dtype=torch.float64).softmax(-1)
    values = [torch.randn(4, 1, 1, dtype=torch.float64) for _ in names]
    for name, value in zip(names, values, strict=True):
        getattr(remedy.double(), name).copy_(value)
    U = torch.full_like(P, 1 / 6)
    truth = torch.stack([formula(P[:, h], U[:, h], *(v[h] for v in values)) for h in range(4)], 1)
    torch.testing.assert_close(remedy.pattern(P, U), truth)


def test_dropout_comes_after_the_remedy() -> None:
    """What dropout removes of P' is removed; U does not take it for a mask."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.5, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double().train()
    taken: list[Tensor] = []

    class Spy(AttentionRemedy):
        def pattern(self, P: Tensor, U: Tensor) -> Tensor:
            taken.extend([P, U])
            return P - U

    with ds.fix_(model, Spy()):
        model(X)
    P, U = taken
    torch.testing.assert_close(P.sum(-1), torch.ones_like(P.sum(-1)))  # nothing is dropped yet
    assert bool((P > 0).all()) and torch.equal(U, torch.full_like(U, 1 / 6))


def test_sharp_scores_are_no_mask() -> None:
    """A softmax that underflows has zeros where nothing is masked."""
    q = 40 * torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    model = ds.models.classic(1, 16, 2)
    P = torch.softmax(q @ q.mT, -1)
    assert float((P == 0).float().mean()) > 0.5
    taken = []

    class Spy(AttentionRemedy):
        def pattern(self, P: Tensor, U: Tensor) -> Tensor:
            taken.append(U)
            return P

    with ds.fix_(model, Spy()):
        model(100 * torch.randn(1, 6, 16))
    torch.testing.assert_close(taken[0], torch.full_like(taken[0], 1 / 6))


@torch.no_grad()
def test_x_transformers_qk_norm_agrees() -> None:
    x_transformers = pytest.importorskip("x_transformers")
    ours, theirs = (
        x_transformers.Encoder(dim=32, depth=2, heads=4, attn_dim_head=8, attn_flash=True, **options).eval()
        for options in ({}, {"attn_qk_norm": True, "attn_qk_norm_scale": 10})
    )
    theirs.load_state_dict(ours.state_dict(), strict=False)
    tokens = torch.randn(2, 7, 32)
    with ds.fix_(ours, R.QKNorm(10.0)):
        torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_neutreno_pulls_values_back_to_the_first_layer() -> None:
    model = ds.models.classic(2, 16, 4).double()

    def attention(block: nn.Module, state: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        v = state @ block.attention.W.weight.T
        first = v if first is None else first
        return block.attention(state) + 0.6 * (first - v), first

    Y, first = X, None
    for block in model:
        out, first = attention(block, Y, first)
        Y = block.wiring(Y, lambda _, out=out: out, block.ffn)
    with ds.fix_(model, R.NeuTRENO()):
        torch.testing.assert_close(model(X), Y)
        torch.testing.assert_close(model(X), Y)  # what was kept of the last pass is forgotten


@torch.no_grad()
def test_qk_norm_scores_are_cosines() -> None:
    model = ds.models.classic(1, 16, 4).double()
    SA = model.blocks[0].attention
    q, k, v = ((X @ W.weight.T).unflatten(-1, (4, 4)).transpose(1, 2) for W in (SA.W_q, SA.W_k, SA.W))
    cosine = torch.nn.functional.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    mixed = ((10 * cosine).softmax(-1) @ v).transpose(1, 2).flatten(-2)
    truth = model.blocks[0].wiring(X, lambda _: mixed, model.blocks[0].ffn)
    with ds.fix_(model, R.QKNorm()):
        torch.testing.assert_close(model(X), truth)


SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}


def models() -> dict:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return {
        "torch": (nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval(), torch.randn(3, 7, 32)),
        "bert": (T.BertModel(T.BertConfig(**SIZES)).eval(), IDS),
        "gpt2": (T.GPT2Model(T.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=99)).eval(), IDS),
        "llama": (T.LlamaModel(T.LlamaConfig(**SIZES, num_key_value_heads=2)).eval(), IDS),
    }


def run(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        out = model(inputs)
    return out if isinstance(out, Tensor) else out.last_hidden_state


@crossed("name, family", NAMES, ["torch", "bert", "gpt2", "llama"])
def test_on_other_peoples_models(name: str, family: str) -> None:
    model, inputs = models()[family]
    before = run(model, inputs)
    with ds.fix_(model, getattr(R, name)()) as fix:
        assert not torch.allclose(run(model, inputs), before)
        assert fix.fired == 3
    assert torch.equal(run(model, inputs), before)
    remedy = getattr(R, name)
    with ds.fix_(model, remedy(**remedy.off)):
        assert torch.equal(run(model, inputs), before)


@crossed("name, family", NAMES, ["gpt2", "llama"])
def test_no_token_of_a_causal_model_sees_its_future(name: str, family: str) -> None:
    model, ids = models()[family]
    other = ids.clone()
    other[:, 4] = (other[:, 4] + 1) % 99
    with ds.fix_(model, getattr(R, name)()):
        a, b = run(model, ids), run(model, other)
    assert torch.equal(a[:, :4], b[:, :4]) and not torch.equal(a[:, 4:], b[:, 4:])


def test_a_softmax_of_the_models_own_is_seen_too_and_says_what_it_cannot_do() -> None:
    config = T.BertConfig(**SIZES, attn_implementation="eager")
    model = T.BertModel(config).eval()
    fused = T.BertModel(T.BertConfig(**SIZES)).eval()
    fused.load_state_dict(model.state_dict())
    results = []
    for each_model in (model, fused):
        with ds.fix_(each_model, R.AttnScale(2.0)):
            results.append(run(each_model, IDS))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    with ds.fix_(model, R.QKNorm()), pytest.raises(UsageError, match="needs the queries, keys and values"):
        run(model, IDS)


def test_sites_and_remedies_must_fit() -> None:
    model = ds.models.classic(1, 16, 4)
    with pytest.raises(UsageError, match=r"AttnScale must act at attn; got block_out"):
        ds.fix_(model, R.AttnScale(), at="block_out")
    with pytest.raises(UsageError, match=r"DeEscalate must act at block_out; got attn"):
        ds.fix_(model, R.DeEscalate(), at="attn")
