"""Every measure equals its definition, written literally on hidden states that hooks have stored."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from small_families import FAMILIES, Tiny, ids, lively
from torch import Tensor, nn

import depthscope as ds
from depthscope.circuits.subject import subject_of
from depthscope.depths.replay import Replay
from loops import over

FAMILY = ["llama", "gpt2"]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Stored:
    """The states of a pass, what the branches gave, and the logits; padding taken out, in float64."""

    def __init__(self, model: nn.Module, blocks: nn.ModuleList, given: dict[str, Tensor]) -> None:
        self.keep = given["attention_mask"].bool()
        raw: dict[str, list[Tensor]] = {"in": [], "out": [], "attention": [], "ffn": []}

        def keep(kind: str, place: int):
            def hook(module, args, kwargs, output):
                value = (args[0] if args else kwargs["hidden_states"]) if place == 0 else output
                raw[kind].append((value[0] if isinstance(value, tuple) else value).detach().clone())

            return hook

        handles = []
        for block in blocks:
            attention = block.self_attn if hasattr(block, "self_attn") else block.attn
            for module, kind, place in [
                (block, "in", 0),
                (block, "out", 1),
                (attention, "attention", 1),
                (block.mlp, "ffn", 1),
            ]:
                handles.append(module.register_forward_hook(keep(kind, place), with_kwargs=True))
        with torch.no_grad():
            self.logits = model(**given).logits
        for handle in handles:
            handle.remove()
        self.raw = raw
        self.states = [self.rows(x) for x in (*raw["in"], raw["out"][-1])]
        self.attention, self.ffn = ([self.rows(x) for x in raw[kind]] for kind in ("attention", "ffn"))

    def rows(self, x: Tensor) -> Tensor:
        return x[self.keep].double()


def tiny_of(family: str) -> tuple[Tiny, dict[str, Tensor]]:
    """With padding at the end of two rows, and padded ids that would be seen if they counted."""
    tiny, words = FAMILIES[family](), ids(4, 12)
    mask = torch.ones_like(words)
    mask[1, 9:] = 0
    mask[3, 7:] = 0
    return tiny, {"input_ids": words, "attention_mask": mask}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def without(tiny: Tiny, order: list[int]) -> tuple[nn.Module, nn.ModuleList]:
    """The model with the blocks of this order in its list."""
    twin = copy.deepcopy(tiny)
    blocks = [twin.blocks[i] for i in order]
    twin.blocks._modules.clear()
    twin.blocks._modules.update({str(i): block for i, block in enumerate(blocks)})
    if hasattr(twin.model, "config"):
        twin.model.config.num_hidden_layers, twin.model.config.use_cache = len(order), False
    return twin.model, twin.blocks


def next_token(logits: Tensor, words: Tensor, mask: Tensor) -> Tensor:
    """-log p of the next token, where both it and the token before are no padding."""
    log_p = logits.log_softmax(-1)
    found = [
        -log_p[b, i, words[b, i + 1]]
        for b in range(len(words))
        for i in range(words.shape[1] - 1)
        if mask[b, i] and mask[b, i + 1]
    ]
    return torch.stack(found).double()


@over("family", FAMILY)
def test_influence_angles_and_branches(family: str) -> None:
    tiny, given = tiny_of(family)
    found = ds.depth(tiny.model, given, held_out=given, what=[])
    seen, depth = Stored(tiny.model, tiny.blocks, given), found.depth
    for at in range(depth):
        x, y = seen.states[at], seen.states[at + 1]
        torch.testing.assert_close(found.plain.influence[at], 1 - cosine(x, y).mean(), **CLOSE)
        for row, branch, stream in ((0, seen.attention[at], x), (1, seen.ffn[at], x + seen.attention[at])):
            size = (branch.norm(dim=-1) / stream.norm(dim=-1)).mean()
            torch.testing.assert_close(found.plain.size[row, at], size, **CLOSE)
            torch.testing.assert_close(found.plain.cosine[row, at], cosine(branch, stream).mean(), **CLOSE)
    for k in range(depth + 1):
        for m in range(k + 1, depth + 1):
            angle = cosine(seen.states[k], seen.states[m]).clamp(-1, 1).arccos().mean() / math.pi
            torch.testing.assert_close(found.plain.angular[k, m], angle, **CLOSE)
    assert found.plain.count == int(given["attention_mask"].sum())


def test_massive_tokens_are_left_out_of_the_rest() -> None:
    """One token is made huge at the embedding: the rest are the means of all other tokens."""
    tiny, given = tiny_of("llama")
    with torch.no_grad():
        tiny.model.model.embed_tokens.weight[given["input_ids"][0, 0]] *= 300
    found = ds.depth(tiny.model, given, held_out=given, what=[])
    seen = Stored(tiny.model, tiny.blocks, given)
    large = (given["input_ids"] == given["input_ids"][0, 0])[seen.keep]
    assert found.rest.count == int((~large).sum()) < found.plain.count
    for at in range(found.depth):
        x, y = seen.states[at], seen.states[at + 1]
        torch.testing.assert_close(found.rest.influence[at], 1 - cosine(x, y)[~large].mean(), **CLOSE)
        torch.testing.assert_close(found.plain.influence[at], 1 - cosine(x, y).mean(), **CLOSE)
        angle = cosine(x, y)[~large].clamp(-1, 1).arccos().mean() / math.pi
        torch.testing.assert_close(found.rest.angular[at, at + 1], angle, **CLOSE)


@over("family", FAMILY)
def test_the_lens(family: str) -> None:
    tiny, given = tiny_of(family)
    found = ds.depth(tiny.model, given, held_out=given, what=["lens"]).lens
    assert found is not None
    seen = Stored(tiny.model, tiny.blocks, given)
    norm = tiny.model.model.norm if family == "llama" else tiny.model.transformer.ln_f
    last = seen.logits[seen.keep].log_softmax(-1).double()
    for at, state in enumerate([*seen.raw["in"], seen.raw["out"][-1]]):
        with torch.no_grad():
            logits = tiny.model.lm_head(norm(state))
        here = logits[seen.keep].log_softmax(-1).double()
        torch.testing.assert_close(found.kl[at], (last.exp() * (last - here)).sum(-1).mean(), **CLOSE)
        shares = [
            len({*a.tolist()} & {*b.tolist()}) / 5
            for a, b in zip(here.topk(5).indices, last.topk(5).indices, strict=True)
        ]
        assert float(found.overlap[at]) == pytest.approx(sum(shares) / len(shares))
        loss = next_token(logits, given["input_ids"], given["attention_mask"]).mean()
        torch.testing.assert_close(found.loss[at], loss, **CLOSE)


@over("family", FAMILY)
def test_prices_of_blocks_swaps_and_parts(family: str) -> None:
    tiny, given = tiny_of(family)
    found = ds.depth(tiny.model, given, held_out=given, what=["prices", "swaps", "parts"]).prices
    assert found is not None
    words, mask = given["input_ids"], given["attention_mask"]
    whole = next_token(Stored(tiny.model, tiny.blocks, given).logits, words, mask)
    assert found.base == pytest.approx(float(whole.mean()), abs=1e-6) and found.items == len(whole)
    depth = len(tiny.blocks)

    def price(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return next_token(model(**given).logits, words, mask) - whole

    for at in range(depth):
        change = price(without(tiny, [i for i in range(depth) if i != at])[0])
        torch.testing.assert_close(found.skip[at], change.mean(), **CLOSE)
        torch.testing.assert_close(found.error[at], change.std() / len(change) ** 0.5, **CLOSE)
        if at + 1 < depth:
            order = list(range(depth))
            order[at], order[at + 1] = at + 1, at
            torch.testing.assert_close(found.swap[at], price(without(tiny, order)[0]).mean(), **CLOSE)
        for values, part in ((found.attention, "attn"), (found.ffn, "mlp")):
            twin = copy.deepcopy(tiny)
            block = twin.blocks[at]
            module = getattr(block, "self_attn" if part == "attn" and family == "llama" else part)
            module.register_forward_hook(
                lambda m, args, out: (torch.zeros_like(out[0]), *out[1:]) if isinstance(out, tuple) else out * 0
            )
            torch.testing.assert_close(values[at], price(twin.model).mean(), **CLOSE)
    assert math.isnan(found.swap[-1])


@over("family", FAMILY)
def test_the_effect_on_later_blocks(family: str) -> None:
    tiny, given = tiny_of(family)
    found = ds.depth(tiny.model, given, held_out=given, what=["prices"]).prices
    assert found is not None
    whole, depth = Stored(tiny.model, tiny.blocks, given).states, len(tiny.blocks)
    for at in range(depth):
        order = [i for i in range(depth) if i != at]
        states = Stored(*without(tiny, order), given).states
        for m in range(depth):
            if m <= at:
                assert found.effect[at, m] == 0
                continue
            here, there = whole[m + 1] - whole[m], states[m] - states[m - 1]
            truth = ((here - there).norm(dim=-1) / here.norm(dim=-1)).mean()
            torch.testing.assert_close(found.effect[at, m], truth, **CLOSE)


@over("family", FAMILY)
def test_pricing_reuses_the_prefix(family: str) -> None:
    """All L blocks for at most (L + 2) / 2 + 1 passes, counted where the work is done."""
    tiny, given = tiny_of(family)
    depth, work = len(tiny.blocks), []
    replay = Replay(subject_of(tiny.model, given))
    handles = [b.mlp.register_forward_hook(lambda *_: work.append(1)) for b in tiny.blocks]
    replay.store()
    for at in range(depth):
        replay.run(replay.without(at))
    for handle in handles:
        handle.remove()
    assert len(work) == replay.blocks_run == depth + depth * (depth - 1) // 2
    assert len(work) / depth <= (depth + 2) / 2 + 1
    tried = (depth - depth // 2) + 1  # whether the prefix may be reused
    passes = ds.depth(tiny.model, given, held_out=given, what=["prices"]).prices.passes
    assert passes == (len(work) + tried) / depth <= (depth + 2) / 2 + 1
    assert all("forward" not in vars(block) for block in tiny.blocks)


def capped() -> Tiny:
    """Logits that are capped after the head, so that no matrix gives them."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        sliding_window=4,
        final_logit_softcapping=2.0,
        pad_token_id=0,
    )
    model = lively(Gemma2ForCausalLM(config))
    return Tiny(model, ids(), model.model.layers)


@over("make", [capped, FAMILIES["by_hand"]])
def test_the_lens_is_the_model_that_ends_there(make: Callable[[], Tiny]) -> None:
    """After block l the lens says what a model of the first l blocks would say."""
    tiny, words = make(), ids()
    found = ds.depth(tiny.model, words, held_out=words, what=["lens"]).lens
    assert found is not None
    with torch.no_grad():
        whole = getattr(out := tiny.model(words), "logits", out)
        last = whole.log_softmax(-1).double()
        for depth in range(len(tiny.blocks) + 1):
            model = without(tiny, list(range(depth)))[0]
            logits = getattr(out := model(words), "logits", out)
            here = logits.log_softmax(-1).double()
            torch.testing.assert_close(found.kl[depth], (last.exp() * (last - here)).sum(-1).mean(), **CLOSE)
            both = zip(logits.topk(5).indices.flatten(0, 1), whole.topk(5).indices.flatten(0, 1), strict=True)
            shares = [len({*a.tolist()} & {*b.tolist()}) / 5 for a, b in both]
            assert float(found.overlap[depth]) == pytest.approx(sum(shares) / len(shares))
            loss = next_token(logits, words, torch.ones_like(words)).mean()
            torch.testing.assert_close(found.loss[depth], loss, **CLOSE)
