"""Every task: three splits that share nothing, the same at every call, and clear words for data that cannot be used."""

import itertools
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from depthscope.errors import DepthscopeError, MissingExtraError, ShapeError, UnknownNameError, UsageError
from depthscope.training.data import binary as binary_files
from depthscope.training.data.cut import stratified
from depthscope.training.data.images import make_task
from depthscope.training.tasks import ImageTask, Split, names, pixels, task
from loops import over


def arrays(train: int = 60, test: int = 20) -> dict[str, np.ndarray]:
    """CIFAR-like arrays; the first two pixels spell the image's number, so that each can be told from all others."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (train + test, 32, 32, 3), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.arange(train + test) % 256, np.arange(train + test) // 256
    labels = np.arange(train + test) % 10
    return {
        "train_images": images[:train],
        "train_labels": labels[:train],
        "test_images": images[train:],
        "test_labels": labels[train:],
    }


def save(path: Path, **changes: Any) -> Path:
    np.savez(path, **{k: v for k, v in (arrays() | changes).items() if v is not None})
    return path


def rows(split: Split) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.images}


def check_whole(t: ImageTask) -> None:
    """What every task promises."""
    for split in (t.train, t.valid, t.test):
        assert split.images.shape[1:] == t.size and split.labels.dtype == torch.int64
        assert 0 <= int(split.labels.min()) and int(split.labels.max()) < t.classes
    x = t.inputs(t.train.images)
    assert x.dtype == torch.float32 and x.shape == t.train.images.shape
    if t.name == "digits":
        assert x.aminmax() == (-1.0, 1.0)
        return
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(t.size[0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(t.size[0]), atol=1e-4, rtol=0)


def test_names_and_options() -> None:
    assert {"cifar10", "digits", "images"} <= {*names()}
    with pytest.raises(UnknownNameError, match=r"no task is called 'digit'. Did you mean digits"):
        task("digit")
    with pytest.raises(UnknownNameError, match=r"cifar10: no option is called 'tran'. Did you mean train"):
        task("cifar10", tran=3)
    with pytest.raises(UnknownNameError, match="digits: no option is called 'data'"):
        task("digits", data="x.npz")


def test_ls_tasks() -> None:
    from depthscope.cli.main import app

    output = CliRunner().invoke(app, ["ls", "tasks"]).output
    assert all(name in output for name in names())


def test_importing_tasks_is_light() -> None:
    heavy = ("kornia", "sklearn", "datasets", "PIL", "torchvision")
    code = f"import sys, depthscope.training.tasks, depthscope.training.augment; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_digits() -> None:
    t = task("digits")
    check_whole(t)
    assert (len(t.train), len(t.valid), len(t.test)) == (1200, 237, 360)
    assert (t.size, t.patch, t.classes) == ((1, 8, 8), 2, 10)
    assert float(t.train.images.max()) == 1.0 and t.train.images.dtype == torch.float32
    torch.manual_seed(1)
    assert task("digits").fingerprint == t.fingerprint  # no say for the caller's seed
    few = task("digits", train=200)
    assert torch.equal(few.train.images, t.train.images[:200]) and torch.equal(few.test.images, t.test.images)
    assert few.fingerprint != t.fingerprint
    with pytest.raises(UsageError, match="digits: train must be a whole number from 1 to 1200; got 0"):
        task("digits", train=0)


def test_digits_are_all_of_the_source_once() -> None:
    from sklearn.datasets import load_digits

    t = task("digits")
    parts = torch.cat([s.images for s in (t.train, t.valid, t.test)]).flatten(1) * 16
    source = torch.from_numpy(load_digits().data).float()
    assert sorted(map(tuple, parts.tolist())) == sorted(map(tuple, source.tolist()))


def test_a_missing_package_gives_the_line_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"scikit-learn. pip install .*'scikit-learn>="):
        task("digits")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"datasets .* pip install .*'datasets>="):
        task("images", data=str(tmp_path))


def test_cifar10_from_npz(tmp_path: Path) -> None:
    path = save(tmp_path / "c.npz")
    t = task("cifar10", data=str(path), valid=20)
    check_whole(t)
    assert (len(t.train), len(t.valid), len(t.test), t.patch, t.size) == (40, 20, 20, 4, (3, 32, 32))
    for a, b in itertools.combinations((t.train, t.valid, t.test), 2):
        assert not rows(a) & rows(b)
    assert len(rows(t.train) | rows(t.valid)) == 60
    assert t.train.labels.bincount().tolist() == [4] * 10 and t.valid.labels.bincount().tolist() == [2] * 10
    images = arrays()["train_images"]
    for image, label in zip(t.train.images, t.train.labels, strict=True):  # channels moved, and the label stayed
        number = int(image[0, 0, 0])
        assert np.array_equal(image.permute(1, 2, 0).numpy(), images[number]) and number % 10 == int(label)
    assert len(task("cifar10", data=path).valid) == 6  # a tenth


def test_cifar10_takes_a_stratified_part_and_keeps_the_validation_split(tmp_path: Path) -> None:
    path = save(tmp_path / "c.npz")
    whole, part = task("cifar10", data=path, valid=10), task("cifar10", data=path, valid=10, train=20, test=10)
    assert part.train.labels.bincount().tolist() == [2] * 10 and part.test.labels.bincount().tolist() == [1] * 10
    assert rows(part.train) < rows(whole.train) and torch.equal(part.valid.images, whole.valid.images)
    for wrong in ({"train": 51}, {"train": 0}, {"valid": 60}, {"valid": 2.5}, {"test": 21}, {"train": True}):
        with pytest.raises(UsageError, match=f"cifar10: {next(iter(wrong))} must be a whole number from 1 to"):
            task("cifar10", data=path, **({"valid": 10} | wrong))


def test_the_fingerprint_knows_patch_and_classes() -> None:
    t = task("digits", train=10)
    assert len({one.fingerprint for one in (t, replace(t, patch=4), replace(t, classes=11))}) == 3


def test_the_fingerprint_knows_data_and_split(tmp_path: Path) -> None:
    def mark(**options: Any) -> str:
        return task("cifar10", **({"data": save(tmp_path / "c.npz"), "valid": 10} | options)).fingerprint

    images, labels = arrays()["train_images"].copy(), arrays()["train_labels"].copy()
    images[7, 5, 5, 1] ^= 1
    labels[[0, 1]] = labels[[1, 0]]
    pixel, label = save(tmp_path / "p.npz", train_images=images), save(tmp_path / "l.npz", train_labels=labels)
    assert mark() == mark()
    assert len({mark(), mark(valid=11), mark(train=20), mark(test=10), mark(data=pixel), mark(data=label)}) == 6


def test_stratified_counts_are_exact_and_in_proportion() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [3] * 20)  # class 2 has nobody
    for count in range(1, 101):
        taken = stratified(labels, count)
        got = labels[taken].bincount(minlength=4).double()
        assert int(taken.sum()) == count
        assert bool(((got - torch.tensor([0.5, 0.3, 0.0, 0.2]) * count).abs() < 1).all())


BAD_ARRAYS = [
    ({"test_labels": None}, "test_labels is missing"),
    ({"train_labels": np.full(60, 10)}, r"train: labels must lie in 0 ... 9; got 10 at image 0"),
    ({"train_labels": np.full(60, -1)}, "labels must lie in 0 ... 9; got -1"),
    ({"train_labels": np.zeros(59, int)}, r"one int64 label for each of 60 images; got torch.int64 \(59,\)"),
    ({"train_labels": np.zeros(60)}, "train_labels must be whole numbers; got float64"),
    ({"train_images": np.zeros((60, 32, 32, 3))}, r"train_images must be uint8 \(N, 32, 32, 3\); got float64"),
    ({"test_images": np.zeros((20, 3, 32, 32), np.uint8)}, r"test_images must be uint8 .* got uint8 \(20, 3, 32, 32\)"),
    (
        {"test_images": np.zeros((0, 32, 32, 3), np.uint8), "test_labels": np.zeros(0, int)},
        r"test: images must be .* N >= 1; got \(0,",
    ),
    ({"train_labels": np.array([{}] * 60, dtype=object)}, "without pickled objects; ValueError: Object arrays"),
]


@over("changes, words", BAD_ARRAYS)
def test_bad_arrays_are_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save(tmp_path / "bad.npz", **changes)
    with pytest.raises(DepthscopeError, match=words) as caught:
        task("cifar10", data=path)
    assert "bad.npz" in str(caught.value)


class Trap:
    """Unpickling it would leave a file behind."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def test_files_that_are_no_npz_are_refused_and_nothing_is_unpickled(tmp_path: Path) -> None:
    whole = save(tmp_path / "whole.npz").read_bytes()
    for content in (
        b"",
        b"junk" * 100,
        whole[: len(whole) // 2],
        pickle.dumps(Trap(tmp_path / "sprung")),
        whole[:9000] + bytes(500) + whole[9500:],
    ):
        (tmp_path / "c.npz").write_bytes(content)
        with pytest.raises(UsageError, match=r"c.npz: must be a whole .npz of plain arrays"):
            task("cifar10", data=tmp_path / "c.npz")
    np.save(tmp_path / "single.npy", np.zeros(3))
    (tmp_path / "single.npy").rename(tmp_path / "c.npz")
    with pytest.raises(UsageError, match=r"c.npz: must"):
        task("cifar10", data=tmp_path / "c.npz")
    start = whole.index(b"PK\x01\x02")  # the list of files, at the end
    for offset, wrong in (
        (10, 99),
        (8, 1),
    ):  # compressed in an unknown way: NotImplementedError; encrypted: RuntimeError
        (tmp_path / "c.npz").write_bytes(whole[: start + offset] + bytes([wrong]) + whole[start + offset + 1 :])
        with pytest.raises(UsageError, match=r"c.npz: must be a whole .npz of plain arrays"):
            task("cifar10", data=tmp_path / "c.npz")
    with pytest.raises(UsageError, match=r"none.npz: the file must exist"):
        task("cifar10", data=tmp_path / "none.npz")
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    for path in (tmp_path, tmp_path / "data_batch_1"):
        with pytest.raises(UsageError, match="pickle"):
            task("cifar10", data=path)
    assert not (tmp_path / "sprung").exists()


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The documented folder, with 20 records in each file instead of 10,000."""
    monkeypatch.setattr(binary_files, "RECORDS", 20)
    data = arrays(100, 20)
    images = np.concatenate([data["train_images"], data["test_images"]]).transpose(0, 3, 1, 2).reshape(120, -1)
    labels = np.concatenate([data["train_labels"], data["test_labels"]]).astype(np.uint8)[:, None]
    records = np.concatenate([labels, images], 1)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i, name in enumerate((*binary_files.TRAIN_FILES, binary_files.TEST_FILE)):
        records[20 * i : 20 * (i + 1)].tofile(folder / name)
    return folder


def test_cifar10_from_the_binary_folder_equals_npz(binary: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", **arrays(100, 20))
    from_npz = task("cifar10", data=tmp_path / "c.npz", valid=30)
    for folder in (binary, binary.parent):  # the folder or the one around it
        t = task("cifar10", data=str(folder), valid=30)
        check_whole(t)
        assert t.fingerprint == from_npz.fingerprint


def test_binary_files_are_checked(binary: Path) -> None:
    third = binary / "data_batch_3.bin"
    whole = third.read_bytes()
    for content in (whole[:-1], whole + b"\0", b""):
        third.write_bytes(content)
        with pytest.raises(
            UsageError, match=f"data_batch_3.bin: must have 61460 bytes, 20 records of 3073; got {len(content)}"
        ):
            task("cifar10", data=binary)
    third.write_bytes(whole[: 3073 * 4] + b"\xff" + whole[3073 * 4 + 1 :])
    with pytest.raises(UsageError, match=r"data_batch_3.bin: labels must lie in 0 ... 9; got 255 at image 4"):
        task("cifar10", data=binary)
    third.unlink()
    with pytest.raises(UsageError, match=r"data_batch_3.bin: the file must be readable; No such file"):
        task("cifar10", data=binary)


def test_the_documented_size_is_the_real_one() -> None:
    assert binary_files.RECORDS * binary_files.RECORD_BYTES == 30_730_000


def test_data_that_is_nothing_known(tmp_path: Path) -> None:
    for wrong in ("nowhere", "/no/such/folder", "a/b/c"):
        with pytest.raises(UsageError, match=f"cifar10: data must be .* got {wrong!r}"):
            task("cifar10", data=wrong)
        with pytest.raises(UsageError, match=f"images: data must be a folder or a hub id; got {wrong!r}"):
            task("images", data=wrong)
    with pytest.raises(UsageError, match=r"must hold data_batch_1.bin .* it does not"):
        task("cifar10", data=tmp_path)
    with pytest.raises(UsageError, match="images: needs data="):
        task("images")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes in sub-folders: 20, 10 and 10 images of several sizes."""
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    draw, folder = np.random.default_rng(0), tmp_path / "photos"
    for label, count in (("ant", 20), ("bee", 10), ("cat", 10)):
        (folder / label).mkdir(parents=True)
        for i in range(count):
            shape = (16, 16, 3) if i % 2 else (20 + i, 30)  # colour, and grey of another size
            image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).save(folder / label / f"{i}.png")
    return folder


def test_an_image_folder(photos: Path) -> None:
    t = task("images", data=photos, size=16, valid=4)
    check_whole(t)
    assert (t.size, t.patch, t.classes) == ((3, 16, 16), 4, 3)
    assert (len(t.train), len(t.valid), len(t.test)) == (28, 4, 8)
    assert t.test.labels.bincount().tolist() == [4, 2, 2] and t.valid.labels.bincount().tolist() == [2, 1, 1]
    assert len(rows(t.train) | rows(t.valid) | rows(t.test)) == 40
    assert t.fingerprint == task("images", data=str(photos), size=16, valid=4).fingerprint
    assert len(set(t.train.labels[:8].tolist())) > 1  # shuffled, though folders come sorted


def test_an_image_folder_with_splits_of_its_own(photos: Path) -> None:
    for split, numbers in (("train", range(4, 10)), ("validation", range(2, 4)), ("test", range(2))):
        for label in ("ant", "bee", "cat"):
            (photos.parent / "parts" / split / label).mkdir(parents=True)
            for i in numbers:
                (photos / label / f"{i}.png").rename(photos.parent / "parts" / split / label / f"{i}.png")
    t = task("images", data=photos.parent / "parts", size=8, train=9)
    assert (len(t.train), len(t.valid), len(t.test)) == (9, 6, 6)
    assert t.train.labels.bincount().tolist() == [3, 3, 3]


def test_bad_image_folders(photos: Path) -> None:
    for settings, words in (
        ({"size": 0}, "images: size must be"),
        ({"size": 10}, "patches must tile the image; got size 10 and patch 4"),
        ({"test": 40}, "images: test must be a whole number from 1 to 39"),
    ):
        with pytest.raises(UsageError, match=words):
            task("images", data=photos, **settings)
    (photos / "bee" / "3.png").write_bytes(b"no image")
    with pytest.raises(UsageError, match=r"bee/3.png: must be an image that can be read; UnidentifiedImageError"):
        task("images", data=photos)
    empty, flat = photos.parent / "empty", photos.parent / "flat"
    empty.mkdir()
    with pytest.raises(
        UsageError, match=r"empty: must hold one sub-folder of images for each class; .* doesn't contain any data files"
    ):
        task("images", data=empty)
    (photos / "ant").rename(flat)
    with pytest.raises(UsageError, match="flat: must give images with their classes; got the columns image"):
        task("images", data=flat)


class Hub:
    """Stands for datasets.load_dataset, which has no network here."""

    def __init__(self, *, side: int = 32, classes: int = 10, splits: tuple[str, ...] = ("train", "test")) -> None:
        self.side, self.classes, self.splits, self.asked = side, classes, splits, ""

    def __call__(self, name: str) -> Any:
        import datasets
        import PIL.Image

        self.asked = name
        features = datasets.Features(
            {"img": datasets.Image(), "label": datasets.ClassLabel(names=[str(i) for i in range(self.classes)])}
        )
        draw = np.random.default_rng(0)
        pictures = draw.integers(0, 256, (40, self.side, self.side, 3), dtype=np.uint8)
        columns = {"img": [PIL.Image.fromarray(p) for p in pictures], "label": [i % self.classes for i in range(40)]}
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_dict(columns, features=features) for split in self.splits}
        )


def test_cifar10_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    hub = Hub()
    monkeypatch.setattr(datasets, "load_dataset", hub)
    t = task("cifar10", valid=10)
    check_whole(t)
    assert hub.asked == "uoft-cs/cifar10" and (len(t.train), len(t.valid), len(t.test)) == (30, 10, 40)
    pictures = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    assert rows(t.test) == {p.transpose(2, 0, 1).tobytes() for p in pictures}  # not a pixel changed
    assert len(task("images", data="some/body", size=8).test) == 40
    for other, words in (
        (Hub(side=16), "some/body, train split, image 0: must be 32 x 32 pixels; got 16 x 16"),
        (Hub(classes=5), "some/body must have ten classes and the splits train and test; got 5 and train, test"),
        (Hub(splits=("train",)), "splits train and test; got 10 and train"),
    ):
        monkeypatch.setattr(datasets, "load_dataset", other)
        with pytest.raises(UsageError, match=words):
            task("cifar10", data="some/body")
    monkeypatch.setattr(datasets, "load_dataset", Hub(splits=("part",)))
    with pytest.raises(UsageError, match="some/body: must have a split called train; got part"):
        task("images", data="some/body")


def test_without_a_network_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # without it the hub's client tries for 20 seconds
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(
        UsageError, match=r"no-body/nothing: must be a folder here or a hub id; .* the network is there"
    ):
        task("cifar10", data="no-body/nothing")


def test_a_task_checks_itself() -> None:
    def parts(images: torch.Tensor, labels: torch.Tensor | None = None, patch: int = 2) -> ImageTask:
        split = Split(images, torch.zeros(len(images), dtype=torch.int64) if labels is None else labels)
        return make_task("mine", split, split, split, classes=2, patch=patch)

    flat = parts(torch.full((4, 1, 4, 4), 0.5))
    assert float(flat.inputs(flat.train.images).abs().max()) == 0  # a constant channel is not divided by zero
    with pytest.raises(ShapeError, match="mine: square patches must tile square images; got images of 4 x 4 and patch"):
        parts(torch.rand(4, 1, 4, 4), patch=3)
    with pytest.raises(UsageError, match=r"float images must lie in \[0, 1\]; got 0 to 2"):
        parts(torch.tensor([0.0, 2.0]).view(2, 1, 1, 1))
    with pytest.raises(UsageError, match=r"float images must lie in \[0, 1\]; got nan"):
        parts(torch.full((2, 1, 2, 2), float("nan")))
    with pytest.raises(UsageError, match="must be uint8, or float32"):
        parts(torch.rand(4, 1, 4, 4).double())
    with pytest.raises(ShapeError, match="one int64 label"):
        parts(torch.rand(4, 1, 4, 4), torch.zeros(4))
    assert torch.equal(pixels(torch.tensor([0, 255], dtype=torch.uint8)), torch.tensor([0.0, 1.0]))
