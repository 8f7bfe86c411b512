"""Running means over segment memory: a mean counts exactly the tokens that attention sees."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.models import SegmentMemory
from loops import crossed, over

R = ds.remedies
SIZES = {"vocabulary": 50, "depth": 3, "d": 16, "h": 4, "q": 32}
WORDS = torch.randint(0, 50, (2, 21), generator=torch.Generator().manual_seed(1))
SAFE = [
    R.DeEscalate(0.7, form="sink"),
    R.DeEscalate(0.7, form="prefix"),
    R.DeEscalate(0.7, form="past"),
    R.DeEscalate(0.7, form="sink", learnable=True),
    R.PairNorm(mean="prefix"),
    R.FeatScale(16, s=-0.4, t=0.3, mean="prefix"),
]
WIRINGS = ["post_norm", "pre_norm", "sub_ln", "resi_dual"]


def model(memory: int = 40, **choices) -> nn.Module:
    torch.manual_seed(0)
    built = ds.models.transformer_xl(memory=memory, **SIZES, **choices).double().eval()
    for block in built.transformer:
        nn.init.normal_(block.attention.u), nn.init.normal_(block.attention.v)
    return built


def by_segments(built: nn.Module, words: Tensor, ends: list[int]) -> Tensor:
    """Memory goes through its tensors every time, as through a checkpoint."""
    memory, parts = None, []
    for start, end in zip([0, *ends], [*ends, words.shape[1]], strict=True):
        part, memory = built(words[:, start:end], memory)
        memory = memory and SegmentMemory.from_tensors(memory.tensors())
        parts.append(part)
    return torch.cat(parts, 1)


@crossed("remedy, wiring, at", SAFE, WIRINGS, ["block_out", "ffn_in", "attn_in", "sa_out"])
@torch.no_grad()
def test_segments_are_one_long_segment(wiring: str, at: str, remedy: nn.Module) -> None:
    built = model(wiring=wiring)
    plain, _ = built(WORDS)
    with ds.fix_(built, remedy, at=at):
        whole, _ = built(WORDS)
        torch.testing.assert_close(by_segments(built, WORDS, [5, 6, 15]), whole, rtol=1e-8, atol=1e-8)
    assert float((whole - plain).abs().max()) > 1e-3


@crossed("remedy, memory, at", SAFE, [4, 40], ["block_out", "ffn_in"])
@torch.no_grad()
def test_no_word_moves_an_earlier_one(at: str, memory: int, remedy: nn.Module) -> None:
    built, other = model(memory), WORDS.clone()
    other[:, 17] = (other[:, 17] + 1) % 50
    with ds.fix_(built, remedy, at=at):
        a, b = (by_segments(built, words, [6, 15]) for words in (WORDS, other))
    difference = (a - b).abs().amax((0, 2))
    assert float(difference[:17].max()) == 0 and float(difference[17:].min()) > 0


@torch.no_grad()
def test_the_full_form_leaks_and_is_of_the_segment_alone() -> None:
    built, other = model(), WORDS.clone()
    other[:, 17] = (other[:, 17] + 1) % 50
    with ds.fix_(built, R.DeEscalate(0.7), at="ffn_in", causal="leak"):
        a, b = (by_segments(built, words, [6, 15]) for words in (WORDS, other))
    difference = (a - b).abs().amax((0, 2))
    assert float(difference[:15].max()) == 0 and float(difference[15:17].min()) > 0


@over("form, extra", [("sink", 1), ("prefix", 0)])
@torch.no_grad()
def test_the_mean_is_over_the_window(form: str, extra: int) -> None:
    """One block, remedied where tokens enter: the means are sums over embedded words, the last 4 of the past ones."""
    built = model(4, **{"wiring": "post_norm"})
    embedded, seen = built.vocabulary(WORDS), []
    with ds.fix_(built, R.DeEscalate(1.0, form=form), at="block_in", blocks=["transformer.blocks.0"]) as fix:
        fix.on_change = lambda before, after: seen.append(before - after)
        by_segments(built, WORDS, [6, 8, 15])
    means = torch.cat(seen, 1)
    for start, end in ((0, 6), (6, 8), (8, 15), (15, 21)):
        for t in range(start, end):
            window = embedded[:, max(0, start - 4) : t + 1]
            torch.testing.assert_close(means[:, t], window.sum(1) / (window.shape[1] + extra))


@torch.no_grad()
def test_two_fixes_keep_means_of_their_own() -> None:
    built = model()
    with ds.fix_(built, R.DeEscalate(0.3, form="sink")), ds.fix_(built, R.DeEscalate(0.5, form="past")):
        whole, memory = built(WORDS)
        assert set(memory.means) == {"DeEscalate@block_out", "DeEscalate@block_out#2"}
        torch.testing.assert_close(by_segments(built, WORDS, [5, 15]), whole)


@torch.no_grad()
def test_rows_of_a_memory_go_on_by_themselves() -> None:
    built = model(6)
    with ds.fix_(built, R.DeEscalate(0.7)):
        _, memory = built(WORDS[:, :9])
        both, _ = built(WORDS[:, 9:], memory)
        alone, _ = built(WORDS[1:, 9:], memory.rows(slice(1, 2)))
    torch.testing.assert_close(alone, both[1:])
    assert all(not tensor.requires_grad for tensor in memory.tensors().values())


@torch.no_grad()
def test_a_model_that_is_built_and_fixed_anew_goes_on_from_a_checkpoint() -> None:
    first, second = model(6), model(6)
    with ds.fix_(first, R.DeEscalate(0.7)):
        _, memory = first(WORDS[:, :9])
        expected, _ = first(WORDS[:, 9:], memory)
    with ds.fix_(second, R.DeEscalate(0.7)):  # its first pass has a memory, and must be known as causal all the same
        found, _ = second(WORDS[:, 9:], SegmentMemory.from_tensors(memory.tensors()))
    assert torch.equal(found, expected)


@over(
    "at, learnable",
    [("sa_out", True), ("block_out", False)],
    long=[
        *[("sa_out", False), ("block_out", True)],
        *itertools.product(["block_in", "attn_in", "sa_sum", "ffn_in", "ffn_sum"], [False, True]),
    ],
)
@over("memory", [7], long=[0])
def test_checkpointing_gives_the_gradients_of_none(memory: int, at: str, learnable: bool) -> None:
    """Two segments, one backward pass for each; what is counted of the first segment must be there again."""
    gradients = []
    for checkpointing in (False, True):
        built = model(memory, checkpointing=checkpointing).train()
        with ds.fix_(built, R.DeEscalate(0.7, learnable=learnable), at=at):
            first, kept = built(WORDS[:, :8], targets=WORDS[:, 1:9])
            second, _ = built(WORDS[:, 9:-1], kept, targets=WORDS[:, 10:])
            second.mean().backward()
            first.mean().backward()
            gradients.append([p.grad for p in built.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


class Passes(nn.Module):
    """As a compiled or a distributed model: arguments have no names, and `memory` is something else or missing."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class Named(Passes):
    def forward(self, tokens: Tensor, memory: SegmentMemory | None = None):
        return self.inner(tokens, memory)


class Remembers(Named):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.memory = 3


class HandsOnRows(Passes):
    """The model is given another memory, made of rows of the first."""

    def forward(self, tokens: Tensor, memory: SegmentMemory | None = None):
        return self.inner(tokens, memory and memory.rows(slice(0, 2)))


@crossed("wrapper, remedy", [Passes, Named, Remembers, HandsOnRows], [SAFE[0], SAFE[4]])
@torch.no_grad()
def test_a_wrapper_changes_nothing(wrapper: type[Passes], remedy: nn.Module) -> None:
    built = model(6)
    with ds.fix_(built, remedy):
        expected = by_segments(built, WORDS, [5, 6, 15])
    outer = wrapper(built)
    with ds.fix_(outer, remedy):
        assert torch.equal(by_segments(outer, WORDS, [5, 6, 15]), expected)


@torch.no_grad()
def test_means_are_cut_to_the_memory_that_came_back() -> None:
    """The wrapper hands on a part of what the model remembers; the means must not count more."""

    class Forgets(Passes):
        def forward(self, tokens: Tensor, memory: SegmentMemory | None = None):
            out, left = self.inner(tokens, memory)
            return out, SegmentMemory([read[:, -2:] for read in left.read])

    longer, shorter = Forgets(model(6)), model(2)
    outputs = []
    for built in (longer, shorter):
        with ds.fix_(built, R.DeEscalate(0.7)):
            outputs.append(by_segments(built, WORDS, [5, 6, 15]))
    assert torch.equal(*outputs)


@torch.no_grad()
def test_means_that_do_not_fit_the_memory_are_refused() -> None:
    class Repeats(Passes):
        def __init__(self, inner: nn.Module, change) -> None:
            super().__init__(inner)
            self.change = change

        def forward(self, tokens: Tensor):
            out, left = self.inner(tokens)
            return out, SegmentMemory([self.change(read) for read in left.read])

    # a doubled memory is met in the trial of one sequence already
    for change, sizes in ((lambda x: x.repeat(1, 2, 1), "1 x 12"), (lambda x: x[:1], "1 x 6")):
        with ds.fix_(Repeats(model(6), change), R.DeEscalate()) as fix:
            with pytest.raises(UsageError, match=f"over the {sizes} tokens of the segment .* remedy saw [12] x 6"):
                fix.model(WORDS)


def test_a_form_without_running_means_leaves_none_to_go_on_from() -> None:
    built = model()
    with ds.fix_(built, R.DeEscalate(0.7), causal="leak"):
        _, leaked = built(WORDS)
    for memory in (leaked, SegmentMemory.from_tensors(leaked.tensors())):
        with ds.fix_(built, R.DeEscalate(0.7)), pytest.raises(UsageError, match="filled by a form without running m"):
            built(WORDS, memory)
    with ds.fix_(built, R.PairNorm(form="pn_si", mean="sink")):
        _, one = built(WORDS)
    with ds.fix_(built, R.PairNorm(mean="sink")), pytest.raises(UsageError, match="or with fewer of them"):
        built(WORDS, one)


@torch.no_grad()
def test_a_fix_that_filled_the_memory_must_be_in_place() -> None:
    built = model()
    with ds.fix_(built, R.DeEscalate(0.3)):
        with ds.fix_(built, R.PairNorm(mean="sink")):
            _, memory = built(WORDS)
            built(WORDS, memory)
        for _ in range(2):
            with pytest.raises(UsageError, match="it was filled with PairNorm@block_out, which is not in place now"):
                built(WORDS, memory)
    with pytest.raises(UsageError, match="filled with DeEscalate@block_out, PairNorm@block_out"):
        built(WORDS, memory)
    with ds.fix_(built, R.SigmaReparam()):
        _, memory = built(WORDS)
        built(WORDS, memory)


def test_a_group_has_no_segment_memory() -> None:
    built = model()
    with ds.fix_(built, R.DeEscalate(), causal="leak"):
        _, memory = built(WORDS)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with ds.fix_(built, R.DeEscalate(), causal="leak", group=dist.group.WORLD):
            for given in (None, memory):
                with pytest.raises(UsageError, match=r"some are in a segment memory\. Set model.memory = 0"):
                    built(WORDS, given)
            built.memory = 0
            built(WORDS)
    finally:
        dist.destroy_process_group()


def test_what_cannot_go_on_says_so() -> None:
    built = model()
    _, memory = built(WORDS)
    with ds.fix_(built, R.DeEscalate()), pytest.raises(UsageError, match=r"filled without it. Start anew with memory="):
        built(WORDS, memory)
    with ds.fix_(built, R.DeEscalate(), blocks=["transformer.blocks.0"]):
        _, memory = built(WORDS)
    with ds.fix_(built, R.DeEscalate()), pytest.raises(UsageError, match="filled with it in other blocks"):
        built(WORDS, memory)
    with ds.fix_(built, R.ContraNorm(over="prefix")):
        _, memory = built(WORDS)
        with pytest.raises(UsageError, match=r"must see the whole sequence; .* Set model.memory = 0"):
            built(WORDS, memory)
    with (
        ds.fix_(built.transformer, R.DeEscalate(), causal="yes"),
        pytest.raises(UsageError, match="on the language model"),
    ):
        built(WORDS)
    stack = Passes(built.transformer)
    recalls = built._recalls(WORDS, None)
    with ds.fix_(stack, R.DeEscalate(), causal="yes"), pytest.raises(UsageError, match="on the language model"):
        stack(built.vocabulary(WORDS), recalls)
