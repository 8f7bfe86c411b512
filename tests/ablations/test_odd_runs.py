"""Blocks that run in odd ways: shared, by themselves, with padding or a cache, in inference mode."""

import copy

import pytest
import torch
import transformers as T
from blocks_by_hand import HEADS, IDS, D, built, changed, output
from test_odd_blocks import Plain, Stack, WrittenNorm, X, by_hand, stack
from torch import Tensor

import depthscope as ds
from depthscope.errors import HookError, UsageError


def test_inference_tensors_which_count_no_versions() -> None:
    with torch.inference_mode():
        model = stack(Plain)
        with ds.without_(model, "norms"):
            torch.testing.assert_close(model(X), by_hand(model, ("norms",)))
        model = stack(WrittenNorm)
        with ds.without_(model, "norms"), pytest.raises(HookError, match="the output of a norm is written into"):
            model(X)


def test_a_shared_block_must_be_cut_every_time_it_runs() -> None:
    class Uneven(Plain):
        runs = 0

        def forward(self, X: Tensor) -> Tensor:
            self.runs += 1
            return super().forward(X) if self.runs % 2 else X + self.attention(self.norm_1(X))

    class Twice(Stack):
        def forward(self, X: Tensor) -> Tensor:
            return super().forward(super().forward(X))

    torch.manual_seed(0)
    model = changed(Twice(Uneven))
    with (
        torch.no_grad(),
        ds.without_(model, "ffn"),
        pytest.raises(HookError, match=r"in blocks\.0, blocks\.1 .* no ffn"),
    ):
        model(X)


def test_padding_does_not_hinder() -> None:
    hand = built("bert")
    mask = torch.ones_like(IDS)
    mask[:, 5:] = 0
    with torch.no_grad(), ds.without_(hand.model, "skips", "ffn", "norms"):
        padded = hand.model(IDS, attention_mask=mask).last_hidden_state[:, :5]
        torch.testing.assert_close(padded, hand.model(IDS[:, :5]).last_hidden_state)


def test_a_key_value_cache_goes_on_where_it_stopped() -> None:
    model = changed(T.GPT2Model(T.GPT2Config(n_embd=D, n_layer=2, n_head=HEADS, vocab_size=99)))
    with torch.no_grad(), ds.without_(model, "attention_skip", "norms"):
        whole = output(model, IDS)
        first = model(IDS[:, :4], use_cache=True)
        rest = model(IDS[:, 4:], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(rest.last_hidden_state, whole[:, 4:])


def test_blocks_that_run_by_themselves_or_again_are_refused() -> None:
    hand = built("classic")
    with ds.without_(hand.model, "ffn"):
        hand.model(X)
        with pytest.raises(HookError, match=r"without_: without ffn acts while .* blocks\.0 ran by itself"):
            hand.model.blocks[0](X)  # type: ignore[index]
        with pytest.raises(UsageError, match="without_: without ffn belongs to another model"):
            copy.copy(hand.model)(X)
