"""Tokens mixed without a softmax over all of them: linear attention, Fourier, networks, states, windows, pooling."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tools.coverage.case import BATCH, DEPTH, HEADS, TOKENS, WIDTH, numbers, other_last
from tools.coverage.cases.written_attention import Plain
from tools.coverage.cases.written_joins import Blocks
from tools.coverage.written import Attention, Block, Written, network, written
from torch import Tensor, nn

mixed: Any = partial(written, group="mixing", heads=False)


class Linear(nn.Module):
    """phi(q) (phi(k)^T v) / (phi(q) sum phi(k)), phi = elu + 1; causal by running sums."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if self.causal:
            state = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
            out = torch.einsum("bhnd,bhnde->bhne", q, state) / (q * k.cumsum(2)).sum(-1, keepdim=True)
        else:
            out = torch.einsum("bhnd,bhde->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v))
            out = out / torch.einsum("bhnd,bhd->bhn", q, k.sum(2))[..., None]
        return self.out(out.transpose(1, 2).flatten(2))


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real / WIDTH**0.5 / 2


class AcrossTokens(nn.Module):
    """MLP-Mixer's: a network over the axis of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(TOKENS, 48), nn.GELU(), nn.Linear(48, TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.transpose(1, 2)).transpose(1, 2)


class Retention(nn.Module):
    """(q k^T * decay) v with a group norm; no softmax, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.GroupNorm(HEADS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        far = torch.arange(n)[:, None] - torch.arange(n)
        decay = (0.9 ** far.clamp_min(0)) * (far >= 0)
        y = ((q @ k.mT * q.shape[-1] ** -0.5 * decay) @ v).transpose(1, 2).reshape(b * n, WIDTH)
        return self.out(self.norm(y).view(b, n, WIDTH))


class StateSpace(nn.Module):
    """A diagonal state, step by step; causal."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decay = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.into(x).chunk(2, -1)
        state, states, a = torch.zeros_like(u[:, 0]), [], torch.sigmoid(self.decay)
        for t in range(x.shape[1]):
            state = a * state + (1 - a) * u[:, t]
            states.append(state)
        return self.out(torch.stack(states, dim=1) * F.silu(gate))


class Pool(nn.Module):
    """PoolFormer's: the mean of the neighbours, less the token itself."""

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(x.mT, 3, stride=1, padding=1, count_include_pad=False).mT - x


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Covariance(nn.Module):
    """XCiT's: attention between channels, not tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).permute(0, 2, 3, 1) for t in self.qkv(x).chunk(3, -1))
        P = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1)
        return self.out((P @ v).permute(0, 3, 1, 2).flatten(2))


class Windows(Block):
    """Windows of 8 tokens, rolled by 4 in every second block."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        b, n, d = x.shape
        y = torch.roll(self.norm1(x), -self.shift, dims=1).reshape(b * n // 8, 8, d)
        x = x + torch.roll(self.attn(y).reshape(b, n, d), self.shift, dims=1)
        return x + self.mlp(self.norm2(x))


class Shifted(Written):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Windows(4 * (i % 2)) for i in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return x


class TimeFirst(Written):
    """(n, B, d) throughout, with linear attention."""

    def __init__(self, mixer: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(mixer=mixer()) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            y = x + block.attn(block.norm1(x).transpose(0, 1)).transpose(0, 1)
            x = self.tap(i + 1, y + block.mlp(block.norm2(y)))
        return x


class Recall(nn.Module):
    """Transformer-XL's: keys and values also of a memory of earlier tokens, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), network()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        n, b, _ = x.shape
        q = self.q(x).view(n, b, HEADS, -1)
        k, v = self.kv(torch.cat([memory, x])).view(len(memory) + n, b, 2, HEADS, -1).unbind(2)
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) / q.shape[-1] ** 0.5
        ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
        hidden = torch.cat([torch.zeros(n, len(memory), dtype=torch.bool), ahead], dim=1)
        P = scores.masked_fill(hidden[:, :, None, None], -torch.inf).softmax(dim=1)
        x = self.norm1(x + self.out(torch.einsum("ijbh,jbhd->ibhd", P, v).flatten(2)))
        return self.norm2(x + self.mlp(x))


class Memory(Written):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Recall() for _ in range(DEPTH))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, layer in enumerate(self.layers):
            x = self.tap(i + 1, layer(x, memory[i]))
        return x


def with_mixer(kind: Any) -> Plain:
    model = Plain()
    for block in model.blocks:
        block.attn = kind()
    return model


def time_first() -> Tensor:
    return numbers(BATCH, TOKENS, WIDTH).transpose(0, 1).contiguous()


def with_memory() -> tuple[Tensor, Tensor]:
    return time_first(), numbers(DEPTH, 6, BATCH, WIDTH, seed=2)


class Alone(nn.Module):
    """A network for each token: nothing mixes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), network()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


mixed("linear attention", partial(with_mixer, Linear))
mixed("linear attention causal", partial(with_mixer, partial(Linear, True)), causal=True)
mixed("fourier mixing", partial(with_mixer, Fourier))
mixed("mlp-mixer", partial(with_mixer, AcrossTokens))
mixed("retention", partial(with_mixer, Retention), causal=True)
mixed("state space", partial(with_mixer, StateSpace), causal=True)
mixed("pooling", partial(with_mixer, Pool))
mixed("convolution", partial(with_mixer, Convolution))
mixed("channel attention", partial(with_mixer, Covariance))
mixed("windows with roll", Shifted)
mixed("time first linear attention", partial(TimeFirst, Linear), inputs=time_first, layout="n b d", token_axis=0)
mixed(
    "time first attention", partial(TimeFirst, Attention), inputs=time_first, layout="n b d", token_axis=0, heads=True
)
mixed(
    "segment memory", Memory, inputs=with_memory, layout="n b d", token_axis=0, causal=True,
    changed=lambda given: (other_last(given[0], 0), given[1]),
)  # fmt: skip
mixed("nothing mixes tokens", partial(Blocks, Alone), attention=False)
