"""A small decoder, whole or cut over two processes in the ways that torch offers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WORDS, WIDTH, HEADS, DEPTH = 50, 32, 4, 3
IDS = torch.randint(0, WORDS, (4, 16), generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.attention, self.norm_2, self.network = (
            nn.LayerNorm(WIDTH),
            Attention(),
            nn.LayerNorm(WIDTH),
            Network(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.network(self.norm_2(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def whole() -> nn.Module:
    torch.manual_seed(0)
    return Decoder().eval()


def fsdp(mesh: DeviceMesh) -> nn.Module:
    model = whole()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    model = whole()
    columns = dict.fromkeys(("attention.q", "attention.k", "attention.v", "network.up"), ColwiseParallel())
    for layer in model.layers:
        parallelize_module(layer, mesh, columns | dict.fromkeys(("attention.o", "network.down"), RowwiseParallel()))
    return model


def sequence_parallel(mesh: DeviceMesh, *, local: bool = True) -> nn.Module:
    """Between attention and network each process has half of the tokens: plain tensors, or DTensors."""
    model = whole()
    rows = RowwiseParallel(output_layouts=Shard(1), use_local_output=local)
    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=local),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)
    gathers = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for layer in model.layers:
        plan = {"norm_1": SequenceParallel(), "norm_2": SequenceParallel(), "attention": gathers, "network": gathers}
        plan |= dict.fromkeys(("attention.q", "attention.k", "attention.v", "network.up"), ColwiseParallel())
        parallelize_module(layer, mesh, plan | {"attention.o": rows, "network.down": rows})
    return model


def sequence_parallel_dtensors(mesh: DeviceMesh) -> nn.Module:
    return sequence_parallel(mesh, local=False)


CUT = {
    "fsdp": fsdp,
    "tensor parallel": tensor_parallel,
    "sequence parallel": sequence_parallel,
    "sequence parallel, DTensors": sequence_parallel_dtensors,
}
