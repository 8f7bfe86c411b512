"""Damaged and hostile files and words for everything that reads, but records, which have a file of their own."""

import gzip
import io
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tools.fuzz.case import kind
from tools.fuzz.records import ODD, changed

import depthscope as ds
from depthscope.cli.settings import parsed
from depthscope.experiments.run import plan
from depthscope.files import SEAL
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.training import checkpoint
from depthscope.training.arms import arms
from depthscope.training.build import Build
from depthscope.training.choices import sort_choices
from depthscope.training.data.npz import KEYS, read_npz
from depthscope.training.data.reading import read_text
from depthscope.training.data.rows import decode
from depthscope.training.job import Job
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run

BUILD, RECIPE = Build(depth=1, d=8, h=2, q=8), Recipe(epochs=1)
RUN = Run(BUILD, RECIPE, "stripes", "abc", history={"step": [0], "loss": [0.5], "rate": [1e-3], "grad_norm": [1.0]})
TENSORS = {"w": torch.arange(12.0).view(3, 4)}
PIECES = (b"", b"\x00", b"\xff", b"[]", b"null", b'"', b"9" * 40, bytes(200))


def damaged(data: bytes, rng: Random) -> bytes:
    """Cut off, emptied, or with other bytes in it."""
    how = rng.randrange(4)
    if how == 0:
        return data[: rng.randrange(len(data) + 1)]
    if how == 1:
        return rng.choice(PIECES)
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 20))):
        at = rng.randrange(len(found) or 1)
        found[at : at + rng.choice((0, 1, 1, 4))] = rng.choice((b"", rng.randbytes(1), rng.randbytes(4), b"0"))
    return bytes(found)


@cache
def two_checkpoints() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="depthscope-fuzz-"))
    for step in (1, 2):
        checkpoint.save(folder, step, {"w": TENSORS["w"] + step}, TENSORS, RUN)
    return folder


def newest_of(folder: str) -> str:
    """What a copy of two checkpoints gives: one of them as it was written, and nothing else."""
    saved = checkpoint.latest(folder)
    if saved is None:
        return "none whole"
    assert torch.equal(saved.model["w"], TENSORS["w"] + saved.step) and torch.equal(saved.optimizer["w"], TENSORS["w"])
    assert saved.run.to_dict() == RUN.to_dict(), "another record, and no word"
    return f"step {saved.step}"


@kind(1500)
def checkpoint_bytes(rng: Random) -> str:
    """A checkpoint of which one file is damaged, gone, or a folder."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(two_checkpoints(), folder, dirs_exist_ok=True)
        path = rng.choice(sorted(Path(folder, "step_000002").iterdir()))
        whole = path.read_bytes()
        path.unlink()
        if rng.random() < 0.9:
            path.write_bytes(damaged(whole, rng))
        elif rng.random() < 0.5:
            path.mkdir()
        return newest_of(folder)


@kind(1000)
def checkpoint_state(rng: Random) -> str:
    """A state.json of version 2, which had no checksum, with something else in it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(two_checkpoints(), folder, dirs_exist_ok=True)
        path = Path(folder, "step_000002", "state.json")
        state = json.loads(path.read_text()) | {"version": 2}
        del state[SEAL]
        path.write_text(json.dumps(changed(state, rng)))
        saved = checkpoint.latest(folder)
        return f"step {saved.step}" if saved else "none whole"


@kind(1000)
def npz(rng: Random) -> str:
    """Arrays of other kinds and shapes, arrays that are missing, objects, and damaged archives."""
    count = rng.choice((0, 1, 3))
    arrays: dict[str, Any] = {
        key: np.zeros((count, 32, 32, 3) if "images" in key else (count,), np.uint8 if "images" in key else np.int64)
        for key in KEYS
    }
    for key in rng.sample(KEYS, rng.randrange(3)):
        shape = tuple(rng.choice((0, 1, 3, 32)) for _ in range(rng.randrange(5)))
        kinds = (np.uint8, np.int8, np.int64, np.uint64, np.float32, np.complex64, np.bool_, "U3", "M8[s]", object)
        arrays[key] = np.zeros(shape, rng.choice(kinds))
    if rng.random() < 0.1:
        del arrays[rng.choice(KEYS)]
    file = io.BytesIO()
    rng.choice((np.savez, np.savez_compressed))(file, **arrays)
    data = file.getvalue() if rng.random() < 0.5 else damaged(file.getvalue(), rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        path.write_bytes(data)
        train, test = read_npz(path)
    assert len(train.images) == len(train.labels) and len(test.images) == len(test.labels)
    return "read"


@kind(1500)
def text(rng: Random) -> str:
    """Bytes as a text file, plain or packed, whole or damaged: what is read is what was written."""
    said = "".join(rng.choice("ab \n\r\x00é文🙂\ud800\x85\u2028") for _ in range(rng.randrange(40)))
    data = said.encode("utf-8", "surrogatepass") if rng.random() < 0.7 else rng.randbytes(rng.randrange(40))
    packed = rng.random() < 0.5
    stored = gzip.compress(data) if packed else data
    stored = damaged(stored, rng) if rng.random() < 0.5 else stored
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("data.txt.gz" if packed else "data.txt")
        path.write_bytes(stored)
        found = read_text(path)
    assert "\x00" not in found and (packed or found.encode() == stored)
    return "read"


@kind(1000)
def image(rng: Random) -> str:
    """Images of every mode and format, whole or damaged: three channels of bytes, or words."""
    from PIL import Image

    size = (rng.choice((1, 2, 32, 50)), rng.choice((1, 3, 32)))
    picture = Image.new(rng.choice(("1", "L", "P", "RGB", "RGBA", "CMYK", "I", "F", "LA")), size)
    file = io.BytesIO()
    form = rng.choice(("png", "gif", "tiff", "webp", "bmp", "jpeg"))
    try:
        picture.save(file, form)
    except (OSError, KeyError, ValueError):  # not every format has every mode
        picture.convert("RGB").save(file, form)
    data = file.getvalue() if rng.random() < 0.3 else damaged(file.getvalue(), rng)
    found = decode({"path": None, "bytes": data}, "here", 32, resize=rng.random() < 0.7)
    assert found.shape == (32, 32, 3) and found.dtype == np.uint8
    return "read"


WORDS = "post_norm pre_norm sandwich de_escalate gain_control qk_norm plain tau at ffn_in block_out causal lr".split()
MARKS = [
    ":",
    "=",
    ",",
    "+",
    "@",
    " ",
    "0.5",
    "-1",
    "1e-3",
    "1e400",
    "nan",
    "[1,2]",
    "{}",
    "[/]",
    "\x00",
    "é",
    '"',
    "true",
]


def sentence(rng: Random, own: list[str]) -> str:
    return "".join(rng.choice(own if rng.random() < 0.6 else MARKS) for _ in range(rng.randrange(1, 8)))


@kind(2000)
def arm(rng: Random) -> str:
    """Words as arms: what is understood can be built."""
    for one in arms(sentence(rng, WORDS)):
        one.build(BUILD).to_dict()
    return "understood"


@kind(1500)
def setting(rng: Random) -> str:
    """Words as --set, for the recipe and the model of a training."""
    known = [
        "depth",
        "d",
        "h",
        "q",
        "lr",
        "epochs",
        "batch",
        "clip",
        "warmup",
        "seed",
        "schedule",
        "wiring",
        "weights",
        "=",
        "=",
    ]
    found = parsed([sentence(rng, known) for _ in range(rng.randrange(1, 3))])
    value = rng.choice(ODD)
    if rng.random() < 0.5:
        found[rng.choice(known[:-2])] = value
    chosen = sort_choices("digits", found)
    Build(**{"depth": 1, "d": 8, "h": 2, "q": 8} | chosen.build)
    Recipe(**chosen.recipe)
    return "understood"


@kind(1000)
def experiment(rng: Random) -> str:
    """Names and settings of experiments."""
    names = ["yu2023/fig2", "yu2023", "dong2021/circle", "all", "yu2023/", "/", "[/]", "beyond/critical_tau"]
    settings = {
        rng.choice(("depth", "n", "seed", "trials", "alpha", "word", "")): rng.choice(ODD)
        for _ in range(rng.randrange(3))
    }
    plan(rng.choice(names), smoke=rng.random() < 0.8, **settings)
    return "understood"


@kind(1000)
def job(rng: Random) -> str:
    """The file of a job, with something else in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Job("a job", Path(folder), "digits", {"train": 64}, BUILD, RECIPE).write()
        record = changed(json.loads(path.read_text()), rng)
        path.write_bytes(json.dumps(record).encode() if rng.random() < 0.7 else damaged(path.read_bytes(), rng))
        Job.read(path)
    return "read"


@kind(300)
def journal(rng: Random) -> str:
    """The journal of a search, damaged."""
    from depthscope.training.search import storage_of

    lines = [{"op_code": 0, "worker_id": "a", "study_name": "s", "directions": [1]}] * rng.randrange(1, 3)
    data = "".join(json.dumps(changed(line, rng) if rng.random() < 0.5 else line) + "\n" for line in lines).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "search.journal"
        path.write_bytes(damaged(data, rng) if rng.random() < 0.3 else data)
        storage_of(Path(folder), None).get_all_studies()
    return "read"


@cache
def fixed_folder() -> Path:
    """A folder with a fix that learns."""
    folder = Path(tempfile.mkdtemp(prefix="depthscope-fuzz-"))
    ds.fix_(small(), ds.remedies.DeEscalate(0.5, learnable=True)).save(folder)
    return folder


def small() -> Any:
    return ds.models.classic(depth=2, d=8, h=2)


@kind(1000)
def fix(rng: Random) -> str:
    """A saved fix, damaged: it is put back, or the model is as it was."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(fixed_folder(), folder, dirs_exist_ok=True)
        path = rng.choice(sorted(Path(folder).iterdir()))
        if path.suffix == ".json" and rng.random() < 0.7:
            record = changed({k: v for k, v in json.loads(path.read_text()).items() if k != SEAL}, rng)
            path.write_text(json.dumps(record))
        else:
            path.write_bytes(damaged(path.read_bytes(), rng))
        model, tokens = small(), torch.randn(1, 5, 8)
        before = model(tokens)
        try:
            ds.fix_(model, folder)
        except ds.errors.DepthscopeError:
            assert torch.equal(model(tokens), before) and not ds.fixes(model), "half of a fix is left"
            raise
        try:
            model(tokens)
        except ds.errors.DepthscopeError:
            return "put back, refuses to run"
    return "put back"


@cache
def model_folder() -> Path:
    from transformers import GPT2Config, GPT2Model

    folder = Path(tempfile.mkdtemp(prefix="depthscope-fuzz-"))
    GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9, n_positions=16)).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (folder / "vocab.json").write_text(
        json.dumps({word: i for i, word in enumerate("abcdefgh")} | {"<|endoftext|>": 8})
    )
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "words.txt").write_text("abba cab bad cafe " * 9)
    return folder


@kind(60)
def folder_of_a_model(rng: Random) -> str:
    """The folder of a model and its tokenizer, one file of which is damaged."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(model_folder(), folder, dirs_exist_ok=True)
        path = rng.choice([one for one in sorted(Path(folder).iterdir()) if one.name != "words.txt"])
        if path.suffix == ".json" and rng.random() < 0.6:
            path.write_text(json.dumps(changed(json.loads(path.read_text()), rng)))
        else:
            path.write_bytes(damaged(path.read_bytes(), rng))
        resolve(folder, Sizes(tokens=4, batch=1), text=str(Path(folder) / "words.txt") if rng.random() < 0.7 else None)
    return "read"
