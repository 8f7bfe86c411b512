"""The numbers that a remedy may be given: shares between 0 and 1, weights up to a thousand, lengths up to a million."""

import re

import pytest

from depthscope import remedies
from depthscope.errors import UsageError
from loops import over

SHARE, WEIGHT, LENGTH = (0.0, 1.0), (-1e3, 1e3), (0.0, 1e6)
RANGES = [
    ("QKNorm", "g", LENGTH),
    ("PairNorm", "scale", LENGTH),
    ("PairNorm", "strength", SHARE),
    ("ContraNorm", "scale", WEIGHT),
    ("NeuTRENO", "lam", (0.0, 1e3)),
    ("GFSA", "w_0", WEIGHT),
    ("GFSA", "w_1", WEIGHT),
    ("GFSA", "w_K", WEIGHT),
    ("LaplacianHeads", "share", SHARE),
    ("CentredAttention", "strength", SHARE),
    ("DeEscalate", "tau", SHARE),
    ("SigmaReparam", "gain", LENGTH),
    ("SigmaReparam", "power", SHARE),
    ("AttnScale", "w", WEIGHT),
    ("MindTheGap", "strength", SHARE),
    ("ShapedAttention", "a", WEIGHT),
    ("ShapedAttention", "b", WEIGHT),
    ("ShapedAttention", "c", WEIGHT),
]


@over("name, argument, ends", RANGES)
def test_a_number_lies_in_its_range_or_is_refused(name: str, argument: str, ends: tuple[float, float]) -> None:
    kind = getattr(remedies, name)
    for end in ends:
        kind(**{argument: end})
    said = f"{name}: {argument} must lie in [{ends[0]:g}, {ends[1]:g}]; got"
    for beyond in (ends[0] - 1e-3, ends[1] * 1.001):
        with pytest.raises(UsageError, match=re.escape(said)):
            kind(**{argument: beyond})
