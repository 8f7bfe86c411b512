"""Where a mask closes a key: by a number that leaves it no weight, whatever number that is; a bias closes nothing."""

import torch

from depthscope.traces.attention import SdpaCall, within_reach
from depthscope.traces.unseen_keys import NO_WEIGHT, _of_pattern
from loops import over


@over("number, closes", [(-100.0, True), (-1e4, True), (-torch.inf, True), (-60.0, False), (-10.0, False)])
def test_a_number_closes_where_float32_leaves_no_weight(number: float, closes: bool) -> None:
    bias = torch.randn(2, 1, 6, 6)
    bias[..., 4:] += number  # as windows of Swin (-100) and older models of text (-1e4) write it
    weight = bias.softmax(-1)[..., 4:]
    assert closes == bool((weight < torch.finfo(torch.float32).tiny).all())
    assert torch.equal(within_reach(bias), torch.arange(6).expand_as(bias) < (4 if closes else 6))
    assert torch.equal(SdpaCall({"attn_mask": bias}).visible(weight), within_reach(bias))


@over("number, unseen", [(-100.0, True), (-75.0, True), (-60.0, False), (-20.0, False)])
def test_a_key_is_unseen_where_a_softmax_leaves_it_no_weight(number: float, unseen: bool) -> None:
    scores = torch.randn(2, 3, 6, 6, dtype=torch.float64) / 4
    scores[..., 4:] += number
    _, found = _of_pattern(scores.softmax(-1))
    assert found.shape[-1] == 6 and not found[..., :4].any()
    assert bool(found[..., 4:].all()) == bool(found[..., 4:].any()) == unseen
    assert bool((scores.softmax(-1)[..., 4:] < NO_WEIGHT).all()) == unseen


@over("weight, unseen", [(5e-31, True), (5e-30, False)])
def test_a_weight_counts_however_small_it_is_unless_a_mask_left_it(weight: float, unseen: bool) -> None:
    P = torch.rand(1, 2, 5, 5, dtype=torch.float64)
    P[..., 3] = weight
    may_see, found = _of_pattern(P)
    assert bool(found[..., 3].all()) == unseen and not found[..., :3].any()
    assert bool(may_see[..., 3].any()) != unseen
