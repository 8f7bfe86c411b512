"""Tokens that are mixed without an attention matrix that anybody makes: probed where one exists, else told."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
import written_attentions as w
from depthscope.errors import AttentionNotSeenError
from written_attentions import held_to_truth

N, D = 9, 16
X = torch.randn(2, N, D, generator=torch.Generator().manual_seed(2))


def retention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A recurrence: S_i = g S_(i-1) + k_i v_i^T, out_i = q_i S_i."""
    state, out, g = torch.zeros(len(q), q.shape[2], q.shape[3], v.shape[3]), [], 0.8
    for i in range(q.shape[1]):
        state = g * state + torch.einsum("bhd,bhe->bhde", k[:, i], v[:, i])
        out.append(torch.einsum("bhd,bhde->bhe", q[:, i], state))
    i = torch.arange(q.shape[1])
    decay = torch.where(i[:, None] >= i, g ** (i[:, None] - i).clamp_min(0), 0.0)
    return torch.stack(out, 1), torch.einsum("bihd,bjhd->bhij", q, k) * decay


def flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of three keys, with a running maximum and a running sum."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    best, total, out = torch.full((*q.shape[:-1], 1), -torch.inf), torch.zeros(*q.shape[:-1], 1), torch.zeros_like(q)
    for j in range(0, k.shape[-2], 3):
        S = q @ k[..., j : j + 3, :].mT
        high = torch.maximum(best, S.amax(-1, keepdim=True))
        E, kept = torch.exp(S - high), torch.exp(best - high)
        total, out, best = kept * total + E.sum(-1, keepdim=True), kept * out + E @ v[..., j : j + 3, :], high
    with torch._C.DisableTorchFunction():  # a truth that nobody sees
        P = (q @ k.mT).softmax(-1)
    return (out / total).transpose(1, 2), P


def feature_map(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Linear attention with phi = elu + 1, and its denominator."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    top = torch.einsum("bihd,bhde->bihe", q, torch.einsum("bjhd,bjhe->bhde", k, v))
    P = torch.einsum("bihd,bjhd->bhij", q, k)
    return top / torch.einsum("bihd,bhd->bih", q, k.sum(1)).unsqueeze(-1), P / P.sum(-1, keepdim=True)


@pytest.mark.parametrize("spelled", [flash, feature_map, w.linear_attention])
def test_probabilities_that_are_never_made_are_probed(spelled: w.Spelled) -> None:
    scan = held_to_truth(w.spelled_model(spelled), X)
    assert scan.head_counts == [2, 2] and any("probed by moving values" in note for note in scan.notes)
    assert scan.causal is False


def test_a_recurrence_is_probed() -> None:
    model = w.spelled_model(retention)
    scan, true = ds.scan(model, X), w.truth(model, X)
    for name in ("delta", "lambda_2"):
        torch.testing.assert_close(scan.heads[name], true[name], atol=1e-5, rtol=1e-5)
    assert scan.causal and any("rows are no probabilities" in note for note in scan.notes)


def test_omega_of_a_probed_matrix() -> None:
    model = w.spelled_model(feature_map, depth=1)
    scan = ds.scan(model, X)
    model(X)
    block = model[0]
    omega = ds.metrics.omega(block.norm(X).detach(), block.P.detach())  # type: ignore[union-attr, operator, arg-type]
    torch.testing.assert_close(scan.heads["omega"][0], omega.mean(0), atol=1e-6, rtol=0)


class Residual(nn.Module):
    """x + mix(norm(x)), x + ffn(norm(x))."""

    def __init__(self, mix: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.mix, self.norm, self.norm_2 = mix(), nn.LayerNorm(D), nn.LayerNorm(D)
        self.ffn = nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm(x))
        return x + self.ffn(self.norm_2(x))


class TokenMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(N, 20), nn.GELU(), nn.Linear(20, N))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x.mT).mT


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(x.mT, 3, 1, 1, count_include_pad=False).mT - x


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x).real


def stacked(mix: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Residual(mix), Residual(mix)).eval()


@pytest.mark.parametrize("mix", [TokenMLP, Pool])
def test_the_mean_over_channels_of_how_tokens_move_tokens(mix: Callable[[], nn.Module]) -> None:
    model = stacked(mix)
    one = X[:1]
    scan = ds.scan(model, one)
    y = model[0].norm(one).detach()  # type: ignore[operator, union-attr]
    J = torch.autograd.functional.jacobian(model[0].mix, y)[0, :, :, 0]  # type: ignore[arg-type, index, union-attr]
    M = torch.einsum("icjc->ij", J).double() / D  # type: ignore[arg-type]
    C = M - M.mean(0)
    delta, lambda_2 = torch.linalg.svdvals(C)[0], torch.linalg.eigvals(C).abs().max()
    torch.testing.assert_close(scan.heads["delta"][0, 0], delta, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(scan.heads["lambda_2"][0, 0], lambda_2, rtol=1e-2, atol=1e-3)
    assert any("rows are no probabilities" in note for note in scan.notes)


def test_channels_that_are_mixed_with_tokens_have_no_matrix() -> None:
    model = stacked(Fourier)
    scan = ds.scan(model, X)
    assert not scan.heads and scan.head_counts == [0, 0]
    assert any("were not measured" in note for note in scan.notes)
    torch.testing.assert_close(scan["t_sim"][2], ds.metrics.t_sim(model(X)).mean())


def test_mixing_that_goes_on_after_the_matrix_is_not_called_the_whole() -> None:
    class Twice(nn.Module):
        """A pool of the values, then gates that a matrix makes of it and that are summed over tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.v, self.gate, self.out = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            v = Pool()(self.v(x))
            return self.out(torch.cumsum(torch.sigmoid(self.gate(v)) * v, 1))

    scan = ds.scan(stacked(Twice), X)
    assert not scan.heads and any("were not measured" in note for note in scan.notes)


def test_tokens_first_without_attention_are_found_by_who_moves_whom() -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = w.spelled_model(feature_map)[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.transpose(0, 1)).transpose(0, 1)

    torch.manual_seed(0)
    tokens = torch.randn(N, 4, D)
    model = nn.Sequential(TimeFirst(), TimeFirst())
    scan = ds.scan(model, tokens)
    assert scan.token_axis == 0 and scan.tokens == N
    torch.testing.assert_close(scan["t_sim"][2], ds.metrics.t_sim(model(tokens).transpose(0, 1)).mean())


def test_blocks_that_mix_nothing() -> None:
    with pytest.raises(AttentionNotSeenError, match=r"no token was seen to change another one.*attention=False"):
        ds.scan(stacked(nn.Identity), X)


def test_nothing_is_left_behind_by_a_probe() -> None:
    model = w.spelled_model(feature_map).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ds.scan(model, X)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
