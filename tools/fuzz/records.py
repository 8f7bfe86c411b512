"""Files of records with something else in them: what loads can be shown, drawn, saved and forecast."""

import copy
import io
import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from tools.fuzz.case import kind

import depthscope as ds
from depthscope.errors import DepthscopeError
from depthscope.files import SEAL
from depthscope.records import Record

OLD = Path(__file__).parents[2] / "tests" / "old_records"
FILES = sorted(path for path in OLD.glob("*.json") if path.stem != "results")
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10**30, 0.5, -3.25, 1e308, "nan", "inf", "-inf", "", "word", "[/]", "\x1b[0m",
    "$\\frac{$", "\ud800", 10**400, [], [1.0], [[1.0, 2.0]], {}, {"a": 1}, [None], "block", "0",
]  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all nodes below the top."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [found for key, one in items for found in ((*path, key), *places(one, (*path, key)))]


def changed(record: Any, rng: Random) -> Any:
    """The same plain data with something else at a place or two; short paths are chosen as often as long ones."""
    record = copy.deepcopy(record)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        by_depth: dict[int, list[tuple[Any, ...]]] = {}
        for path in places(record):
            by_depth.setdefault(len(path), []).append(path)
        if not by_depth:
            break
        *way, key = rng.choice(by_depth[rng.choice(sorted(by_depth))])
        node = record
        for step in way:
            node = node[step]
        how = rng.randrange(6)
        if how == 0:
            del node[key]
        elif how == 1 and isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        elif how == 2 and isinstance(node, dict):
            node[rng.choice(("other", "t_sim", "block", "1", ""))] = node.pop(key)
        elif how == 3 and isinstance(node[key], list):
            node[key] = node[key][: rng.randrange(len(node[key]) + 1)]
        elif how == 4 and isinstance(node[key], int | float) and not isinstance(node[key], bool):
            node[key] = rng.choice((-1, 0, 1, 2, 0.1, 1e-30, 1e30)) * node[key] + rng.choice((0, 1, -1))
        else:
            node[key] = copy.deepcopy(rng.choice(ODD))
    return record


def use(record: Record, rng: Random) -> None:
    """All that is done with any record; its own words and pictures may not fail."""
    assert repr(record) and str(record) and record._repr_html_()
    Console(file=io.StringIO(), width=80).print(record.view())
    again = type(record).from_dict(json.loads(json.dumps(record.to_dict(), allow_nan=False)))
    assert str(again) == str(record), "it reads back as another"
    if rng.random() < 0.03:
        record.draw().savefig(io.BytesIO())
        with tempfile.TemporaryDirectory() as folder:
            ds.report(record, to=Path(folder) / "page.html")
    if isinstance(record, ds.Scan):
        for name in record.keys():
            record[name]
        record.to_pandas()
        try:
            ds.forecast(record)
        except DepthscopeError:
            pass


@kind(3000)
def record_changed(rng: Random) -> str:
    """A record of every kind, with something else at a place or two, and no checksum that would tell."""
    record = changed(json.loads(rng.choice(FILES).read_text()), rng)
    return _loaded(json.dumps(record).encode(), rng)


@kind(1000)
def record_bytes(rng: Random) -> str:
    """Bytes of a file that are others, gone, or double; a file of today has a checksum."""
    data = bytearray(rng.choice(FILES).read_bytes())
    for _ in range(rng.choice((1, 1, 3, 30))):
        at = rng.randrange(len(data))
        data[at : at + rng.choice((0, 1, 1, 8))] = rng.choice((b"", b"0", b'"', b"]", b"\xff", rng.randbytes(3)))
    return _loaded(bytes(data), rng)


@kind(1000)
def record_sealed(rng: Random) -> str:
    """One byte of a file with a checksum: it is read as it was, or refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = ds.load(rng.choice(FILES)).save(Path(folder) / "record.json")
        data, whole = bytearray(path.read_bytes()), ds.load(path).to_dict()
        data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        record = ds.load(path)
    seal = SEAL.encode() in data  # else it is the name of the checksum that was hit, and there is none
    assert not seal or record.to_dict() == whole, "another record, and no word"
    return "read"


def _loaded(data: bytes, rng: Random) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        path.write_bytes(data)
        record = ds.load(path)
    try:
        use(record, rng)
    except DepthscopeError as error:
        raise AssertionError(f"it loads and breaks later: {error}") from error
    return "read"
