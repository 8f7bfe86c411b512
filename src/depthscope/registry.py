"""The shelves: what is registered under a name, and how a wrong name is answered."""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from depthscope.errors import UnknownNameError
from depthscope.later import SHELVES
from depthscope.plugins import FAILED, fill

F = TypeVar("F", bound=Callable[..., Any])
Kind = Literal["state", "step", "attention"]


class Shelf(MutableMapping[str, Any]):
    """What is registered under one word, by name; filled when somebody first looks: by the import of its modules, then
    by the plug-ins of other packages."""

    def __init__(self, kind: str) -> None:
        self.kind, self._things, self._filled = kind, dict[str, Any](), False

    def things(self) -> dict[str, Any]:
        if not self._filled:
            self._filled = True  # before the imports: modules that look while they register see what is there
            try:
                home = importlib.import_module(SHELVES[self.kind])
                import_folder(home.__name__, getattr(home, "__path__", ()))
                fill(self.kind, self)
            except BaseException:
                self._filled = False
                raise
        return self._things

    def __getitem__(self, name: str) -> Any:
        return self.things()[name]

    def __setitem__(self, name: str, thing: Any) -> None:
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.things())

    def __len__(self) -> int:
        return len(self.things())


TABLES = {kind: Shelf(kind) for kind in SHELVES}


@dataclass(frozen=True)
class MetricFacts:
    """What a metric declares about itself; test_contracts.py holds every metric to it.

    `formula` computes the metric from what its kind shares (a Chunk of a state, the Energies before
    and after a step, a Pattern and the tokens it mixes), so that a scan reads each tensor once for
    all metrics.
    """

    name: str
    kind: Kind
    takes: tuple[str, ...]
    parts: tuple[str, ...]
    bounds: tuple[float, float]
    invariant: tuple[str, ...]
    formula: Callable[..., Any] | None
    default: bool
    estimated: bool
    summary: str


def metric(
    kind: Kind,
    *,
    takes: tuple[str, ...],
    bounds: tuple[float, float],
    invariant: tuple[str, ...] = (),
    parts: tuple[str, ...] = (),
    formula: Callable[..., Any] | None = None,
    default: bool = True,
    estimated: bool = False,
) -> Callable[[F], F]:
    """Put a pure function on the shelf of metrics, with the facts it promises to keep.

    default=False: measured by a scan only when asked for by name. estimated=True: the formula returns a residual too.
    """

    def register(function: F) -> F:
        name = function.__name__
        summary = (function.__doc__ or "").strip().splitlines()[0]
        facts = MetricFacts(
            name,
            kind,
            takes,
            parts or (name,),
            bounds,
            invariant,
            formula,
            default,
            estimated,
            summary,
        )
        function.facts = facts  # type: ignore[attr-defined]
        TABLES["metric"][name] = function
        return function

    return register


def shelve(table: str, name: str | None = None) -> Callable[[F], F]:
    """Register a function or class in one of the tables, under its own name or the given one."""

    def register(thing: F) -> F:
        TABLES[table][name or thing.__name__] = thing
        return thing

    return register


def lookup(table: str, name: str) -> Any:
    """The registered thing called `name`, or an error that offers the nearest names."""
    try:
        return TABLES[table][name]
    except KeyError:
        raise UnknownNameError(unknown(table, name, TABLES[table])) from None


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that nobody has."""
    known, name = sorted(known), str(name)
    by_lower = {k.lower().replace("_", ""): k for k in known}
    close = difflib.get_close_matches(name.lower().replace("_", ""), by_lower, n=3, cutoff=0.5)
    if close:
        hint = f"Did you mean {' or '.join(by_lower[c] for c in close)}?"
    else:
        hint = f"Known: {', '.join(known)}."
    lost = "".join(f" Beside that, {said}" for said in FAILED.values())
    return f"no {what} is called {name!r}. {hint}{lost}"


def import_folder(package: str, path: Iterable[str]) -> None:
    """Import every public module of a package, so that its decorators run and no list is kept."""
    for module in pkgutil.iter_modules(path):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package}.{module.name}")
