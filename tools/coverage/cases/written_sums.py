"""Spellings of the sum of stream and branch; what they compute is mostly the same."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tools.coverage.case import WIDTH
from tools.coverage.cases.written_joins import Blocks
from tools.coverage.written import Attention, Block, network, written
from torch import Tensor, nn

summed: Any = partial(written, group="sums")


class Spelled(Block):
    """Pre-norm; `join` says how a branch is added."""

    def __init__(self, join: Any) -> None:
        super().__init__()
        self.join = join

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = self.join(x, self.attn(self.norm1(x)))
        return self.join(x, self.mlp(self.norm2(x)))


def add_(x: Tensor, f: Tensor) -> Tensor:
    return x.clone().add_(f)


def iadd(x: Tensor, f: Tensor) -> Tensor:
    """The stream of before is overwritten."""
    x += f
    return x


def into_slices(x: Tensor, f: Tensor) -> Tensor:
    x = x.clone()
    x[:] = x + f
    return x


def two_slices(x: Tensor, f: Tensor) -> Tensor:
    """The first token and the others apart, as with a class token."""
    x = x.clone()
    x[:, :1] += f[:, :1]
    x[:, 1:] += f[:, 1:]
    return x


def by_halves(x: Tensor, f: Tensor) -> Tensor:
    """Half of the channels at a time."""
    return torch.cat([a + b for a, b in zip(x.chunk(2, -1), f.chunk(2, -1), strict=True)], dim=-1)


def with_out(x: Tensor, f: Tensor) -> Tensor:
    return torch.add(x, f, out=torch.empty_like(x))


def copied(x: Tensor, f: Tensor) -> Tensor:
    return torch.empty_like(x).copy_(x + f)


def wide(x: Tensor, f: Tensor) -> Tensor:
    return (x.double() + f.double()).float()


def flattened(x: Tensor, f: Tensor) -> Tensor:
    """Without the batch: (B n, d)."""
    return (x.flatten(0, 1) + f.flatten(0, 1)).view_as(x)


def by_einsum(x: Tensor, f: Tensor) -> Tensor:
    return torch.einsum("sbnd,s->bnd", torch.stack([x, f]), torch.tensor([1.0, 0.7]))


class Overwriting(Blocks):
    """Every block writes over what it was given; the model over a copy of its input."""

    def __init__(self) -> None:
        super().__init__(partial(Spelled, iadd))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clone())


SUMS = {
    "torch.add": torch.add,
    "torch.add with alpha": lambda x, f: torch.add(x, f, alpha=0.7),
    "branch first": lambda x, f: f + x,
    "add_": add_,
    "minus minus": lambda x, f: x - (-f),
    "torch.sub": lambda x, f: torch.sub(x, f, alpha=-1),
    "stack and sum": lambda x, f: torch.stack([x, f]).sum(0),
    "stack last and sum": lambda x, f: torch.stack([x, f], dim=-1).sum(-1),
    "stack and mean": lambda x, f: torch.stack([x, f]).mean(0),
    "python sum": lambda x, f: sum([x, f]),
    "concatenated and summed": lambda x, f: torch.cat([x[None], f[None]]).sum(0),
    "lerp": lambda x, f: torch.lerp(x, f, 0.3),
    "addcmul": lambda x, f: torch.addcmul(x, f, torch.full_like(f, 0.5)),
    "mul and add": lambda x, f: x.mul(0.9).add(f, alpha=0.4),
    "over root two": lambda x, f: (x + f) * 2**-0.5,
    "divided": lambda x, f: (x + f) / 1.2,
    "where": lambda x, f: torch.where(torch.ones_like(x[..., :1], dtype=torch.bool), x + f, x),
    "float64": wide,
    "no batch axis": flattened,
    "einsum": by_einsum,
    "into slices": into_slices,
    "two slices": two_slices,
    "halves of channels": by_halves,
    "out=": with_out,
    "copied": copied,
    "functional norm": lambda x, f: F.layer_norm(x + f, (WIDTH,)),
    "norm by hand": lambda x, f: (x + f - (x + f).mean(-1, keepdim=True)) / ((x + f).std(-1, keepdim=True) + 1e-6),
    "rms norm by hand": lambda x, f: (x + f) * torch.rsqrt((x + f).pow(2).mean(-1, keepdim=True) + 1e-6),
    "unit length": lambda x, f: F.normalize(x + f, dim=-1),
}


class HalfPrecision(Block):
    """The stream in float32, the branches in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.attn.bfloat16()
        self.mlp.bfloat16()

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.attn(self.norm1(x).bfloat16()).float()
        return x + self.mlp(self.norm2(x).bfloat16()).float()


class Autocast(Block):
    def forward(self, x: Tensor, *more: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


class GruGate(nn.Module):
    """GTrXL's: z = sigmoid(W_z [x, y] - b), h = tanh(W [y, r x]), x (1 - z) + z h."""

    def __init__(self) -> None:
        super().__init__()
        self.r, self.z, self.h = (nn.Linear(2 * WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        both = torch.cat([x, y], -1)
        z = torch.sigmoid(self.z(both) - 1)
        h = torch.tanh(self.h(torch.cat([y, torch.sigmoid(self.r(both)) * x], -1)))
        return (1 - z) * x + z * h


class Gtrxl(Block):
    def __init__(self) -> None:
        super().__init__()
        self.gate1, self.gate2 = GruGate(), GruGate()

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = self.gate1(x, self.attn(self.norm1(x)).relu())
        return self.gate2(x, self.mlp(self.norm2(x)).relu())


class GruCell(Block):
    """x-transformers' gate: a GRU cell on all tokens at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        for f in (lambda y: self.attn(self.norm1(y)), lambda y: self.mlp(self.norm2(y))):
            x = self.gru(f(x).flatten(0, 1), x.flatten(0, 1)).view_as(x)
        return x


class GatedBranch(Block):
    """A gate on the branch alone, from the stream: x + sigmoid(G x) f(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.gate(x).sigmoid() * self.attn(self.norm1(x))
        return x + self.gate(x).sigmoid() * self.mlp(self.norm2(x))


class Spherical(Block):
    """nGPT's: x = |x + alpha (|f(x)| - x)|, with unit lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((WIDTH,), 0.3))

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = F.normalize(x + self.alpha * (F.normalize(self.attn(x), dim=-1) - x), dim=-1)
        return F.normalize(x + self.alpha * (F.normalize(self.mlp(x), dim=-1) - x), dim=-1)


class Fused(nn.Module):
    """The output projection and the sum in one call: baddbmm and addmm."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm1, self.norm2 = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inner, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Parameter(torch.randn(2 * WIDTH, WIDTH) * 0.08)

    def forward(self, x: Tensor) -> Tensor:
        eye = torch.eye(WIDTH).expand(len(x), -1, -1)
        x = torch.baddbmm(x, self.attn(self.norm1(x)), eye)
        hidden = F.gelu(self.inner(self.norm2(x)))
        return torch.addmm(x.flatten(0, 1), hidden.flatten(0, 1), self.out).view_as(x)


class Late(Block):
    """Both branches are added at the end, one by one: x + a + m, m read from x + a."""

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        a = self.attn(self.norm1(x))
        m = self.mlp(self.norm2(x + a))
        return x + (a + m)


class Conformer(Block):
    """Half a network, attention, a convolution, half a network, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm0, self.norm3, self.norm4 = network(), *(nn.LayerNorm(WIDTH) for _ in range(3))
        self.wide, self.conv, self.narrow = (
            nn.Conv1d(WIDTH, 2 * WIDTH, 1),
            nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH),
            nn.Conv1d(WIDTH, WIDTH, 1),
        )

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + 0.5 * self.first(self.norm0(x))
        x = x + self.attn(self.norm1(x))
        x = x + self.narrow(F.silu(self.conv(F.glu(self.wide(self.norm3(x).mT), dim=1)))).mT
        x = x + 0.5 * self.mlp(self.norm2(x))
        return self.norm4(x)


class GatedUnit(nn.Module):
    """GAU: one branch, attention and gate together."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.uv, self.z = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 32)
        self.gamma, self.beta = nn.Parameter(torch.randn(2, 32)), nn.Parameter(torch.randn(2, 32))
        self.out = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        u, v = F.silu(self.uv(y)).chunk(2, -1)
        q, k = (F.silu(self.z(y))[..., None, :] * self.gamma + self.beta).unbind(-2)
        return x + self.out(u * ((q @ k.mT / 32**0.5).softmax(-1) @ v))


class Adapted(Block):
    """Houlsby's adapters: a small residual network after each branch."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter1, self.adapter2 = (
            nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH)) for _ in range(2)
        )

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        a = self.attn(self.norm1(x))
        x = x + (a + self.adapter1(a))
        m = self.mlp(self.norm2(x))
        return x + (m + self.adapter2(m))


for _name, _join in SUMS.items():
    summed(f"sum {_name}", partial(Blocks, partial(Spelled, _join)))
KINDS = {
    "branches in bfloat16": HalfPrecision, "autocast": Autocast, "gru gate": Gtrxl, "gru cell": GruCell,
    "gated branch": GatedBranch, "unit sphere": Spherical, "both at the end": Late,
    "conformer": Conformer, "adapters": Adapted,
}  # fmt: skip
for _name, _kind in KINDS.items():
    low = _name in ("branches in bfloat16", "autocast")
    summed(f"sum {_name}", partial(Blocks, _kind), heads=not low)
summed("sum iadd on the stream", Overwriting)
summed("sum fused with the projection", partial(Blocks, Fused))
summed("sum gated attention unit", partial(Blocks, GatedUnit), heads=False)
