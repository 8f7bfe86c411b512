"""Generation with a key-value cache goes on where the last pass stopped."""

import copy
import weakref

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.remedies.fix import TOKEN_SITES
from loops import crossed, over

R = ds.remedies
IDS = torch.randint(1, 99, (2, 12), generator=torch.Generator().manual_seed(4))
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
TOGETHER = [
    R.DeEscalate(0.7, form="sink"),
    R.DeEscalate(0.7, form="prefix"),
    R.DeEscalate(0.7, form="past"),
    R.DeEscalate(1.0),
    R.PairNorm(),
    R.GainControl(),
    R.FeatScale(32, s=-0.4, t=0.3),
    R.SigmaReparam(0.8, learnable=False),
]


def gpt2() -> nn.Module:
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 0}
    return T.GPT2LMHeadModel(T.GPT2Config(**sizes, initializer_range=0.1)).eval()


def llama() -> nn.Module:
    return T.LlamaForCausalLM(T.LlamaConfig(**SIZES, num_key_value_heads=2, initializer_range=0.1)).eval()


BUILDS = [gpt2, llama]


def by_parts(model: nn.Module, ids: Tensor, ends: list[int], mask: Tensor | None = None) -> Tensor:
    """The logits of a sequence that is given in parts, the last one token by token as in generation."""
    cache, logits = None, []
    for start, end in zip([0, *ends], [*ends, ids.shape[1]], strict=True):
        given = {} if mask is None else {"attention_mask": mask[:, :end]}
        out = model(ids[:, start:end], past_key_values=cache, use_cache=True, **given)
        cache = out.past_key_values
        logits.append(out.logits)
    return torch.cat(logits, 1)


@crossed("remedy, build", TOGETHER, BUILDS)
@torch.no_grad()
def test_parts_give_the_logits_of_the_whole(build, remedy: nn.Module) -> None:
    model = build()
    plain = model(IDS).logits
    with ds.fix_(model, remedy):
        whole = model(IDS, use_cache=False).logits
        torch.testing.assert_close(by_parts(model, IDS, [5, 6, 7, 10, 11]), whole, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(by_parts(model, IDS, [1, 2, 3]), whole, rtol=1e-4, atol=1e-5)
    assert float((whole - plain).abs().max()) > 1e-2


@crossed("at, build", TOKEN_SITES, BUILDS)
@torch.no_grad()
def test_at_every_site(build, at: str) -> None:
    model = build()
    with ds.fix_(model, R.DeEscalate(0.7), at=at):
        whole = model(IDS, use_cache=False).logits
        torch.testing.assert_close(by_parts(model, IDS, [8, 9, 10]), whole, rtol=1e-4, atol=1e-5)


@over("build", BUILDS)
@torch.no_grad()
def test_left_padding(build) -> None:
    model = build()
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with ds.fix_(model, R.DeEscalate(0.7)):
        whole = model(IDS, attention_mask=mask, position_ids=positions).logits
        cache = T.DynamicCache()
        parts = [
            model(IDS[:, a:b], attention_mask=mask[:, :b], position_ids=positions[:, a:b], past_key_values=cache).logits
            for a, b in ((0, 8), (8, 9), (9, 12))
        ]
        alone = model(IDS[:1, 3:]).logits
    torch.testing.assert_close(torch.cat(parts, 1)[:, 3:], whole[:, 3:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole[:1, 3:], alone, rtol=1e-4, atol=1e-5)


@over("form", ["sink"], long=["prefix", "past"])
@over("build", [gpt2], long=[llama])
@torch.no_grad()
def test_generate_with_a_cache_says_the_same_as_without(build, form: str) -> None:
    model = build()
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "output_logits": True}
    options |= {"return_dict_in_generate": True, "min_new_tokens": 20}
    with ds.fix_(model, R.DeEscalate(0.6, form=form)):
        with_cache, without = (model.generate(IDS, use_cache=use, **options) for use in (True, False))
        static = model.generate(IDS, cache_implementation="static", disable_compile=True, **options)
    for found in (with_cache, static):
        assert torch.equal(found.sequences, without.sequences)
        for a, b in zip(found.logits, without.logits, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_two_sequences_at_once_do_not_mix() -> None:
    model, other = gpt2(), IDS.flip(1)
    with ds.fix_(model, R.DeEscalate(0.7)):
        caches = [model(ids[:, :6]).past_key_values for ids in (IDS, other)]
        for ids, cache in ((other, caches[1]), (IDS, caches[0])):
            found = model(ids[:, 6:], past_key_values=cache).logits
            torch.testing.assert_close(found, model(ids).logits[:, 6:], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_cannot_go_on_from_a_cache_says_so() -> None:
    model = gpt2()
    before = model(IDS[:, :6]).past_key_values
    with ds.fix_(model, R.DeEscalate()):
        with pytest.raises(UsageError, match=r"in a key-value cache that was filled without it\. Pass use_cache=False"):
            model(IDS[:, 6:], past_key_values=before)
        cache = model(IDS[:, :6]).past_key_values
        cache.crop(-2)
        with pytest.raises(UsageError, match="was reordered, cropped or moved since"):
            model(IDS[:, 6:], past_key_values=cache)
        cache.reorder_cache(torch.tensor([1, 0]))  # which does not make it right
        with pytest.raises(UsageError, match="was reordered, cropped or moved since"):
            model(IDS[:, 6:], past_key_values=cache)
    for remedy in (R.ContraNorm(over="prefix"), R.AttnScale()):
        with ds.fix_(model, remedy):
            cache = model(IDS[:, :6]).past_key_values
            with pytest.raises(
                UsageError, match=r"must see the whole sequence; .*key-value cache\. Pass use_cache=False"
            ):
                model(IDS[:, 6:], past_key_values=cache)
    with ds.fix_(model, R.DeEscalate(), causal="leak"):
        cache = model(IDS[:, :6]).past_key_values
        with pytest.raises(UsageError, match="must see the whole sequence"):
            model(IDS[:, 6:], past_key_values=cache)


@over(
    "remedy, build",
    [(TOGETHER[0], gpt2), (TOGETHER[5], llama)],
    long=[(remedy, build) for remedy in TOGETHER[1:] for build in BUILDS],
)
@torch.no_grad()
def test_beams_with_a_cache_are_those_without(build, remedy: nn.Module) -> None:
    """Beam search reorders the cache, and the sums of the fix with it; padding has counts of its own."""
    model = build()
    mask = torch.ones_like(IDS)
    mask[1, :4] = 0
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "num_beams": 3, "pad_token_id": 0, "attention_mask": mask}
    plain = model.generate(IDS, **options)
    with ds.fix_(model, remedy), ds.fix_(model, R.DeEscalate(0.4), at="sa_sum"):
        found = model.generate(IDS, return_dict_in_generate=True, output_scores=True, **options)
        whole = model.generate(IDS, return_dict_in_generate=True, output_scores=True, use_cache=False, **options)
    assert torch.equal(found.sequences, whole.sequences) and not torch.equal(found.sequences, plain)
    for a, b in zip(found.scores, whole.scores, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_cache_with_a_fix_beside_it_is_freed_and_copied() -> None:
    model = gpt2()
    with ds.fix_(model, R.DeEscalate(0.7)):
        cache = model(IDS[:, :6]).past_key_values
        twin = copy.deepcopy(cache)
        twin.reorder_cache(torch.tensor([1, 0]))  # the copy alone
        torch.testing.assert_close(model(IDS[:, 6:], past_key_values=cache).logits, model(IDS).logits[:, 6:])
        with pytest.raises(UsageError, match="that was filled without it"):
            model(IDS[:, 6:], past_key_values=twin)
        gone = weakref.ref(cache)
        del cache
        assert gone() is None  # at once, and not when garbage is collected
