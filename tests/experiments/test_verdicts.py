"""The verdict of a scan is the one that the gallery has written down, and disagreements are told one by one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import depthscope as ds
from depthscope.errors import MissingExtraError
from depthscope.experiments import gallery_trained
from depthscope.experiments.beyond import verdicts
from depthscope.experiments.gallery_fixed import fixed_gallery
from depthscope.forecasts.advise import in_a_verdict
from depthscope.models.gallery import gallery
from depthscope.models.gallery.entry import COLLAPSED, HEALTHY, LABELS, Entry
from depthscope.models.gallery.truth import fate
from depthscope.scans.verdict import advised_by
from loops import over


@pytest.fixture
def no_advice() -> Iterator[None]:
    """What to do about a model takes seconds to find, and no status depends on it."""
    advised_by(lambda scan, depth: "")
    yield
    advised_by(in_a_verdict)


@over("entry", [*gallery(5)[::2], *fixed_gallery(5)], every=5)
def test_the_verdict_is_right(entry: Entry, no_advice: None) -> None:
    try:
        model, inputs = entry.build()
    except MissingExtraError:
        pytest.skip("transformers is missing")
    assert ds.scan(model, inputs, attention=False).verdict.status in entry.allowed, entry.why


@over("entry", fixed_gallery(1))
def test_labels_of_fixed_models_are_what_numpy_finds(entry: Entry) -> None:
    wanted = {"collapsed": {"lost"}, "vanished": {"nothing to pool"}}
    assert fate(*entry.build()) in wanted.get(entry.label, {"kept", "nothing to pool"})


@over("score, chance, label", [(0.9, 0.1, HEALTHY), (2.0, 3.3, HEALTHY), (0.12, 0.1, COLLAPSED), (3.3, 3.3, COLLAPSED)])
def test_the_label_of_a_trained_model_follows_from_its_score(score: float, chance: float, label: frozenset) -> None:
    """A loss has a chance above 1."""
    name = "all tokens the same" if label is COLLAPSED else "none the same"
    built = next(entry for entry in gallery(0) if entry.name == name).build()
    entry = gallery_trained._labelled("a model", built, score, chance, 6, 0)
    assert entry is not None and entry.allowed == label


def test_who_fails_with_tokens_apart_or_learns_a_little_has_no_label() -> None:
    apart = next(entry for entry in gallery(0) if entry.name == "none the same").build()
    assert gallery_trained._labelled("failed for another reason", apart, 0.1, 0.1, 6, 0) is None
    assert gallery_trained._labelled("learned a little", apart, 0.25, 0.1, 6, 0) is None


def test_a_model_is_trained_in_seconds_and_measured_with_its_weights() -> None:
    settings = {"wiring": "post_norm", "depth": 2, "epochs": 4, "lr": 3e-3, "warmup": 5}
    (model, inputs), score, chance = gallery_trained.trained("sorting", settings, 3)
    found = model(inputs).argmax(-1)
    truth = inputs.sort(1).values
    assert score > chance
    assert float((found == truth).double().mean()) > chance


def test_a_missing_package_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtraError("minilm: its package must be installed.")

    monkeypatch.setattr(gallery_trained.packaged, "minilm", missing)
    assert gallery_trained._packaged("minilm", 0) is None


def test_every_disagreement_is_counted_and_named() -> None:
    cfg = verdicts.Config(galleries=1, every=20, trained=False)
    entries = verdicts._untrained(cfg, 0)
    labels = [list(LABELS).index(entry.label) for entry in entries]
    statuses = [verdicts.STATUSES.index(sorted(entry.allowed)[0]) for entry in entries]
    numbers = {"label": torch.tensor([labels]), "status": torch.tensor([statuses])}
    numbers["trained"] = torch.zeros_like(numbers["label"])
    assert all(claim.holds for claim in verdicts.claims(numbers, cfg))
    assert int(verdicts.confusion(numbers).sum()) == len(entries)
    lost = next(i for i, entry in enumerate(entries) if entry.label == "collapsed")
    numbers["status"][0, lost] = verdicts.STATUSES.index("diverse")
    stated = verdicts.claims(numbers, cfg)
    failed = [claim.says for claim in stated if not claim.holds]
    assert len(failed) == 2
    assert failed[0].endswith("collapsed models, called diverse")
    assert failed[1].endswith("labelled collapsed, called so")
    assert stated[-1].says == f"{entries[lost].name} (seed 0): collapsed, called diverse"


@pytest.mark.long
def test_the_numbers_can_be_saved_and_read(tmp_path: Path) -> None:
    result = ds.reproduce("beyond/verdicts", smoke=True, every=60)
    read = ds.load(result.save(tmp_path / "verdicts.json"))
    assert all(torch.equal(read.numbers[key], value) for key, value in result.numbers.items())


def test_a_model_without_a_label_is_not_counted() -> None:
    cfg = verdicts.Config(galleries=1, every=60, trained=False)
    count = len(verdicts.names(cfg, 0))
    numbers = {key: torch.full((1, count), verdicts.NONE) for key in ("label", "status")}
    numbers["trained"] = torch.zeros(1, count, dtype=torch.int64)
    assert int(verdicts.confusion(numbers).sum()) == 0
    assert verdicts.wrong(numbers, cfg) == []
    assert verdicts.left_out(numbers, cfg) == verdicts.names(cfg, 0)
    said = next(c.says for c in verdicts.claims(numbers, cfg) if "smallest gallery" in c.says)
    assert all(name in said for name in verdicts.names(cfg, 0))


@pytest.mark.long
def test_a_classifier_that_averages_its_tokens_is_healthy(no_advice: None) -> None:
    (model, inputs), score, chance = gallery_trained.pooled(4, seed=0, steps=200)
    assert score > chance + 0.2
    assert ds.scan(model, inputs, attention=False).verdict.status in HEALTHY
