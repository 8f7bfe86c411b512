"""Trials of the first tokens: believed where they hide the future, and nowhere else."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import depthscope as ds
from depthscope.traces.beginning import SHORT, tried_at_the_beginning
from depthscope.traces.signature import signature_of
from loops import over

N, D = 40, 16
PLACE = torch.arange(N)
CAUSAL = PLACE[:, None] >= PLACE
SEEN = {  # (n, n), and what the first tokens show
    "causal": (CAUSAL, "causal"),
    "a short prefix": (CAUSAL | (PLACE < 7), "in part"),
    "a long prefix": (CAUSAL | (PLACE < 30), None),
    "short chunks": (PLACE[:, None] // 5 >= PLACE // 5, "in part"),
    "long chunks": (PLACE[:, None] // 20 >= PLACE // 20, None),
    "open": (torch.ones(N, N, dtype=torch.bool), None),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, seen).squeeze(1))


class Model(nn.Module):
    def __init__(self, seen: Tensor, rigid: bool = False) -> None:
        super().__init__()
        self.layers, self.seen, self.rigid = nn.ModuleList(Block() for _ in range(3)), seen, rigid
        self.lengths: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.lengths.append(x.shape[1])
        if self.rigid and x.shape[1] != N:
            raise ValueError("as many tokens as positions")
        n = x.shape[1]
        for layer in self.layers:
            x = layer(x, self.seen[:n, :n])
        return x


def tried(model: nn.Module, x: Tensor, mask: Tensor | None = None) -> str | None:
    paths = [f"layers.{i}" for i in range(3)]
    found = tried_at_the_beginning(model, signature_of(model, (x,), {}), paths, 1, (x,), {}, mask)
    return None if found is None else found.stream.kind


@over("name", list(SEEN))
def test_only_who_hides_the_future_is_believed(name: str) -> None:
    seen, kind = SEEN[name]
    model, x = Model(seen).eval(), torch.randn(3, N, D)
    assert tried(model, x) == kind
    assert set(model.lengths) == {SHORT}


@over("name", list(SEEN))
@over("rigid", [False, True])
def test_a_remedy_moves_no_past_whatever_the_first_tokens_show(name: str, rigid: bool) -> None:
    seen, _ = SEEN[name]
    model, x = Model(seen, rigid).eval(), torch.randn(3, N, D)
    other = x.clone()
    cut = 20 if name == "long chunks" else 35  # the start of a chunk, or after both prefixes
    other[:, cut:] += 3 * torch.randn(3, N - cut, D)
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(1.0)):
        moved = float((model(x) - model(other))[:, :cut].abs().max())
    assert moved > 1e-3 if name == "open" else moved < 1e-5


def test_the_first_tokens_are_not_asked_where_they_cannot_tell() -> None:
    model = Model(CAUSAL).eval()
    padded = torch.ones(3, N, dtype=torch.bool)
    assert tried(model, torch.randn(3, N, D), padded) == "causal"
    padded[:, :20] = False  # on the left
    for x, mask in ((torch.randn(3, N, D), padded), (torch.randn(3, SHORT, D), None), (torch.randn(N, N, D), None)):
        assert tried(model, x, mask) is None
    assert tried(Model(CAUSAL, rigid=True).eval(), torch.randn(3, N, D)) is None


def test_a_causal_model_pays_for_a_few_short_passes_once() -> None:
    model, x = Model(CAUSAL).eval(), torch.randn(3, N, D)
    assert ds.scan(model, x).causal is True
    assert model.lengths == [N, SHORT, SHORT, SHORT]
    ds.scan(model, x)
    assert model.lengths[4:] == [N]
