"""Numbers as tables show them."""

import math

from depthscope.reports.story import Value


def shown(value: Value) -> str:
    """Words as they are, whole numbers whole, others with four digits that matter."""
    if isinstance(value, str | int):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
