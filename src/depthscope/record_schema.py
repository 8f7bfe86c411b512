"""The JSON schema of all records, made from the types of their fields, as the codec of records.py is.

python -m depthscope.record_schema > src/depthscope/records.schema.json
"""

import json
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from depthscope.later import RECORDS
from depthscope.records import FORMATS, NUMBERS, Record

PAIR = "depthscope.scans"  # two scans, before and after a fix; the one form that is no class of its own
PLAIN = {str: "string", int: "integer", bool: "boolean"}
SHARED: dict[str, Any] = {
    "number": {"anyOf": [{"type": ["number", "null"]}, {"enum": sorted(NUMBERS)}]},
    "tensor": {"anyOf": [{"$ref": "#/$defs/number"}, {"type": "array", "items": {"$ref": "#/$defs/tensor"}}]},
}


def schema() -> dict[str, Any]:
    """The schema of a file that save() writes; "format" tells which kind it is."""
    for module in RECORDS.values():
        import_module(module)
    kinds = {word: FORMATS[word] for word in sorted(RECORDS) if word != PAIR}
    found = dict(SHARED)
    for cls in kinds.values():
        _define(cls, found)
    scan: dict[str, Any] = {"$ref": f"#/$defs/{kinds['depthscope.scan'].__name__}"}
    pair = {"version": {"const": 1}, "before": scan, "after": scan}
    found["ScanPair"] = {"type": "object", "properties": pair, "required": [*pair]}
    places = {word: cls.__name__ for word, cls in kinds.items()} | {PAIR: "ScanPair"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Records of depthscope",
        "type": "object",
        "required": ["format", "version"],
        "properties": {"format": {"enum": sorted(places)}},
        "allOf": [
            {"if": {"properties": {"format": {"const": word}}}, "then": {"$ref": f"#/$defs/{name}"}}
            for word, name in sorted(places.items())
        ],
        "$defs": found,
    }


def _define(cls: Any, found: dict[str, Any]) -> dict[str, str]:
    """Put a dataclass and whatever it is made of among the definitions; returns a reference to it."""
    name = cls.__name__
    if name not in found:
        found[name] = {}  # a record may hold records of its own kind
        hints = get_type_hints(cls, include_extras=True)
        own = [f for f in fields(cls) if "apart" not in f.metadata]
        told: dict[str, Any] = {f.name: _of(hints[f.name], found) for f in own}
        always = [f.name for f in own if "since" not in f.metadata]
        found[name] = {"type": "object", "properties": told, "required": always}
        if issubclass(cls, Record):
            versions = {"type": "integer", "minimum": cls.OLDEST, "maximum": cls.VERSION}
            found[name]["properties"] = {"format": {"const": cls.FORMAT}, "version": versions, **told}
            found[name]["required"] = ["format", "version", *always]
            newest = {"properties": {"version": {"const": cls.VERSION}}}
            found[name] |= {"if": newest, "then": {"required": [f.name for f in own]}}
    return {"$ref": f"#/$defs/{name}"}


def _of(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type, case by case as records.read() reads it."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer in (Union, UnionType):
        return {"anyOf": [{"type": "null"} if one is NoneType else _of(one, found) for one in inner]}
    if outer is Any:
        return {}
    if outer is Tensor or outer is Annotated:
        return {"$ref": "#/$defs/tensor"}
    if outer is float:
        return {"$ref": "#/$defs/number"}
    if outer is Literal:
        return {"enum": [*inner]}
    if is_dataclass(outer):
        return _define(outer, found)
    if outer is dict:
        numbered = {"propertyNames": {"pattern": "^-?[0-9]+$"}} if inner[0] is int else {}
        return {"type": "object", "additionalProperties": _of(inner[1], found), **numbered}
    if outer is tuple and inner[-1] is not ...:
        parts = [_of(one, found) for one in inner]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if outer in (list, tuple):
        return {"type": "array", "items": _of(inner[0] if inner else Any, found)}
    return {"type": PLAIN[outer]}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
