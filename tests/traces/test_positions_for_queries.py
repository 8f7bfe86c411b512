"""Positions that are added to what makes queries and keys, and not to the stream: DETR and its kin."""

import torch
from torch import Tensor, nn

import depthscope as ds
from loops import over

WIDTH, HEADS = 32, 4


class Layer(nn.Module):
    """Self-attention, attention to a memory where there is one, and a network; positions for queries and keys alone."""

    def __init__(self, *, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.cross = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.network = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, places: Tensor, memory: Tensor | None, memory_places: Tensor | None) -> Tensor:
        def attend(y: Tensor) -> Tensor:
            return self.attention(y + places, y + places, y, need_weights=False)[0]

        def look(y: Tensor) -> Tensor:
            return self.cross(y + places, memory + memory_places, memory, need_weights=False)[0]

        branches = [attend, self.network] if memory is None else [attend, look, self.network]
        for norm, branch in zip(self.norms, branches, strict=False):
            x = x + branch(norm(x)) if self.pre else norm(x + branch(x))
        return x


class Detector(nn.Module):
    def __init__(self, *, pre: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList(Layer(pre=pre) for _ in range(3))
        self.decoder = nn.ModuleList(Layer(pre=pre) for _ in range(3))
        self.places, self.query_places = (nn.Parameter(torch.randn(n, WIDTH)) for n in (10, 7))

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:
        places, query_places = (p.expand(len(x), -1, -1) for p in (self.places, self.query_places))
        for layer in self.encoder:
            x = layer(x, places, None, None)
        for layer in self.decoder:
            queries = layer(queries, query_places, x, places)
        return queries


def detector(pre: bool) -> tuple[Detector, tuple[Tensor, Tensor]]:
    model = Detector(pre=pre).eval()
    return model, (torch.randn(2, 10, WIDTH), torch.randn(2, 7, WIDTH))


@over("pre", [False, True])
def test_attention_has_its_place_among_the_steps(pre: bool) -> None:
    model, inputs = detector(pre)
    found = ds.scan(model, inputs).streams
    assert {name: one.placement for name, one in found.items()} == dict.fromkeys(found, "pre" if pre else "post")
    branches = {name: [s for s in one.step_names if not s.endswith("_norm")] for name, one in found.items()}
    assert branches == {"encoder": ["attention", "ffn"], "decoder": ["attention", "attention_2", "ffn"]}
    assert {one.depth for one in found.values()} == {3} and all(one.head_counts == [4, 4, 4] for one in found.values())


@over("pre", [False, True])
def test_the_steps_are_what_hooks_see(pre: bool) -> None:
    """t_sim after attention's sum, and after its norm where that follows, by hand."""
    model, inputs = detector(pre)
    seen: list[Tensor] = []
    first = model.encoder[0]
    hook = first.norms[1 if pre else 0].register_forward_hook(lambda _, args, __: seen.append(args[0]))
    with torch.no_grad():
        model(*inputs)
    hook.remove()
    steps = ds.scan(model, inputs, stream="encoder").per_step("t_sim")
    torch.testing.assert_close(steps["attention"][0], ds.metrics.t_sim(seen[0]).mean(), rtol=1e-6, atol=0)
