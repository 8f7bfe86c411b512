"""Attention is seen in any layout of its axes, and where their sizes are equal."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
import written_attentions as w
from loops import over

SIZES = {"plain": (3, 9, 2), "h = B": (3, 9, 3), "h = n": (3, 8, 8), "h = B, d_h = n": (4, 6, 4), "B = 1": (1, 7, 2)}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("spelled", w.LAYOUTS)
def test_every_layout(spelled: w.Spelled, sizes: tuple[int, int, int]) -> None:
    B, n, h = sizes
    w.held_to_truth(w.spelled_model(spelled, h, 6 * h), torch.randn(B, n, 6 * h))


def test_omega_reads_the_tokens_in_any_layout() -> None:
    X = torch.randn(3, 9, 16)
    model = w.spelled_model(w.b_i_j_h, depth=1)
    scan = ds.scan(model, X)
    model(X)
    block = model[0]
    omega = ds.metrics.omega(block.norm(X).detach(), block.P.detach())  # type: ignore[union-attr, operator, arg-type]
    torch.testing.assert_close(scan.heads["omega"][0], omega.mean(0), atol=1e-6, rtol=0)


def test_padding_is_left_out_in_any_layout() -> None:
    X, mask = torch.randn(3, 9, 16), torch.ones(3, 9, dtype=torch.bool)
    mask[1, 6:] = mask[2, 3:] = False
    plain, other = (ds.scan(w.spelled_model(s), X, mask=mask) for s in (w.folded, w.b_i_j_h))
    for name in ("delta", "attention_entropy"):
        scaled = ds.scan(w.spelled_model(w.b_n_h_m), X, mask=mask)
        torch.testing.assert_close(other.heads[name], scaled.heads[name], atol=1e-6, rtol=0)
    assert [x for x in plain.notes if "padding" in x] and [x for x in other.notes if "padding" in x]


@over("spelled", [w.dropped, w.dropped_and_turned])
def test_dropout_is_not_counted_in_the_pattern(spelled: w.Spelled) -> None:
    X = torch.randn(3, 9, 16)
    model = w.spelled_model(spelled)
    torch.manual_seed(1)
    scan = ds.scan(model, X)
    torch.manual_seed(1)
    w.held_to_truth(model, X, scan)


def test_a_softmax_over_channels_is_no_pattern() -> None:
    X = torch.randn(1, 8, 16)  # as many channels in a head as tokens: the softmax of q is (B, h, n, n)
    scan = ds.scan(w.spelled_model(w.linear_attention), X)
    assert not any("first is reported" in note for note in scan.notes)
    if scan.heads:  # probed
        w.held_to_truth(w.spelled_model(w.linear_attention), X, scan)
    else:
        assert any("without a softmax that could be seen" in note for note in scan.notes)


def test_sequences_that_attend_one_by_one_are_not_taken_for_heads() -> None:
    def one_by_one(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        with torch._C.DisableTorchFunction():  # a truth that nobody sees
            P = w.scores(q, k).softmax(-1)
        parts = [(t.transpose(0, 1) for t in one) for one in zip(q, k, v, strict=True)]  # (h, n, d_h) each
        return torch.stack([F.scaled_dot_product_attention(*one).transpose(0, 1) for one in parts]), P

    X = torch.randn(2, 9, 16)  # as many heads as sequences
    scan = ds.scan(w.spelled_model(one_by_one), X)
    true = w.truth(w.spelled_model(one_by_one), X)
    torch.testing.assert_close(scan.heads["delta"], true["delta"], atol=1e-5, rtol=0)


class Remembering(nn.Module):
    """Tokens look at weights that stand for a longer memory, and never at each other."""

    def __init__(self, n: int, d: int, m: int) -> None:
        super().__init__()
        self.read, self.out, self.norm = nn.Linear(d, d), nn.Linear(d, d), nn.LayerNorm(d)
        self.keys, self.values = (nn.Parameter(torch.randn(1, 1, m, d)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q = self.read(self.norm(x)).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(q, self.keys, self.values)
        return x + self.out(mixed.squeeze(1))


@torch.no_grad()
def test_attention_to_a_memory_is_not_asked_to_move_tokens() -> None:
    torch.manual_seed(0)
    model, X = nn.Sequential(*(Remembering(9, 16, 20) for _ in range(3))).eval(), torch.randn(2, 9, 16)
    states = [X]
    for block in model:
        states.append(block(states[-1]))
    torch.testing.assert_close(ds.scan(model, X)["t_sim"], torch.stack([ds.metrics.t_sim(Y).mean() for Y in states]))
