"""Transformer-XL: memory against one long segment, every wiring, checkpoints, sizes, errors."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import ShapeError, UnknownNameError, UsageError
from depthscope.models import SegmentMemory
from depthscope.models.design import shelves
from depthscope.registry import TABLES
from loops import over

shelves()
SIZES = {"vocabulary": 50, "memory": 40, "depth": 3, "d": 16, "h": 4, "q": 32}
WORDS = torch.randint(0, 50, (2, 21), generator=torch.Generator().manual_seed(1))


def model(**choices) -> nn.Module:
    torch.manual_seed(0)
    built = ds.models.transformer_xl(**SIZES | choices).double()
    for block in built.transformer:
        nn.init.normal_(block.attention.u), nn.init.normal_(block.attention.v)
        for scalar in block.wiring.parameters():  # branches that a wiring closes at the start are opened
            if not bool(scalar.any()):
                nn.init.constant_(scalar, 0.5)
    return built


def by_segments(built: nn.Module, words: Tensor, ends: list[int]) -> Tensor:
    memory, parts = None, []
    for start, end in zip([0, *ends], [*ends, words.shape[1]], strict=True):
        part, memory = built(words[:, start:end], memory)
        parts.append(part)
    return torch.cat(parts, 1)


@over("wiring", sorted(TABLES["wiring"]))
@torch.no_grad()
def test_segments_with_memory_are_one_long_segment(wiring: str) -> None:
    built = model(wiring=wiring)
    whole, _ = built(WORDS)
    torch.testing.assert_close(by_segments(built, WORDS, [5, 6, 15]), whole, rtol=1e-9, atol=1e-9)
    built.memory = 0
    assert float((by_segments(built, WORDS, [5, 6, 15]) - whole)[:, 5:].abs().max()) > 1e-3


@torch.no_grad()
def test_with_a_short_memory_words_before_it_are_out_of_reach() -> None:
    """In one block a token sees the memory and no more; in two it sees what the memory's tokens saw."""
    other = WORDS.clone()
    other[:, 3] = (other[:, 3] + 1) % 50
    for depth, moves in ((1, False), (2, True)):
        built = model(depth=depth, memory=4)
        a, b = (by_segments(built, words, [5, 9, 14]) for words in (WORDS, other))
        assert torch.equal(a[:, :3], b[:, :3])
        assert bool((a[:, 5:9] != b[:, 5:9]).any())
        assert bool((a[:, 9:14] != b[:, 9:14]).any()) == moves


@torch.no_grad()
def test_memory_that_is_cut_by_rows_and_joined_goes_on() -> None:
    built = model()
    _, memory = built(WORDS[:, :9])
    rows = [built(WORDS[i : i + 1, 9:], memory.rows(slice(i, i + 1))) for i in range(2)]
    together, left = built(WORDS[:, 9:], SegmentMemory.from_tensors(memory.tensors()))
    torch.testing.assert_close(torch.cat([out for out, _ in rows]), together)
    joined = SegmentMemory.joined([kept for _, kept in rows])
    for a, b in zip(joined.read, left.read, strict=True):
        torch.testing.assert_close(a, b)


def test_losses_are_of_the_targets() -> None:
    built = model()
    log_p, _ = built(WORDS[:, :-1])
    loss, _ = built(WORDS[:, :-1], targets=WORDS[:, 1:])
    torch.testing.assert_close(loss, -log_p.gather(-1, WORDS[:, 1:].unsqueeze(-1)).squeeze(-1))


@over("wiring", ["post_norm", "pre_norm", "resi_dual", "hyper_connections"])
@over("dropout", [0.0, 0.3])
def test_checkpointing_gives_the_same_gradients(wiring: str, dropout: float) -> None:
    gradients, memories = [], []
    for checkpointing in (False, True):
        built = model(wiring=wiring, checkpointing=checkpointing, dropout=dropout, cutoffs=(10, 30))
        torch.manual_seed(3)
        _, memory = built(WORDS[:, :8])
        loss, memory = built(WORDS[:, 8:-1], memory, targets=WORDS[:, 9:])
        loss.mean().backward()
        gradients.append([p.grad for p in built.parameters()])
        memories.append(memory.read)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    for a, b in zip(*memories, strict=True):
        assert torch.equal(a, b)


def test_dropout_is_for_training() -> None:
    plain, dropping = model(), model(dropout=0.4)
    assert not torch.equal(dropping(WORDS)[0], dropping(WORDS)[0])
    assert torch.equal(dropping.eval()(WORDS)[0], plain(WORDS)[0])


@over("name", ["transformer_xl", "decoder"])
@over("wiring", ["post_norm", "pre_norm"])
def test_dropout_is_in_all_its_places(name: str, wiring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the embedding, after both branches of every block, and before the softmax."""
    own = {"transformer_xl": {"memory": 5}, "decoder": {"tokens": 30}}[name]
    sizes = {key: SIZES[key] for key in ("vocabulary", "depth", "d", "h", "q")}
    built, calls, drop = getattr(ds.models, name)(**sizes, **own, dropout=0.4, wiring=wiring), [], F.dropout
    monkeypatch.setattr(
        F, "dropout", lambda X, p=0.5, training=True: calls.append((p, training)) or drop(X, p, training)
    )
    for training in (True, False):
        calls.clear()
        built.train(training)(WORDS)
        assert calls == [(0.4, training)] * (2 + 2 * SIZES["depth"])


@over("div_value", [1, 2])
def test_autocast_with_clusters(div_value: int) -> None:
    built = model(cutoffs=(10, 30), div_value=div_value).float()
    exact, _ = built(WORDS[:, :-1], targets=WORDS[:, 1:])
    with torch.autocast("cpu", torch.bfloat16):
        _, memory = built(WORDS)
        built(WORDS, memory)
        rough, _ = built(WORDS[:, :-1], targets=WORDS[:, 1:])
    assert rough.dtype == torch.float32
    rough.mean().backward()
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.3)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in built.parameters())


def test_every_parameter_gets_a_gradient_from_frequent_words_alone() -> None:
    """As training on many processes needs it; u and v, and the memory of keys, too."""
    built, words = model(cutoffs=(20, 30), div_value=2), WORDS % 20
    _, memory = built(words)
    built(words, memory, targets=words)[0].mean().backward()
    assert [name for name, p in built.named_parameters() if p.grad is None] == []


def test_checkpointing_keeps_less() -> None:
    sizes = []
    for checkpointing in (False, True):
        built, kept = model(checkpointing=checkpointing), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x.nbytes) or x, lambda x: x):
            built(WORDS)
        sizes.append(sum(kept))
    assert sizes[1] < sizes[0] / 2


@over("preset, millions", [("wt103_base", 151), ("yu2023", 201)])
def test_parameter_counts(preset: str, millions: int) -> None:
    with torch.device("meta"):
        built, X = ds.models.transformer_xl(preset), torch.empty(2, 3, 410)
    count = sum(p.numel() for p in built.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.01)
    assert built.transformer.blocks[0].attention.u.shape == (10, 41)
    assert built.transformer(X).shape == (2, 3, 410)


@over("wiring", ["post_norm", "pre_norm"])
def test_a_scan_sees_blocks_and_attention(wiring: str) -> None:
    built = model(wiring=wiring).float().eval()
    scan = ds.scan(built, WORDS)
    assert len(scan["t_sim"]) == 4
    assert len(scan["omega"]) == 3 and bool(scan["omega"].isfinite().all())
    assert "causal" in str(scan) and "not causal" not in str(scan)
    _, memory = built(WORDS[:, :9])
    assert len(ds.scan(built, (WORDS[:, 9:], memory), attention=False)["t_sim"]) == 4
    remembering = ds.scan(
        built, (WORDS[:, 9:], memory)
    )  # keys of earlier tokens: heads are not measured, and it says so
    assert not remembering.heads and any("were not measured" in note for note in remembering.notes)


def test_a_scan_measures_the_attention_that_is_computed() -> None:
    """P of the scan, rebuilt from queries, keys and position scores, gives what the module gives."""
    built = model(depth=1).float()
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") == "scaled_dot_product_attention":
                seen.append(args)
            return func(*args, **kwargs or {})

    with Watch():
        watched, _ = built(WORDS)
    alone, _ = built(WORDS)
    assert torch.equal(watched, alone)
    q, k, v, bias = seen[0]
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    mixed = exact.transpose(1, 2).flatten(-2)
    attention = built.transformer.blocks[0].attention
    torch.testing.assert_close(attention.W_O(mixed), attention(built.vocabulary(WORDS)), rtol=1e-4, atol=1e-5)


@over("remedy", [ds.remedies.AttnScale(), ds.remedies.CentredAttention(), ds.remedies.QKNorm()])
@torch.no_grad()
def test_remedies_of_attention_act_and_ask_for_no_memory(remedy: nn.Module) -> None:
    built = model(memory=0).float()
    plain, _ = built(WORDS)
    with ds.fix_(built, remedy):
        assert float((built(WORDS)[0] - plain).abs().max()) > 1e-4
        built.memory = 9
        _, memory = built(WORDS)
        with pytest.raises(UsageError, match=r"must see the whole sequence; .* Set model.memory = 0"):
            built(WORDS, memory)


def test_wrong_words() -> None:
    built = model()
    bad = WORDS.clone()
    bad[1, 7] = 50
    with pytest.raises(
        UsageError, match=r"tokens must lie in 0 ... 49, .*; got 50 in sequence 1 at place 7 \(1 such\)"
    ):
        built(bad)
    with pytest.raises(UsageError, match="targets must lie in"):
        built(WORDS, targets=-WORDS - 1)
    for wrong in (WORDS.float(), WORDS.int(), WORDS[0], WORDS[:, :0], "text"):
        with pytest.raises(ShapeError, match=r"tokens must be ids \(B, n\) of int64"):
            built(wrong)
    with pytest.raises(ShapeError, match=r"one word for each token, \(2, 21\); got \(2, 20\)"):
        built(WORDS, targets=WORDS[:, 1:])


def test_wrong_memory() -> None:
    built = model()
    _, memory = built(WORDS)
    with pytest.raises(ShapeError, match="same sequences as the call, 1; got 2"):
        built(WORDS[:1], memory)
    with pytest.raises(ShapeError, match="same blocks as the call, 2; got 3"):
        model(depth=2)(WORDS, memory)
    with pytest.raises(ShapeError, match="same channels as the call, 8; got 16"):
        model(d=8)(WORDS, memory)
    built.memory = 20
    with pytest.raises(ShapeError, match="must not be longer than the model's, 20 tokens; got 21"):
        built(WORDS, memory)
    built.memory = 40
    with pytest.raises(UsageError, match=r"must be torch.float32 on cpu as the model is; got torch.float64 on"):
        model().float()(WORDS, memory)
    with pytest.raises(UsageError, match=r"must be torch.float64 on cpu as the model is; got torch.float64 on meta"):
        built(WORDS, SegmentMemory([read.to("meta") for read in memory.read]))
    with pytest.raises(UsageError, match="a SegmentMemory; got list"):
        built(WORDS, memory.read)
    with pytest.raises(UsageError, match="whole number of tokens, 0 or more; got -1"):
        built.memory = -1


@over(
    "choices, error, message",
    [
        ({"causal": False}, UsageError, "must be causal"),
        ({"attention": "uniform"}, UsageError, "must be causal with attention"),
        ({"dropout": 1.0}, UsageError, r"dropout must lie in \[0, 1\)"),
        ({"memory": 1.5}, UsageError, "memory must be a whole number of tokens"),
        ({"dept": 3}, UnknownNameError, "Did you mean depth"),
    ],
)
def test_wrong_choices(choices: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ds.models.transformer_xl(**SIZES | choices)


def test_what_must_be_said() -> None:
    with pytest.raises(UsageError, match="memory must be given"):
        ds.models.transformer_xl(vocabulary=9)
    with pytest.raises(UnknownNameError, match="wt103_base"):
        ds.models.transformer_xl("wt103_bas")
