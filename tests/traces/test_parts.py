"""Tokens that are cut off and put together again, pixels beside patches, projected skips, halves, flex_attention."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tools.coverage.case import all_cases
from tools.coverage.checks import check
from tools.coverage.truth import recorded, similarities
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import HookError

CASES = all_cases()
WHOLE = {
    "two networks for parts": ("scan", "back", "fix"),
    "class token reads at the end": ("scan", "fix"),
    "message token": ("scan", "fix"),
    "pooled queries": ("scan", "fix", "forecast"),
    "halves with an activation": ("scan", "back", "fix"),
    "pooling of images": ("scan", "forecast"),
    "pooling": ("forecast",),
    "pixels in patches, patches": ("scan", "fix", "forecast"),
    "pixels in patches, pixels": ("scan",),
}


@pytest.mark.parametrize("name", WHOLE)
def test_streams_of_images_are_those_of_their_own_hooks(name: str) -> None:
    found = check(CASES[name], WHOLE[name])
    assert {verb: one.verdict for verb, one in found.items()} == dict.fromkeys(WHOLE[name], "right"), found


def test_a_block_whose_first_skip_is_projected_begins_with_what_it_is_given() -> None:
    sample = CASES["convolution, windows and grid"].sample()
    true = similarities(recorded(sample, sample.streams["main"]), None)
    found = ds.scan(sample.model, sample.inputs, attention=False)["t_sim"].numpy()
    assert found == pytest.approx(true, abs=1e-6)


def test_two_streams_in_the_same_blocks_are_refused_with_the_line_that_helps() -> None:
    sample = CASES["pixels in patches, patches"].sample()
    with pytest.raises(HookError, match='pass stream="main_1" for the first'):
        ds.fix_(sample.model, ds.remedies.DeEscalate(1.0), at="block_out")
        sample.output()


class Flexible(nn.Module):
    """Blocks are pairs in a list; attention is flex_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 16)]) for _ in range(3)
        )
        self.change: Any = lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        for qkv, out, network in self.layers:  # type: ignore[misc]
            heads = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in qkv(x).chunk(3, -1))
            x = out(flex_attention(*heads).transpose(1, 2).flatten(2)) + x
            x = self.change(network(F.gelu(x)) + x)
        return x


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_remedy_acts_where_flex_attention_compiles_itself() -> None:
    torch.manual_seed(0)
    model, x = Flexible().eval(), torch.randn(2, 9, 16)
    with torch.no_grad():
        before = model(x)
        model.change = lambda x: x - x.mean(1, keepdim=True)
        true = model(x)
        model.change = lambda x: x
        with ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_out"):
            assert torch.allclose(model(x), true, atol=1e-5)
        assert torch.equal(model(x), before)
