"""The cells of the grids, and what a cell will take, against counts by hand."""

import pytest
import torch

from depthscope.benches.cell import Cell, usual_heads
from depthscope.benches.grid import crossed, full, grid, quick, smallest
from depthscope.benches.subject import device_called, subject
from depthscope.benches.work import Counting, class_of, flops_of
from depthscope.errors import UsageError
from loops import over

CPU = torch.device("cpu")


def test_the_full_grid_has_every_size_by_every_other() -> None:
    cells = full()
    sizes = {(c.kind, c.width, c.tokens, c.batch, c.depth) for c in cells}
    asked = {
        (kind, d, n, b, depth)
        for kind in ("encoder", "decoder")
        for d in (256, 768, 1024)
        for n in (64, 128, 512, 2048)
        for b in (1, 4, 8)
        for depth in (12, 48)
    }
    assert asked <= sizes and len(asked) == 144 and len(cells) == len(set(cells))
    assert [c.work for c in cells] == sorted(c.work for c in cells)


@over("name", ["quick", "full"])
def test_heads_vary_while_the_width_does_not(name: str) -> None:
    at_256 = {c.heads for c in grid(name, ["encoder"]) if c.width == 256}
    assert at_256 == {2, 4, 8, 16}


def test_a_star_varies_one_size_at_a_time() -> None:
    centre = Cell("encoder", 256, 128, 4, 12, 4)
    for cell in quick(["encoder"]):
        names = ("width", "tokens", "batch", "depth", "heads")
        other = {name for name in names if getattr(cell, name) != getattr(centre, name)}
        assert len(other) <= 1 or other == {"width", "heads"}


def test_sizes_that_are_named() -> None:
    cells = crossed(["bert", "gpt2"], [128], [16, 32], [1], [2, 3], [4])
    assert len(cells) == 8 and {c.heads for c in cells} == {4} and {c.kind for c in cells} == {"bert", "gpt2"}
    assert crossed(["encoder"], [100], [8], [1], [1])[0].heads == 1
    assert [usual_heads(d) for d in (32, 64, 256, 768, 1024, 200)] == [1, 1, 4, 12, 16, 2]


@over("kind", ["encoder", "decoder", "bert", "gpt2"])
def test_a_model_has_the_sizes_of_its_cell_and_its_operations_are_as_foreseen(kind: str) -> None:
    cell = Cell(kind, 64, 24, 2, 3, 4)
    before = torch.random.get_rng_state()
    model, inputs = subject(cell, CPU)
    assert torch.equal(before, torch.random.get_rng_state()) and not model.training
    assert inputs.shape[:2] == (2, 24)
    with torch.no_grad(), Counting(lambda: 0.0) as counted:
        model(inputs)
    pooler = 2 * cell.batch * cell.width**2 if kind == "bert" else 0  # of the first token alone
    assert counted.flops == cell.forward_flops + pooler


@over("kind", ["bert", "gpt2"])
def test_models_of_transformers_take_sequences_longer_than_they_usually_do(kind: str) -> None:
    model, inputs = subject(Cell(kind, 16, 1100, 1, 1, 1), CPU)
    with torch.no_grad():
        assert model(inputs).last_hidden_state.shape == (1, 1100, 16)


def test_operators_are_counted() -> None:
    A, B = torch.randn(128, 96), torch.randn(96, 160)
    with Counting(lambda: 0.0) as counted:
        C = A @ B
        C.t().contiguous()[0]  # a view, a copy, a view
        torch.ones(3) + 1
    assert counted.flops == 2 * 128 * 96 * 160
    floats = 128 * 96 + 96 * 160 + 3 * 128 * 160 + 3 + 3 + 3  # a product, a copy, ones, a sum
    assert counted.bytes == 4 * floats and counted.calls == 4
    assert class_of("mm", 1, 1 << 20) == "products" and class_of("mm", 1, 100) == "calls"
    assert class_of("_linalg_svd", 0, 100) == "decompositions" and class_of("add", 0, 1 << 20) == "memory"


def test_attention_is_a_product_however_it_is_computed() -> None:
    q, k = torch.randn(2, 3, 10, 4), torch.randn(2, 3, 7, 4)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    assert flops_of(name, (q, k, k), (q,)) == 2 * (2 * 3 * 10 * 7 * 4) * 2
    assert flops_of("add", (q, q), q) == 0


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"heads must divide the width; got width 64 and 5 heads. Try --heads 1"):
        Cell("encoder", 64, 8, 1, 1, 5)
    with pytest.raises(UsageError, match="kind must be one of encoder, decoder, bert, gpt2; got 'rnn'"):
        Cell("rnn", 64, 8, 1, 1, 1)
    with pytest.raises(UsageError, match="tokens must be 2 or more; got 1"):
        Cell("encoder", 64, 1, 1, 1, 1)
    with pytest.raises(UsageError, match="depth must be 1 or more; got 0"):
        Cell("encoder", 64, 8, 1, 0, 1)
    with pytest.raises(UsageError, match="--grid must be quick or full; got 'huge'"):
        grid("huge")
    for name in ("quantum", "cuda:99", "meta"):
        with pytest.raises(UsageError, match=f"bench: the device must .*{name}.*Try --device cpu"):
            device_called(name)
    assert smallest("encoder").work < min(c.work for c in full())
