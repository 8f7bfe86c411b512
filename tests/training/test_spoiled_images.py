"""Image tasks made harder: a share of the images, wrong labels among them, and damaged test images for one model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.training.build import Build
from depthscope.training.compare import compare
from depthscope.training.data.damage import Damage, blurred, damages, noisy
from depthscope.training.data.spoiled import mislabelled, spoiled
from depthscope.training.loop import train
from depthscope.training.recipe import Recipe
from depthscope.training.tasks import ImageTask, Split, task
from loops import over

ALONE: dict[str, Any] = {"device": torch.device("cpu"), "part": (0, 1), "total": lambda tensor: tensor}
SMALL = Build(depth=1, d=8, h=2, q=8, wiring="pre_norm")


def digits(**options: Any) -> ImageTask:
    found = task("digits", **options)
    assert isinstance(found, ImageTask)
    return found


def images_of(split: Split) -> list[bytes]:
    return [image.numpy().tobytes() for image in split.images]


def test_all_of_the_images_with_their_own_labels_is_the_task_as_it_was() -> None:
    plain, same = digits(), digits(share=1.0, label_noise=0.0, noise=(), blur=(), data_seed=7)
    assert torch.equal(plain.train.images, same.train.images) and plain.fingerprint == same.fingerprint


def test_a_share_has_each_class_in_proportion_and_images_of_the_whole() -> None:
    whole, part = digits(), digits(share=0.1)
    assert len(part.train) == 120 and {*images_of(part.train)} < {*images_of(whole.train)}
    wanted = whole.train.labels.bincount().double() / 10
    assert float((part.train.labels.bincount() - wanted).abs().max()) < 1
    label_of = dict(zip(images_of(whole.train), whole.train.labels.tolist(), strict=True))
    assert [label_of[image] for image in images_of(part.train)] == part.train.labels.tolist()
    for split in ("valid", "test"):
        assert torch.equal(getattr(part, split).images, getattr(whole, split).images)


def test_the_seed_draws_the_images_and_nothing_else_does() -> None:
    torch.manual_seed(3)
    first, again, other = digits(share=0.2), digits(share=0.2), digits(share=0.2, data_seed=1)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    common = {*images_of(first.train)} & {*images_of(other.train)}
    assert 20 < len(common) < 90  # of 240 by chance 48


def test_a_share_is_of_the_images_that_are_left() -> None:
    assert len(digits(train=200, share=0.25).train) == 50


def test_wrong_labels_are_as_many_as_said_in_the_training_split_alone() -> None:
    plain, wrong = digits(), digits(label_noise=0.2)
    assert torch.equal(plain.train.images, wrong.train.images)
    assert int((plain.train.labels != wrong.train.labels).sum()) == wrong.wrong == 240
    assert torch.equal(plain.valid.labels, wrong.valid.labels) and torch.equal(plain.test.labels, wrong.test.labels)
    assert wrong.facts["data"] == "1200 images to learn from, 240 of them with a wrong label, 360 to test"
    assert wrong.facts["wrong_labels"] == 240 and plain.wrong == 0 and plain.fingerprint != wrong.fingerprint
    assert not torch.equal(digits(label_noise=0.2, data_seed=1).train.labels, wrong.train.labels)
    assert digits(label_noise=0.5, share=0.1).wrong == 60


def test_a_wrong_label_is_each_of_the_others_equally_often() -> None:
    """Counted over 100 seeds: one draw alone is beyond 1 in 100 for some seeds, as it must be (seed 0 is such a one)."""
    labels = torch.full((9000,), 4)
    found = sum(mislabelled(labels, 9000, 10, seed=seed).bincount(minlength=10) for seed in range(100))
    assert int(found[4]) == 0
    others, expected = found[found > 0].double(), 100_000
    assert len(others) == 9 and float((others - expected).square().sum()) / expected < 31.8  # chi^2_8, 1 in 10,000
    assert torch.equal(labels, torch.full((9000,), 4))


@over("deviation", [0.3, 0.75, 1.0, 3.0])
def test_blur_is_that_of_scipy(deviation: float) -> None:
    from scipy.ndimage import gaussian_filter

    images = torch.rand(3, 2, 8, 8)
    expected = gaussian_filter(images.double().numpy(), (0, 0, deviation, deviation), mode="nearest", truncate=4.0)
    if deviation > 0.3:  # whose Gaussian is cut after one pixel here, as there
        assert abs(expected - images.numpy()).max() > 0.05
    np.testing.assert_allclose(blurred(images, deviation).numpy(), expected, atol=2e-6)


def test_noise_has_its_deviation_stays_in_range_and_grows_along_one_draw() -> None:
    grey = torch.full((40, 1, 32, 32), 0.5)
    weak, strong = noisy(grey, 0.05, 3) - 0.5, noisy(grey, 0.1, 3) - 0.5
    assert float(weak.std()) == pytest.approx(0.05, rel=0.02) and float(weak.mean()) == pytest.approx(0, abs=1e-3)
    torch.testing.assert_close(strong, 2 * weak, atol=1e-6, rtol=0)
    assert not torch.equal(noisy(grey, 0.05, 4), noisy(grey, 0.05, 3))
    assert noisy(grey, 1.0, 0).aminmax() == (0.0, 1.0)


class Brightness(nn.Module):
    """Chooses a class by the mean pixel, and tells images apart that a blur and a noise change."""

    def forward(self, images: Tensor) -> Tensor:
        centre = images[..., 2:6, 2:6].mean((1, 2, 3))
        return -(centre.unsqueeze(1) - torch.linspace(-1, 1, 10)).square() * 30


def test_one_model_is_asked_about_every_damage_at_the_end() -> None:
    t, model = digits(noise=[0.2, 0.4], blur=0.75), Brightness()
    found = t.evaluate(model, "test", **ALONE, final=True)
    assert list(found)[:2] == ["loss", "accuracy"] and len(found) == 8
    for name, damage in (("noise_0.4", Damage("noise", 0.4)), ("blur_0.75", Damage("blur", 0.75))):
        damaged = replace(t, test=Split(damage(t.test.images), t.test.labels), damages=())
        by_hand = damaged.evaluate(model, "test", **ALONE, final=True)
        assert {what: found[f"{what}_{name}"] for what in by_hand} == by_hand and by_hand["loss"] != found["loss"]
    assert [*t.evaluate(model, "test", **ALONE, final=False)] == ["loss", "accuracy"]
    assert [*t.evaluate(model, "valid", **ALONE, final=True)] == ["loss", "accuracy"]


def test_bytes_are_damaged_as_numbers_from_0_to_1() -> None:
    t = digits(train=40)
    as_bytes = replace(t, test=Split((t.test.images * 255).round().to(torch.uint8), t.test.labels))
    model, both = Brightness(), []
    for one in (t, as_bytes):
        both.append(replace(one, damages=(Damage("blur", 1.0),)).evaluate(model, "test", **ALONE, final=True))
    assert both[0]["loss_blur_1"] == pytest.approx(both[1]["loss_blur_1"], rel=0.01)


def test_damage_changes_the_fingerprint_and_no_step_of_the_training() -> None:
    plain, damaged = digits(train=128), digits(train=128, noise=0.3)
    marks = {one.fingerprint for one in (plain, damaged, digits(train=128, blur=0.3), digits(train=128, noise=0.4))}
    assert len(marks) == 4 and digits(train=128, noise=0.3, data_seed=1).fingerprint not in marks
    runs = [train(SMALL, one, Recipe(epochs=1)) for one in (plain, damaged)]
    assert runs[0].history["loss"] == runs[1].history["loss"]
    assert runs[0].final["test"].items() < runs[1].final["test"].items()
    assert "accuracy noise 0.3" in str(runs[1]) and str(runs[1]).count("%") == 4


@pytest.mark.long
def test_a_comparison_says_how_arms_do_on_damaged_images() -> None:
    sizes: dict[str, Any] = {"depth": 1, "d": 8, "h": 2, "q": 8, "epochs": 1, "train": 64}
    found = compare("digits", ["pre_norm"], seeds=1, processes=1, noise=[0.2, 0.4], blur=1, **sizes)
    score = f"{100 * found.lanes[0].mean('test', 'accuracy_noise_0.4'):.1f} %"
    lines = [line for line in str(found).splitlines() if line.startswith("On test images with")]
    assert len(lines) == 3 and lines[1] == f"On test images with noise 0.4: pre_norm {score}."


@over(
    "options, words",
    [
        ({"share": 0}, "digits: share of the training images must be above 0, up to 1; got 0"),
        ({"share": 1.5}, "share of the training images must be"),
        ({"share": True}, "share of the training images must be"),
        ({"label_noise": 1.0}, "digits: label_noise must be a share of labels, from 0 to below 1; got 1.0"),
        ({"label_noise": "x"}, "label_noise must be"),
        ({"noise": 0}, "digits: noise must be strengths above 0, up to 1 of the range from black to white; got 0"),
        ({"noise": [0.1, 2]}, r"noise must be strengths .* got \[0.1, 2\]"),
        ({"blur": "x"}, "digits: blur must be strengths above 0, up to 32 pixels; got 'x'"),
        ({"noise": [0.1, 0.1]}, "every strength must be there once"),
        ({"data_seed": -1}, "digits: data_seed must be a whole number"),
        ({"data_seed": 0.5}, "data_seed must be a whole number"),
    ],
)
def test_what_cannot_be_meant_is_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        digits(**options)


def test_one_class_has_no_wrong_labels() -> None:
    split = Split(torch.zeros(9, 1, 4, 4), torch.zeros(9, dtype=torch.int64))
    assert spoiled(split, 1.0, 0.0, 0, classes=1, where="images")[1] == 0
    with pytest.raises(UsageError, match=r"images: label_noise must have another class .* got 0.5 and one class"):
        spoiled(split, 1.0, 0.5, 0, classes=1, where="images")


def test_cifar10_and_images_have_the_same_options(tmp_path: Any) -> None:
    draw = np.random.default_rng(0)
    arrays = {f"{part}_images": draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for part, n in (("train", 100), ("test", 20))}  # fmt: skip
    labels = {f"{part}_labels": np.arange(n) % 10 for part, n in (("train", 100), ("test", 20))}
    np.savez(tmp_path / "c.npz", **arrays, **labels)
    options: dict[str, Any] = {"share": 0.5, "label_noise": 0.1, "noise": 0.1, "blur": [1, 2], "data_seed": 2}
    small = task("cifar10", data=str(tmp_path / "c.npz"), valid=20, **options)
    assert isinstance(small, ImageTask) and len(small.train) == 40 and small.wrong == 4
    assert [one.name for one in small.damages] == ["noise_0.1", "blur_1", "blur_2"] and small.damages[0].seed == 2
    x = small.inputs(small.train.images)  # normalised by the images that are learned from
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    import inspect

    from depthscope.registry import lookup

    for name in ("digits", "cifar10", "images"):
        assert {*options} <= {*inspect.signature(lookup("task", name)).parameters}


def test_no_strength_is_no_damage() -> None:
    assert damages((), [], 0, where="x") == () and damages(0.5, (), 0, where="x") == (Damage("noise", 0.5),)
