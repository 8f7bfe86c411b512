"""The words of --set: name=value, as JSON where that can be read, as they are otherwise."""

import json
from typing import Any

from depthscope.errors import UsageError


def parsed(settings: list[str] | None) -> dict[str, Any]:
    """The settings by name."""
    chosen: dict[str, Any] = {}
    for pair in settings or []:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set: must be name=value; got {pair!r}. For example --set depth=40.")
        try:
            chosen[key] = json.loads(text)
        except ValueError:
            chosen[key] = text
    return chosen
