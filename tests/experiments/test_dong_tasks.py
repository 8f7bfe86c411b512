"""Paths of the trained tasks, one by one and all together; models that several experiments share are trained once."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch

import depthscope as ds
from depthscope.errors import CheckpointError, DepthscopeError, UnknownNameError, UsageError
from depthscope.experiments import dong_tasks
from depthscope.experiments.dong2021 import path_effectiveness, sorting
from depthscope.experiments.dong_paths import alone, by_length, draw_path, drawn_hits, exactly, norm
from depthscope.experiments.dong_tasks import SIZES, SMALL, trained
from depthscope.training.tasks import task

TINY = {"depth": 2, "d": 12, "h": 2, "epochs": 1, "train": 40, "valid": 10, "test": 10}


def model_of(depth: int = 3, h: int = 2) -> ds.models.Tagger:
    sizes = {"classes": 4, "vocabulary": 5, "tokens": 6, "depth": depth, "d": 8, "h": h}
    model = ds.models.tagger(**sizes, activation="none", weights="xavier", output=True).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


WORDS = torch.randint(0, 5, (4, 6), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_all_lengths_together_are_the_model() -> None:
    model = model_of()
    parts, rest = by_length(model, WORDS)
    torch.testing.assert_close(parts.sum(0) + rest, model.transformer(model.tokens(WORDS)), rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_each_length_is_the_sum_over_its_paths_one_by_one() -> None:
    """Every path of {skip, head 1, head 2}^3, with attention and the deviations of the norms as the whole model has them."""
    model = model_of()
    X, seen = model.tokens(WORDS), []
    for block in model.transformer:
        states = block.steps(X)
        seen.append((block.attention.pattern(X), states["Y_1"], states["Y_3"]))
        X = states["Y_4"]
    sums = [torch.zeros_like(X) for _ in range(4)]
    for path in itertools.product((None, 0, 1), repeat=3):
        Y = model.tokens(WORDS)
        for block, head, (P, *before) in zip(model.transformer, path, seen, strict=True):
            if head is not None:
                mine = slice(4 * head, 4 * head + 4)
                Y = P[:, head] @ Y @ block.attention.W.weight[mine].T @ block.attention.W_O.weight[:, mine].T
            for layer, S in zip((block.wiring.norm_1, block.wiring.norm_2), before, strict=True):
                sigma = (S.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
                Y = (Y - Y.mean(-1, keepdim=True)) / sigma * layer.weight
        sums[sum(head is not None for head in path)] += Y
    torch.testing.assert_close(by_length(model, WORDS)[0], torch.stack(sums), rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_a_path_alone_is_a_network_of_one_head_a_block() -> None:
    model = model_of()
    Y = model.tokens(WORDS)
    for index, head in ((0, 1), (2, 0)):
        attention, mine = model.transformer.blocks[index].attention, slice(4 * head, 4 * head + 4)
        q, k, v = (Y @ W.weight[mine].T for W in (attention.W_q, attention.W_k, attention.W))
        Y = (q @ k.mT / 4**0.5).softmax(-1) @ v @ attention.W_O.weight[:, mine].T
        Y = (Y - Y.mean(-1, keepdim=True)) / (Y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(alone(model, model.tokens(WORDS), (1, None, 0)), Y)
    assert torch.equal(alone(model, model.tokens(WORDS), (None,) * 3), model.tokens(WORDS))


def test_paths_are_drawn_alike() -> None:
    chance = torch.Generator().manual_seed(0)
    counts = Counter(draw_path(4, 2, 2, chance) for _ in range(4800))
    assert len(counts) == 24 and all(sum(head is not None for head in path) == 2 for path in counts)
    assert min(counts.values()) > 140 and max(counts.values()) < 260  # 200 each, 4 deviations of 14


@torch.no_grad()
def test_accuracies_are_those_of_the_sums() -> None:
    model = model_of()
    labels = model(WORDS).argmax(-1)
    found, (parts, rest) = exactly(model, WORDS, labels), by_length(model, WORDS)
    assert float(found["up_to"][-1]) == 1.0 and len(found["up_to"]) == 4
    for k in range(4):
        for name, X in {"alone": parts[k], "up_to": parts[: k + 1].sum(0), "without": parts.sum(0) - parts[k]}.items():
            assert found[name][k] == (model.head(X + rest).argmax(-1) == labels).double().mean()
        assert float(found["size"][k]) == pytest.approx(float(parts[k].norm() / (parts.sum(0) + rest).norm()))
    zero = (model.head(norm(model.tokens(WORDS))).argmax(-1) == labels).double().mean()  # of length 0 there is one path
    torch.testing.assert_close(drawn_hits(model, WORDS, labels, 0, (1, 3), 0), torch.stack([zero, zero]))
    chance = torch.Generator().manual_seed(5)
    total = sum(alone(model, model.tokens(WORDS), draw_path(3, 2, 2, chance)) for _ in range(3))
    truth = (model.head(norm(total)).argmax(-1) == labels).double().mean()
    assert float(drawn_hits(model, WORDS, labels, 2, (1, 3), 5)[1]) == float(truth)


def test_what_was_trained_is_not_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dong_tasks, "_DONE", {})
    first = trained({"sorting": TINY}, [0, 1], side_by_side=False)["sorting"]
    monkeypatch.setattr(dong_tasks, "train", lambda *_, **__: pytest.fail("it was trained again"))
    again = trained({"sorting": TINY}, [1], side_by_side=False)["sorting"][0]
    assert again.run is first[1].run and again.run.recipe.seed == 1
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, first[1].model.state_dict()[name])
    inputs, labels = again.task.test.tokens, again.task.test.labels
    with torch.no_grad():
        accuracy = (again.model(inputs).argmax(-1) == labels).double().mean()
        assert not torch.equal(again.fresh(inputs), again.model(inputs))
    assert float(accuracy) == pytest.approx(again.run.final["test"]["accuracy"])


def test_tiny_tasks_have_accuracies_of_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    least = {
        "sorting": {"d": 8, "h": 2, "epochs": 1, "train": 60, "test": 20},
        "convex_hull": {"d": 12, "epochs": 1, "train": 50, "test": 20},
        "memorization": {"d": 8, "epochs": 1, "sequences": 4, "length": 8},
    }
    monkeypatch.setattr(path_effectiveness, "SMALL", {name: SMALL[name] | sizes for name, sizes in least.items()})
    result = ds.reproduce("dong2021/path_effectiveness", smoke=True, counts=(2,), tokens=64)
    lengths = result.numbers["alone"].shape[1]
    assert result.numbers["drawn"].shape == (3, 1, lengths, 2) and lengths > 2
    assert all(((value >= 0) & (value <= 1)).all() for name, value in result.numbers.items() if name != "size")
    assert any(axes.has_data() for axes in result.draw().axes)


@pytest.mark.long
def test_processes_give_the_same_and_a_folder_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dong_tasks, "_DONE", {})
    here = trained({"sorting": TINY}, [0], side_by_side=False)["sorting"][0]
    for _ in range(2):
        dong_tasks._DONE.clear()
        there = trained({"sorting": TINY}, [0], side_by_side=True, folder=str(tmp_path))["sorting"][0]
        assert there.run.final == here.run.final
        monkeypatch.setattr("depthscope.training.own_process._trained", lambda *_: pytest.fail("it ran again"))
    dong_tasks._DONE.clear()
    for kept in tmp_path.glob("*/step_*/*"):
        kept.unlink()
    with (
        pytest.warns(UserWarning, match="no checkpoint is whole"),
        pytest.raises(CheckpointError, match=r"sorting-0-.* must hold a run and its last checkpoint"),
    ):
        trained({"sorting": TINY}, [0], side_by_side=True, folder=str(tmp_path))


def test_sizes_are_those_that_the_tasks_have_by_default() -> None:
    for name, sizes in SIZES.items():
        usual = task(name).defaults
        assert {size: value for size, value in sizes.items() if size in usual} == {
            size: usual[size] for size in sizes if size in usual
        }
        assert SMALL[name].keys() == sizes.keys()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean small"):
        path_effectiveness.Config(sizes="smal")
    with pytest.raises(UsageError, match=r"counts must be different and grow; got \(20, 5\)"):
        path_effectiveness.Config(counts=(20, 5))


def test_claims_fail_where_the_result_is_absent() -> None:
    numbers = {"accuracy": torch.tensor([0.2]), "chance": torch.tensor(0.3), "residual": torch.full((3, 7), 0.2)}
    assert not any(claim.holds for claim in sorting.claims(numbers, sorting.SMOKE))


def test_a_run_that_diverged_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dong_tasks, "_DONE", {})
    wild = TINY | {"lr": 1e30, "clip": None, "warmup": 0}
    with pytest.raises(DepthscopeError, match=r"sorting, seed 0: every run must come to its end; .* Take a smaller"):
        trained({"sorting": wild}, [0], side_by_side=False)
