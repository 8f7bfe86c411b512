"""What fix_ promises for every remedy on the shelf, in whole models: also for the one that is added tomorrow."""

import inspect
import json
import re
from collections.abc import Callable

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.models.design import shelves
from depthscope.registry import TABLES
from depthscope.remedies.remedy import Remedy
from loops import crossed, over

shelves()
REMEDIES, WIRINGS = TABLES["remedy"], TABLES["wiring"]
each_remedy = over("name", sorted(REMEDIES))
each_wiring = over("name", sorted(w for w in WIRINGS if WIRINGS[w].plain))
D = 32
X = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(1)) + 0.3
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))
SIZES = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
FIXED = {"FeatScale": {"s": -0.4, "t": 0.3}, "SigmaReparam": {"gain": 0.9}}  # those that learn by default
REFUSED = {"SoftDecay": T.GPT2Model | T.LlamaModel, "SpectralH": T.LlamaModel}  # no causal form; values are shared


def build(name: str, **options) -> Remedy:
    """The remedy at a fixed strength that shows."""
    known = inspect.signature(REMEDIES[name]).parameters
    needed = {"d": D} if "d" in known else {}
    fixed = {"learnable": False} if "learnable" in known else {}
    return REMEDIES[name](**needed | fixed | FIXED.get(name, {}) | options)


def encoder(**options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def bert() -> nn.Module:
    return T.BertModel(T.BertConfig(**SIZES, initializer_range=0.1)).eval()


def pre_norm_encoder() -> nn.Module:
    return encoder(norm_first=True)


def gpt2() -> nn.Module:
    config = T.GPT2Config(n_embd=D, n_layer=2, n_head=4, vocab_size=99, initializer_range=0.1)
    return T.GPT2Model(config).eval()


def llama() -> nn.Module:
    return T.LlamaModel(T.LlamaConfig(**SIZES, num_key_value_heads=2, initializer_range=0.1)).eval()


@each_remedy
def test_the_facts_are_declared(name: str) -> None:
    remedy = REMEDIES[name]
    assert issubclass(remedy, Remedy) and remedy.__name__ == name
    assert re.search(r"\((\d{4}\.\d{5})\)", remedy.source), "the source names the paper"
    assert remedy.off and set(remedy.off) | set(remedy.learns) <= set(inspect.signature(remedy).parameters)
    assert " = " in remedy.__doc__.splitlines()[0], "the first line is the formula: depthscope ls prints it"
    assert isinstance(build(name).causal_safe, bool)


@crossed("name, dtype", sorted(REMEDIES), [torch.float32, torch.float64, torch.bfloat16])
@torch.no_grad()
def test_shape_and_dtype_are_kept(name: str, dtype: torch.dtype) -> None:
    model = encoder().to(dtype)
    with ds.fix_(model, build(name)) as fix:
        Y = model(X.to(dtype))
    assert Y.shape == X.shape and Y.dtype == dtype and Y.isfinite().all() and fix.fired >= 2


@over("name", sorted(REMEDIES), every=4)
def test_gradients_are_right(name: str) -> None:
    model = ds.models.classic(2, 8, 2, activation="gelu").double()
    small = torch.randn(1, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    options = {"d": 8} if "d" in inspect.signature(REMEDIES[name]).parameters else {}
    with ds.fix_(model, build(name, **options)):
        assert torch.autograd.gradcheck(model, small, atol=1e-5)
        weight = model.blocks[0].attention.W.weight
        loss = model(small).square()[..., :3].sum()
        slope = torch.autograd.grad(loss, weight)[0][1, 2]
        with torch.no_grad():
            values = []
            for step in (1e-5, -2e-5):
                weight[1, 2] += step
                values.append(model(small).square()[..., :3].sum())
    torch.testing.assert_close((values[0] - values[1]) / 2e-5, slope, rtol=1e-5, atol=1e-8)


@crossed("name, made", sorted(REMEDIES), [encoder, pre_norm_encoder, bert, gpt2, llama])
@torch.no_grad()
def test_switched_off_and_undone_the_model_is_bit_equal(name: str, made: Callable[[], nn.Module]) -> None:
    model, inputs = made(), X if made in (encoder, pre_norm_encoder) else IDS
    before, state = out(model, inputs), list(model.state_dict())
    with ds.fix_(model, build(name, **REMEDIES[name].off)):
        assert torch.equal(out(model, inputs), before)
    if isinstance(model, REFUSED.get(name, ())):
        return
    fix = ds.fix_(model, build(name))
    assert list(model.state_dict()) == state, "a fixed strength adds no key"
    assert not torch.allclose(out(model, inputs), before, atol=1e-3)
    fix.undo()
    assert torch.equal(out(model, inputs), before) and list(model.state_dict()) == state
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@each_remedy
@torch.no_grad()
def test_padding_does_not_matter(name: str) -> None:
    model, mask = bert(), torch.ones(3, 7, dtype=torch.long)
    mask[:, 5:] = 0
    with ds.fix_(model, build(name)):
        short = model(input_ids=IDS[:, :5]).last_hidden_state
        found = []
        for filler in (0, 7):
            ids = IDS.masked_fill(mask == 0, filler)
            found.append(model(input_ids=ids, attention_mask=mask).last_hidden_state[:, :5])
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], short, rtol=1e-4, atol=1e-4)


@over("made", [gpt2], long=[llama])
@each_remedy
@torch.no_grad()
def test_changing_a_token_moves_no_output_before_it(name: str, made: Callable[[], nn.Module]) -> None:
    model = made()
    with ds.fix_(model, build(name)) as fix:
        no_form = REMEDIES[name].causal is None and not fix.remedy.causal_safe
        if no_form or isinstance(model, REFUSED.get(name, ())):
            with pytest.raises(ds.errors.CausalLeakError if no_form else ds.errors.HookError):
                model(IDS)
            return
        before = out(model, IDS)
        for j in range(1, 7):
            other = IDS.clone()
            other[:, j] = (other[:, j] + 1) % 99
            after = out(model, other)
            assert torch.equal(after[:, :j], before[:, :j]) and not torch.equal(after[:, j:], before[:, j:])


@each_remedy
@torch.no_grad()
def test_a_fix_is_described_and_built_again(name: str) -> None:
    model = encoder()
    with ds.fix_(model, build(name), blocks="layers.1") as fix:
        first, data = model(X), json.loads(json.dumps(fix.describe()))
    with ds.fix_(model, data) as again:
        assert torch.equal(model(X), first)
        assert again.describe() == data and repr(again) == repr(fix)


@each_remedy
@torch.no_grad()
def test_per_block_choice(name: str) -> None:
    """In the second and third block alone, the first is as it was."""
    model, seen = encoder(), []
    handle = model.layers[0].register_forward_hook(lambda m, a, output: seen.append(output))
    before = model(X)
    with ds.fix_(model, build(name), blocks="layers.[12]"):
        after = model(X)
    handle.remove()
    assert torch.allclose(seen[0], seen[-1], atol=1e-6) and not torch.allclose(before, after, atol=1e-3)


@each_wiring
@torch.no_grad()
def test_a_wiring_switched_off_is_the_plain_one(name: str) -> None:
    wiring = WIRINGS[name]
    assert re.search(r"\((\d{4}\.\d{5})\)", wiring.source) and wiring.plain in WIRINGS
    mended, plain = (ds.models.classic(3, D, 4, wiring=w) for w in (name, wiring.plain))
    missing = mended.load_state_dict(plain.state_dict(), strict=False)
    assert not [key for key in missing.unexpected_keys if "attention" in key or "ffn" in key]
    if not wiring.off:
        return  # nothing of it can be turned down: it is switched off by taking the other
    for block in mended:
        for attribute, value in wiring.off.items():
            now = getattr(block.wiring, attribute)
            now.fill_(value) if isinstance(now, Tensor) else setattr(block.wiring, attribute, value)
    assert torch.equal(mended(X), plain(X))


def out(model: nn.Module, inputs: Tensor) -> Tensor:
    result = model(inputs)
    return result if isinstance(result, Tensor) else result.last_hidden_state


DECLARED = {  # name: site, causal form, published or chosen defaults
    "AttnScale": ("attn", None, {"w": 0.5}),
    "CentredAttention": ("attn", None, {"strength": 1.0}),
    "ContraNorm": ("sa_sum", {"over": "prefix"}, {"scale": 0.1, "temperature": 1.0}),
    "DeEscalate": ("block_out", {"form": "sink"}, {"tau": 1.0}),
    "FeatScale": ("sa_out", {"mean": "sink"}, {"s": 0.0, "t": 0.0, "learnable": True}),
    "GFSA": ("attn", None, {"w_0": 0.5, "w_1": 1.0, "w_K": -0.5, "K": 3}),
    "GainControl": ("sa_out", {"form": "sink"}, {"tau": 1.0}),
    "LaplacianHeads": ("attn", None, {"share": 0.5}),
    "MindTheGap": ("attn", None, {"strength": 1.0, "upscale": "none"}),
    "NeuTRENO": ("attn", None, {"lam": 0.6}),
    "PairNorm": ("block_out", {"mean": "sink"}, {"scale": 1.0, "strength": 1.0}),
    "QKNorm": ("attn", None, {"g": 10.0}),
    "ShapedAttention": ("attn", None, {"a": 1.0, "b": 1.0, "c": 1.0}),
    "SigmaReparam": ("weights", None, {"gain": None, "power": 1.0, "learnable": True}),
    "SoftDecay": ("block_out", None, {"alpha": -0.2}),
    "SpectralH": ("values", None, {"mode": "sharpen", "form": "symmetric", "learnable": True}),
}


def test_what_is_declared_is_what_the_papers_have() -> None:
    assert set(DECLARED) == set(REMEDIES)
    for name, (site, causal, defaults) in DECLARED.items():
        remedy, known = REMEDIES[name], inspect.signature(REMEDIES[name]).parameters
        assert (remedy.at, remedy.causal) == (site, causal), name
        assert {key: known[key].default for key in defaults} == defaults, name


@torch.no_grad()
def test_hyper_connections_start_as_the_paper_says() -> None:
    model = ds.models.classic(3, D, 4, wiring="hyper_connections")
    connections = [c for block in model for c in block.wiring.children() if hasattr(c, "s_a")]
    assert len(connections) == 6
    for branch, c in enumerate(connections):
        assert float(c.s_a) == float(c.s_b) == pytest.approx(0.01)
        assert torch.equal(c.A[:, 0], torch.eye(4)[branch % 4]) and torch.equal(c.A[:, 1:], torch.eye(4))
        assert torch.equal(c.B, torch.ones(4)) and not c.W_a.any() and not c.w_b.any()


@over(
    "call, message",
    [
        (lambda: ds.remedies.ContraNorm(float("nan")), "ContraNorm: scale must lie"),
        (lambda: ds.remedies.PairNorm(float("nan")), "PairNorm: scale must lie"),
        (lambda: ds.remedies.AttnScale(learnable=True, heads=0), "heads must be a whole number"),
        (lambda: ds.remedies.FeatScale(0), "d must be a whole number"),
        (lambda: ds.remedies.GFSA(K=2.7), "K must be a whole number"),
        (lambda: ds.remedies.DeEscalate("a"), "tau must lie in"),
        (lambda: ds.remedies.QKNorm(0.0, learnable=True), "a learnable g must start above 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(call, message: str) -> None:
    with pytest.raises(ds.errors.UsageError, match=message):
        call()
