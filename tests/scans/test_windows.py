"""Attention inside windows, along one axis of an image, and to other tokens: each kind by itself."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds

B, HEADS, D = 2, 2, 16


class Windows(nn.Module):
    """Attention in windows of w tokens, rolled by `shift` first; `P` (B windows, h, w, w) is what the last call used."""

    def __init__(self, w: int, shift: int = 0, *, softmax: bool = False) -> None:
        super().__init__()
        self.w, self.shift, self.softmax = w, shift, softmax
        self.qkv, self.out, self.norm, self.norm_2 = (
            nn.Linear(D, 3 * D),
            nn.Linear(D, D),
            nn.LayerNorm(D),
            nn.LayerNorm(D),
        )
        self.ffn = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
        nn.init.normal_(self.qkv.weight, std=0.5)
        self.P = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.roll(self.norm(x), -self.shift, 1)
        parts = y.unflatten(1, (-1, self.w)).flatten(0, 1)  # (B windows, w, d)
        q, k, v = self.qkv(parts).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        with torch._C.DisableTorchFunction():
            self.P = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).detach()
        if self.softmax:
            mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = self.out(mixed.transpose(1, 2).flatten(2)).unflatten(0, (len(x), -1)).flatten(1, 2)
        x = x + torch.roll(mixed, self.shift, 1)
        return x + self.ffn(self.norm_2(x))


def of_windows(model: nn.Sequential) -> dict[str, Tensor]:
    """delta and lambda_2 by LAPACK, the mean over windows and sequences, (depth, h)."""
    P = torch.stack([block.P.double() for block in model])  # type: ignore[union-attr]
    C = P - P.mean(-2, keepdim=True)
    return {
        "delta": torch.linalg.svdvals(C)[..., 0].mean(1),
        "lambda_2": torch.linalg.eigvals(C).abs().amax(-1).mean(1),
    }


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("w", [4, 6])
def test_the_matrix_of_a_window(w: int, softmax: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Windows(w, softmax=softmax), Windows(w, w // 2, softmax=softmax)).eval()
    X = torch.randn(B, 24, D)
    scan = ds.scan(model, X)
    with torch.no_grad():
        torch.testing.assert_close(scan["t_sim"][2], ds.metrics.t_sim(model(X)).mean())
    for name, value in of_windows(model).items():
        torch.testing.assert_close(scan.heads[name], value, atol=1e-4, rtol=1e-4)
    assert any(f"in windows of {w} tokens" in note for note in scan.notes)
    assert scan.causal is False and bool(scan.heads["omega"].isnan().all())


def test_windows_and_whole_sequences_in_turn() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Windows(4), Windows(24)).eval()
    X = torch.randn(B, 24, D)
    scan = ds.scan(model, X)
    model(X)
    for i, block in enumerate(model):
        P = block.P.double()  # type: ignore[union-attr, operator]
        delta = torch.linalg.svdvals(P - P.mean(-2, keepdim=True))[..., 0].mean(0)  # type: ignore[arg-type]
        torch.testing.assert_close(scan.heads["delta"][i], delta, atol=1e-5, rtol=1e-5)
    assert scan.heads["omega"][0].isnan().all() and scan.heads["omega"][1].isfinite().all()


class Decoder(nn.Module):
    """Self-attention, then attention to a memory, then a network."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(D, HEADS, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.ffn = nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.own(y, y, y, need_weights=False)[0]
        x = x + self.other(self.norms[1](x), memory, memory, need_weights=False)[0]
        return x + self.ffn(self.norms[2](x))


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(D, HEADS, 32, batch_first=True) for _ in range(2))
        self.decoder = nn.ModuleList(Decoder() for _ in range(3))

    def forward(self, source: Tensor, x: Tensor) -> Tensor:
        for block in self.encoder:
            source = block(source)
        for block in self.decoder:
            x = block(x, source)
        return x


@pytest.mark.parametrize("length", [7, 9, 12])
def test_cross_attention_is_no_self_attention(length: int) -> None:
    torch.manual_seed(0)
    model = Both().eval()
    source, x = torch.randn(B, length, D), torch.randn(B, 9, D)
    scan = ds.scan(model, (source, x), blocks="decoder.*")
    assert scan.head_counts == [2, 2, 2] and not any("first is reported" in note for note in scan.notes)
    assert any("attention to other tokens" in note and "seen 3 times" in note for note in scan.notes)
    with torch.no_grad():
        y = model.decoder[0].norms[0](x)  # type: ignore[index, operator, union-attr]
        P = model.decoder[0].own(y, y, y, average_attn_weights=False)[1].double()  # type: ignore[operator, union-attr]
    delta = torch.linalg.svdvals(P - P.mean(-2, keepdim=True))[..., 0].mean(0)
    torch.testing.assert_close(scan.heads["delta"][0], delta, atol=1e-6, rtol=1e-6)
