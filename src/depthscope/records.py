"""Records: what the verbs of depthscope return. One base class with typed fields, one codec, one way to save and show.

A record is a dataclass; the types of its fields say how it is written and read. A new field gets since(version, ...)
with a default, and the class a VERSION one higher: files of older versions still load.
"""

import json
import math
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from depthscope.errors import DepthscopeError, RecordError
from depthscope.files import read_json, sealed, whole_file
from depthscope.later import RECORDS, SHOWS

ComplexTensor = Annotated[Tensor, torch.complex128]  # the type of a field; a Tensor alone is float64
NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # words, because JSON has no such numbers
FORMATS: dict[str, type["Record"]] = {}  # every class of records by its format word
AnyRecord = TypeVar("AnyRecord", bound="Record")
BRIEF = 5  # fields in a repr
LONGEST = 240  # letters in a repr

_shows: list[ModuleType] = []  # depthscope.reports.show, once it is imported


def _show() -> ModuleType:
    if not _shows:
        import_module(SHOWS)
    return _shows[0]


def shown_by(module: ModuleType) -> None:
    """Set the module whose view, text, html and draw show all records: records know nothing of reports."""
    _shows[:] = [module]


def shown_in_words(title: str, status: str, said: list[str]) -> str | None:
    """A card for notebooks of what is a part of a record and not one itself."""
    found: str | None = _show().html_of_words(title, status, said)
    return found


def since(version: int, **default: Any) -> Any:
    """A field that files before this format version do not have; they get the default."""
    return field(metadata={"since": version}, **default)


def apart(**default: Any) -> Any:
    """A field that its class writes and reads in a form of its own."""
    return field(metadata={"apart": True}, **default)


class Record:
    """The base of all records. FORMAT: the word by which a file is known. VERSION: the one that is written; all from
    OLDEST on are read."""

    FORMAT = ""
    VERSION = 1
    OLDEST = 1

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "FORMAT" in vars(cls):
            FORMATS[cls.FORMAT] = cls
        cls.__repr__ = Record.__repr__  # type: ignore[method-assign]  # dataclass would write one with every number

    def derived(self) -> dict[str, Any]:
        """What follows from the fields and is written beside them for readers; it is not read back."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Plain data that every strict JSON parser reads: a number that is not finite is a word, complex is a pair."""
        return {"format": self.FORMAT, "version": self.VERSION, **_plain_fields(self)}

    @classmethod
    def from_dict(cls, record: Any) -> Self:
        got = record.get("format") if isinstance(record, dict) else type(record).__name__
        if got != cls.FORMAT:
            raise RecordError(
                f"{cls.__name__}: a record must say format {cls.FORMAT!r}; got {got!r}. ds.load reads every kind."
            )
        version = record.get("version")
        if not isinstance(version, int) or not cls.OLDEST <= version <= cls.VERSION:
            known = f"{cls.OLDEST} to {cls.VERSION}" if cls.OLDEST < cls.VERSION else cls.VERSION
            raise RecordError(
                f"{cls.__name__}: this depthscope reads format version {known}; got {version!r}. "
                "Use the depthscope that wrote it."
            )
        return _made(cls, record, version, cls.__name__)

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, with a checksum: the whole file or none."""
        with whole_file(path) as part:
            part.write_text(as_json(sealed(self.to_dict())), encoding="utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        return _held(cls.from_dict(read_json(path, f"{cls.__name__}.load")), path)

    def view(self) -> Any:
        """A rich renderable, for Console().print."""
        return _show().view(self)

    def draw(self, figure: Any = None) -> Any:
        """Draw into a matplotlib figure, a new one if none is given; returns it."""
        return _show().draw(self, figure)

    def __str__(self) -> str:
        return _show().text(self)

    def _repr_html_(self) -> str | None:
        return _show().html(self)

    def told_as(self) -> "list[Record]":
        """The records by which a page tells of this one."""
        return [self]

    def gist(self) -> str:
        """What came out, in a few words: here the first few fields that are a word or a number."""
        facts = [(f.name, getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]
        short = [f"{name}={value!r}" for name, value in facts if isinstance(value, str | int | float) and value != ""]
        return ", ".join(short[:BRIEF])

    def __repr__(self) -> str:
        """The class and the gist, on one line."""
        said = " ".join(self.gist().split())
        return f"{type(self).__name__}({said if len(said) <= LONGEST else said[: LONGEST - 3] + '...'})"


def load(path: str | Path) -> Record:
    """The record in a file, whatever its kind."""
    record = read_json(path, "load")
    word = str(record.get("format")) if isinstance(record, dict) else type(record).__name__
    if word in RECORDS:
        import_module(RECORDS[word])
    if word not in FORMATS:
        known = ", ".join(sorted({*FORMATS, *RECORDS}))
        raise RecordError(
            f"load: a record must say one of the formats {known}; got {word!r} in "
            f"{str(path)!r}. Was it written by save() of this depthscope?"
        )
    return _held(FORMATS[word].from_dict(record), path)


def _held(record: AnyRecord, path: str | Path) -> AnyRecord:
    """The record, which can be told in words: where its parts do not fit together, that is said now and not later."""
    try:
        _ = f"{record!r} {Record.__str__(record)}"  # a class may have a shorter str, but all are shown
    except Exception as error:  # whatever numbers that are not there, too many or too few lead to
        raise RecordError(
            f"load: the parts of the {type(record).__name__} in {str(path)!r} must fit together; they do not "
            f"({type(error).__name__}: {' '.join(str(error).split())[:160]}). The file is damaged."
        ) from None
    return record


def as_json(record: Any) -> str:
    """JSON that every strict parser reads."""
    return json.dumps(plain(record), indent=1, allow_nan=False)


def plain(value: Any) -> Any:
    """Plain data of a record, a dataclass, a tensor, or whatever is made of these."""
    if isinstance(value, Record):
        return value.to_dict()
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, Tensor):
        return plain((torch.view_as_real(value) if value.is_complex() else value).tolist())
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain_fields(value: Any) -> dict[str, Any]:
    derived: Callable[[], dict[str, Any]] = getattr(value, "derived", dict)
    own = {f.name: plain(getattr(value, f.name)) for f in fields(value) if "apart" not in f.metadata}
    return own | plain(derived())


def _made(cls: Any, record: dict[str, Any], version: int, where: str) -> Any:
    """A dataclass from its plain data."""
    wanted = [f for f in fields(cls) if "apart" not in f.metadata]
    missing = [f.name for f in wanted if f.name not in record and f.metadata.get("since", 0) <= version]
    if missing:
        raise RecordError(
            f"{where}: a record must have all its fields; missing: {', '.join(missing)}. The file is not whole."
        )
    kinds = _kinds(cls)
    values = {
        f.name: read(record[f.name], kinds[f.name], version, f"{where}.{f.name}") for f in wanted if f.name in record
    }
    try:
        return cls(**values)
    except (DepthscopeError, TypeError, ValueError, AttributeError) as error:
        said = str(error).rstrip(".")
        raise RecordError(f"{where}: must be what makes a {cls.__name__}; {said}. The file is damaged.") from None


@cache
def _kinds(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def read(value: Any, kind: Any, version: int, where: str) -> Any:
    """A value of the type `kind` from its plain data; version: of the record that it is in."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer in (Union, UnionType):
        either = [one for one in inner if one is not NoneType]
        fits = next((one for one in either if type(value) is one), either[0])
        return None if value is None else read(value, fits, version, where)
    if outer is Any:
        return _numbers(value)
    if outer is Tensor or outer is Annotated:
        return _tensor(value, where, is_complex=outer is Annotated)
    if outer is float:
        return _number(value, where)
    if isinstance(outer, type) and issubclass(outer, Record):
        return outer.from_dict(value)
    if outer is Literal:
        _demand(value in inner, value, f"one of {', '.join(map(repr, inner))}", where)
        return value
    if outer is dict or is_dataclass(outer):
        _demand(isinstance(value, dict), value, "names with values", where)
        if outer is not dict:
            return _made(outer, value, version, where)
        key, one = inner
        try:
            names = [key(k) for k in value]
        except ValueError as error:
            raise RecordError(f"{where}: must have numbers for names; {error}. The file is damaged.") from None
        return dict(zip(names, (read(v, one, version, f"{where}[{k!r}]") for k, v in value.items()), strict=True))
    if outer in (list, tuple):
        _demand(isinstance(value, list), value, "a list", where)
        kinds = inner if outer is tuple and inner[-1] is not ... else (inner[:1] or (Any,)) * len(value)
        _demand(len(kinds) == len(value), value, f"a list of {len(kinds)}", where)
        return outer(
            read(v, one, version, f"{where}[{k}]") for k, (v, one) in enumerate(zip(value, kinds, strict=True))
        )
    _demand(type(value) is outer, value, outer.__name__, where)
    return value


def _demand(holds: bool, value: Any, what: str, where: str) -> None:
    if not holds:
        raise RecordError(f"{where}: must be {what}; got {str(value)[:40]!r}. The file is damaged.")


def _number(value: Any, where: str) -> float:
    """A float; null is NaN, as bounds of format version 1 have it."""
    if value is None:
        return math.nan
    if isinstance(value, str) and value in NUMBERS:
        return NUMBERS[value]
    _demand(type(value) in (int, float), value, "a number", where)
    try:
        return float(value)
    except OverflowError as error:
        raise RecordError(f"{where}: must be a number; {error}. The file is damaged.") from None


def _answers(value: Any) -> bool:
    """Whether these are yes and no alone, as a tensor of bool is written."""
    return all(map(_answers, value)) if isinstance(value, list) and value else isinstance(value, bool)


def _tensor(value: Any, where: str, *, is_complex: bool) -> Tensor:
    def numbers(v: Any) -> Any:
        return [numbers(x) for x in v] if isinstance(v, list) else _number(v, where)

    if _answers(value):
        return torch.tensor(value)
    try:
        found = torch.tensor(numbers(value), dtype=torch.float64)
        pairs = is_complex and found.numel() > 0
        return torch.view_as_complex(found) if pairs else found.to(torch.complex128) if is_complex else found
    except (ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{where}: must be numbers in lists of one length; {error}. The file is damaged.") from None


def _numbers(value: Any) -> Any:
    """Data of any type: the words for numbers that are not finite become numbers again."""
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return NUMBERS.get(value, value) if isinstance(value, str) else value
