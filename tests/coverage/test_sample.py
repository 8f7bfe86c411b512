"""A sample of the coverage run (tools/coverage): thirty of its cases, held to the same truth."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from tools.coverage.case import all_cases
from tools.coverage.checks import check

FIXED = (  # scanned and fixed
    "bert",
    "albert",
    "xlnet",
    "bert padded",
    "gpt2",
    "llama",
    "vit",
    "torch encoder batch first post-norm",
    "torch encoder time first padded",
    "x encoder",
    "x encoder post-norm",
    "x decoder rotary gqa",
    "x text encoder padded",
    "blocks in module list causal",
    "sequential",
    "sdpa",
    "nn.MultiheadAttention with weights",
    "join deepnorm",
    "join parallel",
    "join mixture of experts",
    "class token and registers",
    "padding by name",
    "detr encoder",
    "xlm",
    "swin",
    "segformer",
    "poolformer",
    "t5 decoder",
    "padding from ids",
    "pairs in a list causal",
    "attentions and networks in two lists",
    "flat list post-norm",
    "all in one forward",
    "states in records",
    "pairs first, tokens second",
    "images (B, d, H, W)",
    "stages of other width and length",
    "unbatched (n, d)",
    "x encoder macaron",
)
SCANNED = ("scores b i j h", "blockwise flash", "flex_attention", "linear attention", "fourier mixing")
CASES = all_cases()


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("name", (*FIXED, *SCANNED))
def test_what_is_said_is_so(name: str) -> None:
    found = check(CASES[name], ("scan", "fix") if name in FIXED else ("scan",))
    assert {verb: finding.verdict for verb, finding in found.items()} == dict.fromkeys(found, "right"), found


def test_the_run_is_large() -> None:
    assert len(CASES) >= 150 and len({*FIXED, *SCANNED}) >= 30
