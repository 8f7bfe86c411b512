"""One block, its attention spelled in many ways: each tells the P (B, h, n, m) that it used."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds

Spelled = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # q, k, v (B, n, h, d_h) -> values mixed, P


class SpelledBlock(nn.Module):
    """x + W_O attention(norm(x)), x + ffn(norm(x)); `P` is what the last call used."""

    def __init__(self, spelled: Spelled, heads: int, d: int) -> None:
        super().__init__()
        self.spelled, self.heads = spelled, heads
        self.qkv, self.out, self.norm, self.norm_2 = (
            nn.Linear(d, 3 * d),
            nn.Linear(d, d),
            nn.LayerNorm(d),
            nn.LayerNorm(d),
        )
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        nn.init.normal_(self.qkv.weight, std=d**-0.5)
        self.P = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        mixed, self.P = self.spelled(q, k, v)
        x = x + self.out(mixed.flatten(-2))
        return x + self.ffn(self.norm_2(x))


def spelled_model(spelled: Spelled, heads: int = 2, d: int = 16, depth: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(SpelledBlock(spelled, heads, d) for _ in range(depth))).eval()


def truth(model: nn.Sequential, X: Tensor) -> dict[str, Tensor]:
    """delta, lambda_2, entropy by LAPACK from the P that the model used, (depth, h), mean over sequences."""
    with torch.no_grad():
        model(X)
    P = torch.stack([block.P.double() for block in model])  # type: ignore[union-attr]
    C = P - P.mean(-2, keepdim=True)
    return {
        "delta": torch.linalg.svdvals(C)[..., 0].mean(1),
        "lambda_2": torch.linalg.eigvals(C).abs().amax(-1).mean(1),
        "attention_entropy": -torch.special.xlogy(P, P).sum(-1).mean((1, 3)),
    }


def held_to_truth(model: nn.Sequential, X: Tensor, scan: ds.Scan | None = None) -> ds.Scan:
    scan = ds.scan(model, X) if scan is None else scan
    for name, value in truth(model, X).items():
        # eigenvalues of rows that sum to one but for rounding move by more than the rounding
        tolerance = 3e-3 if name == "lambda_2" else 1e-6
        torch.testing.assert_close(scan.heads[name], value, atol=tolerance, rtol=0, msg=lambda m, name=name: name + m)
    return scan


def scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5


def used(P: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return (P @ v.transpose(1, 2)).transpose(1, 2), P


# layouts


def b_n_h_m(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    P = torch.einsum("bihd,bjhd->bihj", q, k).softmax(-1)
    return torch.einsum("bihj,bjhd->bihd", P, v), P.permute(0, 2, 1, 3)


def b_i_j_h(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    P = torch.einsum("bihd,bjhd->bijh", q, k).softmax(dim=2)
    return torch.einsum("bijh,bjhd->bihd", P, v), P.permute(0, 3, 1, 2)


def i_j_b_h(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    P = F.softmax(torch.einsum("i...d,j...d->ij...", q, k), 1)
    return torch.einsum("ij...,j...d->i...d", P, v).transpose(0, 1), P.permute(2, 3, 0, 1)


def keys_before_queries(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    P = scores(q, k).mT.contiguous().softmax(-2)  # (B, h, m, n)
    return (v.permute(0, 2, 3, 1) @ P).permute(0, 3, 1, 2), P.mT


def folded(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    P = torch.bmm(*(t.transpose(1, 2).flatten(0, 1) for t in (q,)), k.permute(0, 2, 3, 1).flatten(0, 1)).softmax(-1)
    mixed = torch.bmm(P, v.transpose(1, 2).flatten(0, 1))
    return mixed.unflatten(0, (len(q), -1)).transpose(1, 2), P.unflatten(0, (len(q), -1))


def dropped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    P = torch.einsum("bihd,bjhd->bihj", q, k).softmax(-1)
    return torch.einsum("bihj,bjhd->bihd", F.dropout(P, 0.3, True), v), P.permute(0, 2, 1, 3)


def dropped_and_turned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    P = torch.einsum("bihd,bjhd->bihj", q, k).softmax(-1)
    return used(F.dropout(P, 0.3, True).permute(0, 2, 1, 3), v)[0], P.permute(0, 2, 1, 3)


LAYOUTS = [b_n_h_m, b_i_j_h, i_j_b_h, keys_before_queries, folded]


# softmax under other names, and written out


def special(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return used(torch.special.softmax(scores(q, k), -1), v)


def into_out(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    S = scores(q, k)
    return used(torch.softmax(S, -1, out=torch.empty_like(S)), v)


def upcast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return used(nn.Softmax(-1)(scores(q, k).double()).to(q.dtype), v)


def log_softmax(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return used(F.log_softmax(scores(q, k), -1).exp(), v)


def exp_and_sum(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    S = scores(q, k)
    E = torch.exp(S - S.amax(-1, keepdim=True))
    return used(E / E.sum(-1, keepdim=True), v)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    S = scores(q, k).contiguous()
    S -= S.amax(-1, keepdim=True)
    S.exp_()
    S /= S.sum(-1, keepdim=True)
    return used(S, v)


def divided_after(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    S = scores(q, k)
    E = torch.exp(S - S.amax(-1, keepdim=True))
    total = E.sum(-1, keepdim=True)
    return ((E @ v.transpose(1, 2)) / total).transpose(1, 2), E / total


def multiplied_after(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    S = scores(q, k)
    E = torch.exp(S - S.amax(-1, keepdim=True))
    share = 1 / E.sum(-1, keepdim=True)
    return ((E @ v.transpose(1, 2)) * share).transpose(1, 2), E * share


def log_sum_exp(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    S = scores(q, k)
    return used(torch.exp(S - torch.logsumexp(S, -1, keepdim=True)), v)


def normalised(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return used(F.normalize(scores(q, k).exp(), p=1.0, dim=-1), v)


WRITTEN_OUT = [
    *(special, into_out, upcast, log_softmax, exp_and_sum, in_place, divided_after, multiplied_after, log_sum_exp),
    normalised,
]


# rows that sum to less than one


def sink_column(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    S = scores(q, k)
    return used(torch.cat([S, torch.ones_like(S[..., :1])], -1).softmax(-1)[..., :-1], v)


def softmax_one(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    E = scores(q, k).exp()
    return used(E / (1 + E.sum(-1, keepdim=True)), v)


def softmax_one_after(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    E = scores(q, k).exp()
    total = 1 + E.sum(-1, keepdim=True)
    return ((E @ v.transpose(1, 2)) / total).transpose(1, 2), E / total


SINKS = [sink_column, softmax_one, softmax_one_after]


# rows that are no probabilities


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return used(torch.sigmoid(scores(q, k) - 2), v)


def relu(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return used(F.relu(scores(q, k)) / q.shape[1], v)


GATES = [sigmoid, relu]


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q) (softmax(k)^T v): over channels and over tokens, and no pattern between tokens is ever made."""
    q, k, v = q.transpose(1, 2).softmax(-1), k.transpose(1, 2).softmax(-2), v.transpose(1, 2)
    return (q @ (k.mT @ v)).transpose(1, 2), q @ k.mT
