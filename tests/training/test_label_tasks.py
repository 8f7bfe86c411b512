"""Sorting, convex hull, memorization: labels against other ways to find them, and that models learn them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from depthscope.cli.main import app
from depthscope.errors import ShapeError, UnknownNameError, UsageError
from depthscope.training.build import Build
from depthscope.training.data.labels import Labelled
from depthscope.training.label_batches import LabelBatches
from depthscope.training.loop import train
from depthscope.training.recipe import Recipe
from depthscope.training.tasks import task
from depthscope.training.tasks.convex_hull import SPREAD, corners
from depthscope.training.tasks.memorization import numbered, stretches
from loops import over

NAMES = ("sorting", "convex_hull", "memorization")
CPU = torch.device("cpu")
SMALL = {
    "sorting": {"train": 30, "valid": 5, "test": 7},
    "convex_hull": {"train": 30, "valid": 5, "test": 7},
    "memorization": {"sequences": 30, "length": 12},
}


def test_sorting_asks_for_the_sorted_sequence() -> None:
    made = task("sorting", vocabulary=7, length=5, **SMALL["sorting"])
    for split in (made.train, made.valid, made.test):
        assert split.labels.tolist() == [sorted(row) for row in split.tokens.tolist()]
    assert (len(made.train), len(made.valid), len(made.test), made.answers, made.length) == (30, 5, 7, 7, 5)


def test_the_chance_of_sorting_is_that_of_who_knows_the_place() -> None:
    made = task("sorting")
    best = [Counter(column).most_common(1)[0][1] for column in zip(*made.test.labels.tolist(), strict=True)]
    assert made.facts["chance"] == pytest.approx(sum(best) / 1600) and 0.3 < made.facts["chance"] < 0.4


@over("n", [3, 4, 10, 25])
def test_corners_are_those_of_scipy(n: int) -> None:
    spatial = pytest.importorskip("scipy.spatial")
    points = torch.rand(300, n, 2, dtype=torch.float64)
    for cloud, found in zip(points, corners(points), strict=True):
        assert {*spatial.ConvexHull(cloud.numpy()).vertices.tolist()} == {*found.nonzero()[:, 0].tolist()}


def test_points_and_corners_are_as_in_the_paper() -> None:
    made = task("convex_hull")
    points = torch.cat([made.train.tokens, made.test.tokens]) * SPREAD + 5
    assert points.mean() == pytest.approx(5, abs=0.05) and points.std() == pytest.approx(
        np.sqrt(100 / 12 + 3.3**2), 0.02
    )
    assert made.train.labels.double().mean() == pytest.approx(0.55, abs=0.01)  # the paper: 0.54 without looking
    assert torch.equal(corners(made.test.tokens.double()).long(), made.test.labels)  # scale and place do not matter


def test_memorization_asks_what_was_learned() -> None:
    made = task("memorization")
    assert made.test is made.train and made.test.tokens.shape == (500, 128)
    assert torch.equal(made.valid.labels, made.train.labels[::8])
    assert made.train.labels.double().mean() == pytest.approx(0.5, abs=0.01)
    assert "the same to test" in made.facts["data"] and "85" in made.facts["data"]


def test_the_best_that_can_be_known_is_a_vote_of_equal_words() -> None:
    made, known = task("memorization", sequences=20, length=40), 0
    for words, labels in zip(made.test.tokens.tolist(), made.test.labels.tolist(), strict=True):
        for word in {*words}:
            known += max(Counter(label for one, label in zip(words, labels, strict=True) if one == word).values())
    assert made.best == pytest.approx(known / 800)


def test_stretches_of_the_same_words_are_one_stretch(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three four " * 10)
    made = task("memorization", data=tmp_path / "text.txt", sequences=30, length=8)  # all have each word twice
    ones = [made.test.labels[made.test.tokens == word].sum().item() for word in range(4)]
    assert made.best == pytest.approx(sum(max(k, 60 - k) for k in ones) / 240)


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two one three four " * 4)
    made = task("memorization", data=tmp_path / "text.txt", sequences=3, length=8)
    assert made.words == 4 and made.train.tokens[0].tolist() == [0, 1, 0, 2, 3, 0, 1, 0] and len(made.train) == 3
    with pytest.raises(UsageError, match=r"30 different stretches of 8 words must fit; .*text.txt has 20 words"):
        task("memorization", data=tmp_path / "text.txt", sequences=30, length=8)


def test_stretches_are_evenly_spaced_and_words_numbered_as_they_come() -> None:
    assert stretches(torch.arange(10), 3, 4, "it").tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    ids, kinds = numbered("b a b c".split())
    assert ids.tolist() == [0, 1, 0, 2] and kinds == 3


@over("name", NAMES)
def test_data_is_a_function_of_its_seed(name: str) -> None:
    one, again, other = (task(name, **SMALL[name], data_seed=seed) for seed in (3, 3, 4))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert one.fingerprint != task(name, **SMALL[name], data_seed=3, activation="relu").fingerprint


@over("name", ["sorting", "convex_hull"])
def test_the_test_split_does_not_move_with_the_others(name: str) -> None:
    small, large = task(name, train=10, valid=5, test=7), task(name, train=20, valid=6, test=7)
    assert torch.equal(small.test.tokens, large.test.tokens)


def test_test_sequences_that_were_learned_from_are_counted() -> None:
    assert task("sorting").met == 0 and "met" not in task("sorting").facts["data"]
    made = task("sorting", vocabulary=3, length=3, train=20, test=50)
    known = made.train.tokens.tolist()
    count = sum(row in known for row in made.test.tokens.tolist())
    assert 0 < count < 50 and made.facts["data"].endswith(f"50 to test, {count} of which it has met")


@over("name", NAMES)
def test_an_epoch_takes_every_sequence_once(name: str) -> None:
    made = task(name, **SMALL[name])
    batches = LabelBatches(made, Recipe(batch=7), CPU)
    rows = [batches.at(step) for step in range(5)]
    tokens, labels = (torch.cat(column) for column in zip(*rows, strict=True))
    seen = sorted(zip(tokens.flatten(1).tolist(), labels.tolist(), strict=True))
    assert seen == sorted(zip(made.train.tokens.flatten(1).tolist(), made.train.labels.tolist(), strict=True))
    assert not torch.equal(batches.at(0)[0], batches.at(5)[0]) and batches.fresh(3)
    assert torch.equal(LabelBatches(made, Recipe(batch=7), CPU).at(6)[0], batches.at(6)[0])


@over("name", NAMES)
def test_losses_and_accuracy_are_means_over_tokens(name: str) -> None:
    made = task(name, **SMALL[name])
    model, _ = Build(depth=2, d=12, h=2).model(made, 0)
    where = {"device": CPU, "part": (0, 1), "total": lambda sums: sums, "final": True}
    found = made.evaluate(model, "test", **where)
    with torch.no_grad():
        log_p = model(made.test.tokens).double().log_softmax(-1)
        losses = made.losses(model, made.test.tokens, made.test.labels, None)[0]
    count = made.test.labels.numel()
    truth = -log_p.gather(-1, made.test.labels[..., None]).mean()
    assert found["loss"] == pytest.approx(float(truth)) and float(losses) / count == pytest.approx(
        float(truth), rel=1e-4
    )
    assert found["accuracy"] == pytest.approx(float((log_p.argmax(-1) == made.test.labels).double().mean()))
    parts = [made.evaluate(model, "test", **where | {"part": (i, 2)}) for i in (0, 1)]
    assert sum(part["loss"] for part in parts) == pytest.approx(found["loss"])


def test_models_have_no_network_unless_it_is_asked_for() -> None:
    for activation, networks in (("none", 0), ("relu", 4)):
        model, _ = Build(depth=2, d=12, h=2).model(task("sorting", activation=activation), 0)
        assert sum("ffn" in name for name, _ in model.named_parameters()) == networks
    assert task("sorting").facts["ffn"] is False and task("sorting", activation="relu").facts["ffn"] is True


def test_the_paper_s_sizes_are_the_defaults() -> None:
    sizes = {name: [task(name).defaults[size] for size in ("depth", "h", "d")] for name in NAMES}
    assert sizes == {"sorting": [6, 2, 48], "convex_hull": [6, 3, 84], "memorization": [6, 2, 250]}


def test_a_small_model_learns_to_sort_four_numbers() -> None:
    made = task("sorting", vocabulary=4, length=4, train=200, valid=20, test=100)
    recipe = Recipe(epochs=12, batch=20, lr=5e-3, weight_decay=0.0, schedule="cosine", eval_every=12)
    run = train(Build(depth=2, d=24, h=2), made, recipe)
    assert run.final["test"]["accuracy"] > 0.9 > made.chance + 0.2


@over(
    "name, options, words",
    [
        ("sorting", {"length": 1}, "sorting: length must be a whole number, 2 or more; got 1"),
        ("sorting", {"train": 0}, "sorting: train"),
        ("sorting", {"vocabulary": 1}, "sorting: vocabulary"),
        ("convex_hull", {"points": 3}, "convex_hull: points"),
        ("convex_hull", {"data_seed": -1}, "convex_hull: data_seed"),
        ("memorization", {"sequences": 1}, "memorization: sequences"),
        ("memorization", {"length": True}, "memorization: length"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(name: str, options: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        task(name, **options)


def test_what_does_not_suit_these_tasks_is_refused() -> None:
    made = task("sorting", **SMALL["sorting"])
    with pytest.raises(UsageError, match="nothing is pooled; got pooling='mean'"):
        Build(depth=2, d=12, h=2, pooling="mean").model(made, 0)
    with pytest.raises(UsageError, match=r"no feed-forward networks, .* got q=40"):
        Build(depth=2, d=12, h=2, q=40).model(made, 0)
    with pytest.raises(UsageError, match="only images can be augmented"):
        made.batches(Recipe(augment="auto"), CPU)
    with pytest.raises(UnknownNameError, match="Did you mean none"):
        Build(depth=2, d=12, h=2).model(task("sorting", activation="nono"), 0)


@over(
    "change, error, words",
    [
        ({"labels": torch.zeros(7, 4, dtype=torch.int64)}, ShapeError, r"one int64 label for each token, \(7, 8\)"),
        ({"labels": torch.full((7, 8), 10)}, UsageError, r"labels must lie in 0 \.\.\. 9; got 10 in sequence 0 at 0"),
        ({"tokens": torch.full((7, 8), -1)}, UsageError, "tokens must lie in"),
        ({"tokens": torch.zeros(7, 8)}, ShapeError, "int64"),
    ],
)
def test_splits_are_checked(change: dict, error: type, words: str) -> None:
    made = task("sorting", **SMALL["sorting"])
    with pytest.raises(error, match=words):
        replace(made, test=Labelled(**{"tokens": made.test.tokens, "labels": made.test.labels} | change))


def test_points_must_be_finite() -> None:
    made = task("convex_hull", **SMALL["convex_hull"])
    with pytest.raises(UsageError, match="points must be finite"):
        replace(made, test=Labelled(made.test.tokens / 0, made.test.labels))


@pytest.mark.long
def test_compare_takes_the_sizes_of_the_task_and_says_what_is_asked(tmp_path: Path) -> None:
    said = ["--epochs", "1", "--width", "12", "--set", "train=60", "--set", "eval_every=9"]
    words = ["compare", "sorting", "--arms", "de_escalate", "--seeds", "1", "--processes", "1", *said]
    result = CliRunner().invoke(app, [*words, "--folder", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "tagger of 6 blocks, d 12, 2 heads, no ffn" in text and "60 sequences of 8 tokens to learn from" in text
    assert "stayed at chance in 1 of 1 seeds" in text
