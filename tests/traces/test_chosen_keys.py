"""Keys that nobody chose are no padding: masks of the best keys, one for all heads, as DeepSeek-V3.2 has them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
from depthscope.traces.attention import AttentionSeen
from depthscope.traces.unseen_keys import KeysMet, agreed

B, N, D, H = 3, 24, 16, 2


class BestKeys(nn.Module):
    """x + attention over the best keys of every query, chosen for all heads at once, up to itself."""

    def __init__(self, best: int) -> None:
        super().__init__()
        self.best, self.index = best, nn.Linear(D, 2 * D, bias=False)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.index(x).chunk(2, -1)
        scores = (a @ b.mT).masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
        chosen = torch.zeros(B, N, N, dtype=torch.bool).scatter(-1, scores.topk(self.best, -1).indices, True)
        open_ = (chosen & (scores > -torch.inf)).unsqueeze(1)
        q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=open_).transpose(1, 2).flatten(-2))


def built(best: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(BestKeys(best) for _ in range(3))).eval(), torch.randn(B, N, D) + 0.3


def without_mean(x: Tensor) -> Tensor:
    return x - x.cumsum(1) / torch.arange(2, N + 2)[:, None]


@torch.no_grad()
def test_a_remedy_counts_keys_that_nobody_chose() -> None:
    model, x = built(best=6)
    true = x
    for block in model:
        true = without_mean(block(true))
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_out") as fix:
        found = model(x)
    assert not any("padding" in note for note in fix.notes)
    assert torch.allclose(found, true, atol=1e-5)


def unseen_in(may_see: Tensor) -> Tensor:
    """What is read off an attention with this boolean mask (B, 1, n, n)."""
    met, q = KeysMet(), torch.zeros(len(may_see), H, N, 4)
    met.add(0, AttentionSeen(N, N, q=q, k=q, bias=may_see))
    found = agreed(met.found, len(may_see), N)
    assert found is not None
    return found


def bands() -> dict[str, Tensor]:
    i, j = torch.arange(N)[:, None], torch.arange(N)
    return {
        "full": torch.ones(N, N, dtype=torch.bool),
        "causal": i >= j,
        "window": (i - j).abs() < 4,
        "causal window": (i >= j) & (i - j < 4),
        "window and a token that attends to all": ((i - j).abs() < 4) | (i == 0) | (j == 0),
        "every second key": (i - j).abs() % 2 == 0,
    }


@pytest.mark.parametrize("band", list(bands()))
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_beside_masks_of_positions_is_still_read_off(band: str, side: str) -> None:
    keep = torch.ones(B, N, dtype=torch.bool)
    keep[1, slice(0, 6) if side == "left" else slice(N - 6, None)] = False
    keep[2, slice(0, 3) if side == "left" else slice(N - 3, None)] = False
    assert torch.equal(unseen_in((bands()[band] & keep[:, None]).unsqueeze(1)), ~keep)
