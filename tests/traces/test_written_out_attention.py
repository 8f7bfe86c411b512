"""Attention is seen under every name, written out, with a sink, and without probabilities."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import depthscope as ds
import written_attentions as w
from written_attentions import held_to_truth

X = torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("spelled", w.WRITTEN_OUT)
def test_softmax_in_other_words(spelled: w.Spelled) -> None:
    scan = held_to_truth(w.spelled_model(spelled), X)
    assert not any(word in note for word in ("sink", "softmax", "probed") for note in scan.notes)


@pytest.mark.parametrize("spelled", w.SINKS)
def test_rows_with_a_sink_are_not_renormalised(spelled: w.Spelled) -> None:
    scan = held_to_truth(w.spelled_model(spelled), X)
    assert any("a sink that is not a token" in note for note in scan.notes)
    assert not any("probed" in note for note in scan.notes)


def test_a_sink_is_no_leak_to_padding() -> None:
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[:, 7:] = False

    def masked(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        S = w.scores(q, k).masked_fill(~mask[: len(q), None, None, :], -torch.inf)
        return w.used(torch.cat([S, torch.ones_like(S[..., :1])], -1).softmax(-1)[..., :-1], v)

    model = w.spelled_model(masked, depth=1)
    scan = ds.scan(model, X, mask=mask)
    assert not any("to padding" in note for note in scan.notes)
    model(X)
    P = model[0].P[:, :, :7, :7].detach().double()  # type: ignore[index, union-attr]
    delta = torch.linalg.svdvals(P - P.mean(-2, keepdim=True))[..., 0].mean(0)
    torch.testing.assert_close(scan.heads["delta"][0], delta, atol=1e-6, rtol=0)


def test_heads_that_are_computed_one_by_one_are_heads_of_one_attention() -> None:
    def one_by_one(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        found = [
            w.used(w.scores(*(t[:, :, i : i + 1] for t in (q, k))).softmax(-1), v[:, :, i : i + 1]) for i in (0, 1)
        ]
        return torch.cat([mixed for mixed, _ in found], 2), torch.cat([P for _, P in found], 1)

    scan = held_to_truth(w.spelled_model(one_by_one), X)
    assert scan.head_counts == [2, 2] and not any("first is reported" in note for note in scan.notes)


@pytest.mark.parametrize("spelled", w.GATES)
def test_weights_that_are_no_probabilities(spelled: w.Spelled) -> None:
    model = w.spelled_model(spelled)
    scan, true = ds.scan(model, X), w.truth(model, X)
    for name in ("delta", "lambda_2"):
        torch.testing.assert_close(scan.heads[name], true[name], atol=1e-6, rtol=0)
    assert bool(scan.heads["attention_entropy"].isnan().all())
    assert any("rows are no probabilities" in note for note in scan.notes)


@pytest.mark.filterwarnings("ignore")
def test_flex_attention() -> None:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 9, 9, device="cpu")

    def flex(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - 0.1 * (h + 1) * (i - j), block_mask=mask)
        i, h = torch.arange(9), torch.arange(2)
        S = q @ k.mT / q.shape[-1] ** 0.5 - 0.1 * (h[:, None, None] + 1) * (i[:, None] - i)
        return mixed.transpose(1, 2), S.masked_fill(i[:, None] < i, -torch.inf).softmax(-1)

    assert held_to_truth(w.spelled_model(flex), X).causal


def test_the_packed_function_of_torch() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.LayerNorm(16)
            self.P = torch.empty(0)

        def forward(self, x: Tensor) -> Tensor:
            a, y = self.attend, self.norm(x)
            weights = (a.in_proj_weight, a.in_proj_bias, a.out_proj.weight, a.out_proj.bias)
            mixed, self.P = torch._native_multi_head_attention(y, y, y, 16, 2, *weights, None, True, False)
            return x + mixed

    torch.manual_seed(0)
    with torch.no_grad():
        held_to_truth(nn.Sequential(Packed(), Packed()).eval(), X)


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_of_torch(need_weights: bool) -> None:
    class Torch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.LayerNorm(16)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            self.P = self.attend(y, y, y, need_weights=True, average_attn_weights=False)[1]
            return x + self.attend(y, y, y, need_weights=need_weights)[0]

    torch.manual_seed(0)
    model = nn.Sequential(Torch(), Torch()).eval()
    held_to_truth(model, X)
