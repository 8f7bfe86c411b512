"""A remedy and its place from plain data, as handle.describe() gives them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from depthscope.errors import UsageError
from depthscope.registry import lookup


class Place(NamedTuple):
    """What fix_ is asked for."""

    remedy: nn.Module
    at: str | None
    blocks: Any
    stream: str | None
    causal: str


def rebuilt(described: Mapping[str, Any], asked: Place) -> Place:
    """The remedy and its place from what describe() gave; what is said anew counts more."""
    missing = {"remedy", "settings", "at", "blocks", "causal"} - set(described)
    if missing:
        raise UsageError(
            f"a described fix must have remedy, settings, at, blocks and causal; {', '.join(sorted(missing))} is "
            "missing. Give what handle.describe() returned."
        )
    words = [name for name in ("remedy", "causal") if not isinstance(described[name], str)]
    if words or not isinstance(described["settings"], Mapping) or not isinstance(described["at"], str | None):
        raise UsageError(
            "a described fix must have words for remedy, at and causal, and names with values for settings; got "
            f"{dict(described)!r:.200}. Give what handle.describe() returned."
        )
    build = lookup("remedy", described["remedy"])
    try:
        remedy = build(**described["settings"])
    except TypeError as error:
        raise UsageError(f"settings must be arguments of {build.__name__}; {error}.") from None
    return Place(
        remedy,
        asked.at or described["at"],
        described["blocks"] if asked.blocks is None else asked.blocks,
        asked.stream or described.get("stream"),  # not in what the first versions described
        asked.causal if asked.causal != "auto" else described["causal"],
    )
