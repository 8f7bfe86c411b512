"""The labels of the gallery are true: numpy, which knows nothing of scans and verdicts, finds what they say."""

from collections import Counter

import numpy as np
import pytest
import torch

from depthscope.errors import MissingExtraError
from depthscope.models.gallery import gallery
from depthscope.models.gallery.entry import COLLAPSED, LABELS, Entry
from depthscope.models.gallery.truth import clusters, dimensions, distances, fate, is_lost, on_a_line, pooled_share
from loops import over

FATES = {
    "collapsed": {"lost"},
    "collapsed or escalating": {"lost", "some lost", "kept"},  # people differ
    "escalating": {"some lost", "kept"},  # on the way, in some sequences or in all
    "diverse or escalating": {"kept"},
    "diverse": {"kept"},
    "not a number": {"not a number"},
    "vanished": {"nothing to pool"},
}


@over("entry", [*gallery(0), *gallery(7)[::4]], every=8)
def test_a_label_is_what_numpy_finds(entry: Entry) -> None:
    try:
        built = entry.build()
    except MissingExtraError:
        pytest.skip("transformers is missing")
    assert fate(*built) in FATES[entry.label]


def test_a_gallery_has_many_of_every_label() -> None:
    entries = gallery(0)
    assert len({entry.name for entry in entries}) == len(entries) >= 60
    assert all(entry.why.endswith(".") for entry in entries)
    assert min(Counter(entry.label for entry in entries)[label] for label in LABELS) >= 2
    assert min(Counter(entry.kind for entry in entries).values()) >= 2


def test_no_label_calls_a_model_collapsed_and_diverse() -> None:
    assert not [label for label, allowed in LABELS.items() if "diverse" in allowed and allowed & COLLAPSED]


def test_an_entry_is_the_same_at_every_build_and_another_with_another_seed() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        entry = next(entry for entry in gallery(seed) if entry.name == "post-norm, deep: relu")
        model, X = entry.build()
        return [X, *model.parameters()]

    state = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(weights(3), weights(3), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert weights(3)[0].shape != weights(4)[0].shape or not torch.equal(weights(3)[0], weights(4)[0])


def test_seeds_choose_other_sizes() -> None:
    def said(seed: int) -> list[str]:
        return [entry.why for entry in gallery(seed)]

    assert [e.name for e in gallery(0)] == [e.name for e in gallery(1)]
    assert sum(a != b for a, b in zip(said(0), said(1), strict=True)) > 20


# What the literal measure says of states that are written down by hand.

X = np.random.default_rng(0).normal(size=(32, 24))
SAME = np.ones((32, 24)) + 0.01 * X
MASSIVE = np.concatenate([1000 * X[:1], SAME[1:]])
ONE_FREE = np.concatenate([X[:1], SAME[1:]])
LINE = X[:, :1] * X[:1] + X[1]
TWO = np.where(np.arange(32)[:, None] % 2, X[:1], X[1:2]) + 1e-3 * X
OFFSET = X + 100


@over("Y, lost", [(SAME, True), (MASSIVE, True), (ONE_FREE, True), (LINE, True), (TWO, True), (X, False)])
def test_what_counts_as_lost(Y: np.ndarray, lost: bool) -> None:
    assert is_lost(Y, X) == lost


def test_a_massive_token_over_healthy_ones_and_a_common_offset_lose_nothing() -> None:
    assert not is_lost(np.concatenate([1000 * X[:1], X[1:]]), X)
    assert not is_lost(OFFSET, X)
    assert is_lost(1e-3 * X + 100, X)


def test_the_parts_of_the_measure() -> None:
    assert distances(X)[3, 5] == pytest.approx(sum((a - b) ** 2 for a, b in zip(X[3], X[5], strict=True)))
    assert on_a_line(LINE)
    assert not on_a_line(X)
    assert sorted(map(len, clusters(TWO, distances(TWO)))) == [16, 16]
    assert dimensions(np.concatenate([np.eye(6), -np.eye(6)])) == pytest.approx(6)
    assert pooled_share(X - X.mean(0)) < 1e-12
