"""The published JSON schema is what the codec of records writes and reads: no more, no less."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

import depthscope as ds
from depthscope.checkups.record import Checkup
from depthscope.errors import RecordError
from depthscope.later import RECORDS
from depthscope.record_schema import schema
from depthscope.records import FORMATS
from record_examples import KINDS, OLD, example

PUBLISHED = json.loads((Path(ds.__file__).parent / "records.schema.json").read_text())
VALID = Draft202012Validator(PUBLISHED)
CHECKUP = Checkup("Mine", [], ["DeEscalate"], {"attention": False, "blocks": "layers.*"}, tried={"scan": "works"})


def written(name: str) -> Any:
    return CHECKUP.to_dict() if name == "checkup" else example(name).to_dict()


def test_what_is_published_is_what_the_types_say() -> None:
    """When it fails: python -m depthscope.record_schema > src/depthscope/records.schema.json"""
    Draft202012Validator.check_schema(PUBLISHED)
    assert schema() == PUBLISHED


def test_every_kind_of_record_is_tried() -> None:
    assert {written(name)["format"] for name in [*KINDS, "checkup"]} == {*RECORDS}


@pytest.mark.parametrize("name", [*KINDS, "checkup"])
def test_what_is_written_is_valid(name: str) -> None:
    assert [error.message for error in VALID.iter_errors(written(name))] == []


@pytest.mark.parametrize(
    "path", [file for file in OLD.glob("*.json") if file.stem != "results"], ids=lambda path: path.stem
)
def test_files_of_every_version_are_valid(path: Path) -> None:
    assert [error.message for error in VALID.iter_errors(json.loads(path.read_text()))] == []


def spoiled(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The record without each of its fields, and with something else in its place."""
    without = [{k: v for k, v in record.items() if k != name} for name in record]
    return without + [record | {name: other} for name in record for other in ({"x": [{}]}, [["x"]], 3.5, "word")]


@pytest.mark.parametrize(
    "name", ["scan", "forecast", "bounds", "gate", "monitor", "comparison", "fixes", "checkup", "scans"]
)
def test_what_the_schema_refuses_the_codec_refuses_too_and_the_other_way(name: str) -> None:
    """Where they may differ: what only a class knows (a status among others), and lists that are no matrix."""
    record = json.loads(json.dumps(written(name)))
    cls, refused = FORMATS.get(record["format"], ds.Scan), 0
    for one in spoiled(record):
        valid = VALID.is_valid(one)
        try:
            cls.from_dict(one)
            assert valid, one
        except RecordError:
            refused += not valid
    assert refused > 2 * len(record)


def test_a_value_of_two_types_is_read_back(tmp_path: Path) -> None:
    again = ds.load(CHECKUP.save(tmp_path / "c.json"))
    assert isinstance(again, Checkup) and again.settings == {"attention": False, "blocks": "layers.*"}


def test_complex_numbers_and_numbers_that_are_not_finite() -> None:
    tensor = VALID.evolve(schema=PUBLISHED | {"$ref": "#/$defs/tensor", "allOf": [], "type": ["array"], "required": []})
    for good in ([], [1.0, "nan", "-inf"], [[1, 2], [3, None]], torch.view_as_real(torch.ones(2) + 0j).tolist()):
        assert tensor.is_valid(good)
    for bad in (["word"], [True], [{}]):
        assert not tensor.is_valid(bad)
