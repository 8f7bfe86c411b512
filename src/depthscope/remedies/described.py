"""A remedy and its place from plain data, as handle.describe() gives them."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from depthscope.errors import UsageError
from depthscope.registry import lookup


def rebuilt(described: Mapping[str, Any], at: str | None, blocks: Any, causal: str) -> tuple[nn.Module, str, Any, str]:
    """The remedy and its place from what describe() gave; what is said anew counts more."""
    missing = {"remedy", "settings", "at", "blocks", "causal"} - set(described)
    if missing:
        raise UsageError(
            f"a described fix must have remedy, settings, at, blocks and causal; {', '.join(sorted(missing))} is "
            "missing. Give what handle.describe() returned."
        )
    build = lookup("remedy", described["remedy"])
    try:
        remedy = build(**described["settings"])
    except TypeError as error:
        raise UsageError(f"settings must be arguments of {build.__name__}; {error}.") from None
    said = causal if causal != "auto" else described["causal"]
    return remedy, at or described["at"], described["blocks"] if blocks is None else blocks, said
