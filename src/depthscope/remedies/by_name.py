"""A remedy by its name: the one place where words become a remedy, for commands, builds and arms of comparisons."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from depthscope.errors import UsageError
from depthscope.registry import TABLES, lookup


def remedy_called(name: str, width: int, /, **settings: Any) -> nn.Module:
    """A remedy by its name and settings; one that must know the model's width d is told it."""
    remedy = remedy_class(name)
    takes = inspect.signature(remedy).parameters
    needs = [one.name for one in takes.values() if one.default is one.empty and one.name not in settings]
    for key, value in settings.items():  # "no" is a word, and every word is true to Python
        if key in takes and isinstance(takes[key].default, bool) and not isinstance(value, bool):
            raise UsageError(f"remedy: {key} of {remedy.__name__} must be true or false; got {value!r}.")
    if "tau" in settings and "tau" not in takes:
        raise UsageError(
            f"remedy: tau is the strength of de_escalate and gain_control; {remedy.__name__} has none. Leave it out."
        )
    try:
        return remedy(**{key: width for key in needs if key == "d"}, **settings)
    except TypeError as error:
        raise UsageError(
            f"remedy: settings must be arguments of {remedy.__name__}; {error}. "
            f"Build it in Python: ds.fix_(model, ds.remedies.{remedy.__name__}(...))."
        ) from None


def remedy_class(name: str) -> Callable[..., nn.Module]:
    """The class of a remedy by its class name or in snake case: DeEscalate, de_escalate."""
    return lookup("remedy", _known().get(_letters(name), name))


def is_remedy(name: str) -> bool:
    return _letters(name) in _known()


def snake_names() -> list[str]:
    """All remedies as a command line writes them: de_escalate."""
    return ["".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_") for name in TABLES["remedy"]]


def _known() -> dict[str, str]:
    return {_letters(name): name for name in TABLES["remedy"]}


def _letters(name: str) -> str:
    """DeEscalate and de_escalate -> deescalate"""
    return name.lower().replace("_", "")
