"""The contract of all records: strict JSON and back bit for bit, shown in every way, and damage told in one line."""

import io
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

import depthscope as ds
from depthscope import records
from depthscope.cli.main import app
from depthscope.errors import DepthscopeError, RecordError
from depthscope.files import sealed
from depthscope.later import RECORDS as RECORDS_LATER
from depthscope.records import ComplexTensor, Record, plain, since
from loops import over
from record_examples import KINDS, OLD, example


def test_every_record_is_found_by_its_format_before_its_module_is_imported() -> None:
    """later.py names the module of every class that says a format."""
    root = Path(ds.__file__).parent
    said = {
        word: f"depthscope.{'.'.join(file.relative_to(root).with_suffix('').parts)}"
        for file in root.rglob("*.py")
        for word in re.findall(r'^    FORMAT(?:, VERSION)? = "(depthscope\.\w+)"', file.read_text(), re.M)
    }
    assert said | {"depthscope.scans": said["depthscope.scan"]} == RECORDS_LATER
    code = f"import depthscope as ds; print(type(ds.load({str(OLD / 'bounds.json')!r})).__name__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "Bounds"


def strict(text: str) -> Any:
    """JSON as every parser reads it."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def same(a: Any, b: Any) -> bool:
    """Bit-equal, of the same types; NaN is itself."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.isnan(), b.isnan()) and plain(a) == plain(b)
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@pytest.mark.parametrize("name", KINDS)
def test_every_record_goes_through_strict_json_and_back(name: str, tmp_path: Path) -> None:
    record = example(name)
    path = record.save(tmp_path / "r.json")
    assert strict(path.read_text()) == sealed(record.to_dict())
    again = ds.load(path)
    assert same(record, again) and again.to_dict() == record.to_dict() and str(again) == str(record)
    assert same(type(record).load(path), record)


@pytest.mark.parametrize("name", KINDS)
def test_every_record_is_shown_in_every_way_and_left_alone(name: str) -> None:
    from matplotlib.figure import Figure

    record, before = example(name), example(name).to_dict()
    assert type(record).__name__ in repr(record) and len(repr(record)) < 300
    assert str(record) and "\x1b" not in str(record)
    card = record._repr_html_()
    assert card is not None and card.startswith("<div") and len(card) < 100_000
    assert card.count("src=") == card.count('src="data:image/png;base64,') and "href=" not in card
    Console(file=io.StringIO()).print(record.view())
    assert record.draw().axes
    figure = Figure(figsize=(12, 8), layout="constrained")
    assert record.draw(figure) is figure and figure.axes
    figure.canvas.draw()
    assert record.to_dict() == before


def wild(value: Any, numbers: st.SearchStrategy[float], draw: Any) -> Any:
    """The same with other numbers in every tensor and every float."""
    if isinstance(value, Tensor):
        found = [draw(numbers) for _ in range(value.numel() * (2 if value.is_complex() else 1))]
        flat = torch.tensor(found, dtype=torch.float64)
        return torch.view_as_complex(flat.view(*value.shape, 2)) if value.is_complex() else flat.view(value.shape)
    if isinstance(value, dict):
        return {key: wild(one, numbers, draw) for key, one in value.items()}
    return value


@pytest.mark.parametrize("name", ["scan", "forecast", "paths", "spectrum", "bounds"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_numbers_are_read_back_bit_for_bit(name: str, data: st.DataObject) -> None:
    record = example(name)
    numbers = st.floats() | st.just(math.nan)
    changed = {f.name: wild(getattr(record, f.name), numbers, data.draw) for f in fields(record)}
    other = replace(record, **changed)
    told = {f.name: getattr(other, f.name) for f in fields(other) if "apart" not in f.metadata}
    text = json.dumps(plain({"format": record.FORMAT, "version": record.VERSION, **told}), allow_nan=False)
    assert same(type(record).from_dict(strict(text)), other)


@dataclass(frozen=True)
class Inner:
    x: float
    name: str | None = None


@dataclass(frozen=True, eq=False)
class Everything(Record):
    """One field of every type that a record may have."""

    FORMAT = "tests.everything"
    VERSION = 2

    flag: bool
    count: int
    number: float
    words: str
    curve: Tensor
    roots: ComplexTensor
    perhaps: Tensor | None
    tables: dict[str, dict[str, Tensor]]
    pair: tuple[int, str] | None
    several: tuple[float, ...]
    inner: list[Inner]
    by_seed: dict[int, Inner]
    anything: dict[str, Any]
    later: float = since(2, default=1.5)
    notes: list[str] = field(default_factory=list)


numbers = st.floats()
words = st.text(max_size=8)
tensors = st.lists(numbers, max_size=5).map(lambda v: torch.tensor(v, dtype=torch.float64))
complexes = st.lists(st.complex_numbers(), max_size=5).map(lambda v: torch.tensor(v, dtype=torch.complex128))
inners = st.builds(Inner, numbers, st.none() | words)
everything = st.builds(
    Everything,
    st.booleans(),
    st.integers(),
    numbers,
    words,
    tensors,
    complexes,
    st.none() | tensors,
    st.dictionaries(words, st.dictionaries(words, tensors, max_size=2), max_size=2),
    st.none() | st.tuples(st.integers(), words),
    st.lists(numbers, max_size=3).map(tuple),
    st.lists(inners, max_size=3),
    st.dictionaries(st.integers(), inners, max_size=3),
    st.dictionaries(words, numbers | st.integers() | st.none() | st.lists(numbers, max_size=2), max_size=3),
    numbers,
    st.lists(words, max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(everything)
def test_every_type_of_field_is_read_back_bit_for_bit(record: Everything) -> None:
    assert same(Everything.from_dict(strict(records.as_json(record))), record)


def test_a_kind_that_nobody_described_is_shown_field_by_field(tmp_path: Path) -> None:
    record = Everything(True, 1, math.nan, "a", torch.ones(3), torch.ones(2) + 0j, None, {}, None, (), [], {}, {})
    card = record._repr_html_()
    assert "count" in str(record) and card is not None and "count=1" in card and record.draw().axes
    page = ds.report(record, to=tmp_path / "any.html").read_text()
    assert "tensor (3,)" in page and page.count('<figure class="chart"') == 2  # curve and roots


def test_a_field_that_came_later_has_its_default_in_older_files() -> None:
    record = example_of_everything() | {"version": 1}
    del record["later"]
    assert Everything.from_dict(record).later == 1.5
    with pytest.raises(RecordError, match="missing: later"):
        Everything.from_dict(record | {"version": 2})


FIRST_IN = {  # the version of a format in which a field came
    "scan": {
        "massive": 2,
        "vanished": 2,
        "sequences": 2,
        "stream": 3,
        "others": 3,
        "sizes": 3,
        "batches": 4,
        "errors": 4,
    },
    "forecast": {"warnings": 3, "rate_limit": 4},
    "advice": {"lr": 2},
}


@over("kind, name, version", [(kind, *one) for kind, fields in FIRST_IN.items() for one in fields.items()])
def test_a_file_has_all_fields_of_its_version(kind: str, name: str, version: int) -> None:
    record = example(kind).to_dict()
    del record[name]
    type(example(kind)).from_dict(record | {"version": version - 1})
    with pytest.raises(RecordError, match=f"missing: {name}"):
        type(example(kind)).from_dict(record | {"version": version})


def example_of_everything() -> dict[str, Any]:
    one = torch.ones(3, dtype=torch.float64)
    return Everything(True, 1, 0.5, "a", one, one + 0j, None, {}, (1, "x"), (1.0,), [Inner(1.0)], {}, {}).to_dict()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flag", 1), ("count", 1.5), ("count", True), ("number", "one"), ("number", 10**400), ("words", 3),
        ("curve", [1, [2]]), ("curve", ["x"]), ("curve", {"a": 1}), ("roots", [1, 2, 3]), ("roots", [[1, 2, 3]]),
        ("tables", []), ("tables", {"a": 1}), ("pair", [1]), ("pair", ["x", 1]), ("several", "abc"), ("inner", [1]),
        ("inner", [{"name": "a"}]), ("by_seed", {"x": {"x": 1.0, "name": None}}), ("notes", None), ("notes", [1]),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_told_with_its_place(name: str, value: Any) -> None:
    with pytest.raises(RecordError, match=rf"^Everything\.{name}.*must .*The file is"):
        Everything.from_dict(example_of_everything() | {name: value})


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_damage_is_told_and_never_a_traceback(name: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    record, file = example(name), tmp_path_factory.mktemp("damaged") / "r.json"
    text = records.as_json(record)
    place = data.draw(st.integers(0, len(text) - 1))
    file.write_text(text[:place])
    for load in (ds.load, type(record).load):
        with pytest.raises(RecordError):
            load(file)
    flipped = data.draw(st.sampled_from('{}[]",:0x-'))
    file.write_text(text[:place] + flipped + text[place + 1 :])
    try:
        assert isinstance(ds.load(file), Record)  # a digit may be another: the form is whole
    except RecordError as error:
        assert "; " in str(error) and str(error).endswith((".", "?"))


@pytest.mark.parametrize("name", KINDS)
def test_no_field_may_be_lost_and_no_version_is_guessed(name: str) -> None:
    record = example(name)
    whole = record.to_dict()
    if whole["format"] == "depthscope.scans":
        whole, wanted = record.to_dict(), ["before", "after"]
    else:
        wanted = [f.name for f in fields(record) if "apart" not in f.metadata]
    for lost in wanted:
        with pytest.raises(RecordError):
            type(record).from_dict({key: value for key, value in whole.items() if key != lost})
    for version in (record.VERSION + 1, 0, None, "1"):
        with pytest.raises(RecordError):
            type(record).from_dict(whole | {"version": version})
    for other in (None, [], "word", 3, {}, {"format": "other"}):
        with pytest.raises(RecordError):
            type(record).from_dict(other)


def test_files_that_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "mine.json").write_text('{"format": "mine"}')
    (tmp_path / "list.json").write_text('{"format": ["depthscope.scan"]}')
    (tmp_path / "word.json").write_text('"depthscope.scan"')
    for name in ("deep", "bytes"):
        with pytest.raises(RecordError, match="must be JSON"):
            ds.load(tmp_path / f"{name}.json")
    for name in ("mine", "list", "word"):
        with pytest.raises(RecordError, match="must say one of the formats"):
            ds.load(tmp_path / f"{name}.json")
    with pytest.raises(RecordError, match="the file must exist"):
        ds.load(tmp_path / "none.json")


def test_a_forecast_with_numbers_that_are_not_finite_is_json(tmp_path: Path) -> None:
    forecast = example("forecast_bare")
    assert isinstance(forecast, ds.Forecast) and forecast.gradient_growth is not None
    assert forecast.t_cos.isnan().tolist() == [False, True, False, False]
    assert forecast.gradient_growth.tolist() == [math.inf, 1.0, -math.inf]
    assert strict(forecast.save(tmp_path / "f.json").read_text())["gradient_growth"] == ["inf", 1.0, "-inf"]


def test_bounds_are_read_back_also_with_null_for_nan() -> None:
    bounds = ds.Bounds.load(OLD / "bounds_null.json")
    assert math.isnan(bounds.blocks[0].exponent) and bounds.blocks[0].log_out == -math.inf
    assert (
        bounds.with_ffn[-1] == math.inf
        and bounds.verdict == json.loads((OLD / "bounds_null.json").read_text())["verdict"]
    )


SMALL = ["--depth", "3", "--width", "32", "--heads", "2", "--tokens", "9", "--batch", "2"]


def test_what_scan_with_a_fix_writes_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "both.json"
    done = CliRunner().invoke(app, ["scan", "classic", *SMALL, "--fix", "de_escalate", "--json", str(path)])
    assert done.exit_code == 0 and strict(path.read_text())["format"] == "depthscope.scans"
    for scan in (ds.load(path), ds.Scan.load(path)):
        assert isinstance(scan, ds.Scan) and scan.remedies and scan.before is not None and not scan.before.remedies
        assert float(scan["t_sim"][-1]) < 1e-6 < float(scan.before["t_sim"][-1])
        card = scan._repr_html_()
        assert "before and after DeEscalate" in str(scan) and card is not None and "before and after DeEscalate" in card
        assert len(scan.draw().axes[0].lines) == 4
    told = CliRunner().invoke(app, ["forecast", str(path), "--depth", "6"])
    assert told.exit_code == 0 and "holds two scans" in told.stderr and "6 blocks" in told.stdout


@pytest.mark.long
def test_every_kind_of_file_of_every_command(tmp_path: Path) -> None:
    words = {"ablate": ["--parts", "skips"], "forecast": ["--advise", "--measure"]}
    for command in ("scan", "forecast", "ablate", "paths", "bound", "spectrum"):
        files = [tmp_path / f"{command}.{kind}" for kind in ("html", "svg", "json")]
        out = [word for file in files for word in ("--out", str(file))]
        done = CliRunner().invoke(app, [command, "classic", *SMALL, *words.get(command, []), *out])
        assert done.exit_code == 0 and all(f"wrote {file}" in done.stderr for file in files), command
        assert "</html>" in files[0].read_text() and "<svg" in files[1].read_text() and ds.load(files[2])


def test_a_page_takes_any_records(tmp_path: Path) -> None:
    page = ds.report(*map(example, KINDS), to=tmp_path / "all.html").read_text()
    assert "Comparison on digits" in page and "Advice: " in page and "scans together" in page
    with pytest.raises(DepthscopeError, match="one or more records"):
        ds.report(3)  # type: ignore[arg-type]


def test_a_verdict_is_advised_from_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """scans knows nothing of forecasts: whoever is set says what to do."""
    from depthscope.scans import verdict

    monkeypatch.setattr(verdict, "_advisers", [lambda scan, depth: f"ask about {scan.model}, {depth}"])
    model = ds.models.classic(depth=40, d=16, h=2, weights="xavier")
    scan = ds.scan(model, torch.randn(2, 9, 16))
    assert scan.verdict.fix_needed and scan.verdict.advice == "ask about Transformer, None"


def test_tensors_of_yes_and_no_come_back_as_they_were() -> None:
    from depthscope.records import plain, read

    given = torch.tensor([[True, False], [False, False]])
    again = read(json.loads(json.dumps(plain(given))), Tensor, 3, "here")
    assert again.dtype is torch.bool and torch.equal(again, given)
    with pytest.raises(ds.errors.RecordError, match="here: must be a number; got 'True'"):
        read([True, 1.0], Tensor, 3, "here")
