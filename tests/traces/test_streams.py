"""Residual streams found by what is added to what, whatever holds the modules: the stream itself is the truth."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import HookError, UnknownNameError
from loops import over

N, D, DEPTH = 7, 16, 3
X = torch.randn(2, N, D, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


class Spelled(nn.Module):
    """A model that hands out its own stream: states[l] after block l. `after` is put in the place of every state."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Tensor] = []
        self.after: Callable[[Tensor], Tensor] = lambda x: x

    def met(self, x: Tensor) -> Tensor:
        x = self.after(x) if self.states else x
        self.states.append(x)
        return x


class Pairs(Spelled):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Attention(), Network()]) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for attend, network in self.layers:
            x = attend(x) + x
            x = self.met(network(x) + x)
        return x


class TwoLists(Spelled):
    def __init__(self) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(Attention() for _ in range(DEPTH))
        self.networks = nn.ModuleList(Network() for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for attend, network, norm in zip(self.attentions, self.networks, self.norms, strict=True):
            x = x + attend(x)
            x = self.met(norm(x + network(x)))
        return x


class Flat(Spelled):
    """attention, norm, network, norm, attention, ..."""

    def __init__(self) -> None:
        super().__init__()
        parts = [part for _ in range(DEPTH) for part in (Attention(), nn.LayerNorm(D), Network(), nn.LayerNorm(D))]
        self.layers = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for i in range(0, len(self.layers), 2):
            x = self.layers[i + 1](x + self.layers[i](x))
            x = self.met(x) if i % 4 else x
        return x


class ByWords(Spelled):
    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.middle, self.top = (nn.ModuleDict({"a": Attention(), "f": Network()}) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for block in (self.bottom, self.middle, self.top):
            x = x + block["a"](x)
            x = self.met(x + block["f"](x))
        return x


class Again(Spelled):
    """One pair that is walked again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.network = Attention(), Network()

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for _ in range(DEPTH):
            x = x + self.attend(x)
            x = self.met(x + self.network(x))
        return x


class Conditioned(Spelled):
    """Blocks that take a condition first, and hand on a dict."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.network, self.shift = Attention(), Network(), nn.Linear(D, D)

        def forward(self, condition: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
            x = state["tokens"]
            x = x + self.attend(x + self.shift(condition))
            return {"condition": condition, "tokens": x + self.network(x)}

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        state = {"condition": x.mean(1, keepdim=True), "tokens": self.met(x)}
        for block in self.blocks:
            state = block(state["condition"], state)
            state["tokens"] = self.met(state["tokens"])
        return state["tokens"]


class Stages(Spelled):
    """Tokens are merged two by two after every block, and grow wider."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.network = Attention(), Network()

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(x)
            return x + self.network(x)

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.ModuleList(self.Block() for _ in range(2)) for _ in range(2))
        self.merge = nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x[:, :6])
        for number, stage in enumerate(self.stages):
            x = self.merge(x.unflatten(1, (-1, 2)).flatten(2)) if number else x
            for block in stage:
                x = self.met(block(x))
        return x


class InPlace(Pairs):
    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x.clone()).clone()
        for attend, network in self.layers:
            x += attend(x)
            x.add_(network(x))
            x = self.met(x.clone()).clone()
        return x


class Hidden(Spelled):
    """Something between attention and network that is neither a sum nor a norm."""

    class Block(Stages.Block):
        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(x)
            x = torch.where(torch.arange(N)[:, None] < N - 1, x, 0.0)
            x = x.cumsum(1) / N if self.twice else x
            return x + self.network(x)

        twice = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for layer in self.layers:
            x = self.met(layer(x))
        return x


class Lost(Hidden):
    """A block in which the stream cannot be followed is still a module that takes tokens and gives tokens."""

    class Block(Hidden.Block):
        twice = True


class Skipping(Hidden):
    """Old states are added again between blocks, as in a U-net."""

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = first = self.met(x)
        for number, layer in enumerate(self.layers):
            x = self.met(layer(x + first if number == 2 else x))
        return x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.network = Attention(), Network()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        return x + self.network(x)


class Followed(Spelled):
    """The model's own network after every layer belongs to the block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.networks = nn.ModuleList(Network() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for layer, network in zip(self.layers, self.networks, strict=True):
            x = layer(x)
            x = self.met(network(x) + x)
        return x


class Topped(Spelled):
    """Attention after the last layer is a block of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.last = Attention()

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for layer in self.layers:
            x = self.met(layer(x))
        return self.met(x + self.last(x))


class Copied(Spelled):
    """The stream is copied by name into a tensor of its own before every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for layer in self.layers:
            x = self.met(layer(torch.empty_like(x).copy_(other=x)))
        return x


SPELLINGS = [Pairs, TwoLists, Flat, ByWords, Again, Conditioned, Stages, InPlace, Hidden, Lost, Skipping]
SPELLINGS += [Followed, Topped, Copied]


def similarity(x: Tensor) -> float:
    """|sum of tokens|^2 / (n sum of |token|^2), mean over sequences, written out."""
    x = x.double()
    return float((x.sum(1).square().sum(-1) / (x.shape[1] * x.square().sum((1, 2)))).mean())


@pytest.fixture(params=SPELLINGS, ids=lambda kind: kind.__name__)
def model(request: Any) -> Spelled:
    torch.manual_seed(0)
    return request.param().eval()


@torch.no_grad()
def test_a_scan_is_of_the_stream(model: Spelled) -> None:
    model(X)
    truth = [similarity(state) for state in model.states]
    scan = ds.scan(model, X)
    assert scan["t_sim"].tolist() == pytest.approx(truth, abs=1e-6)
    again = ds.scan(model, X, blocks=scan.blocks)
    assert again.block_names == scan.block_names
    assert torch.equal(again["t_sim"], scan["t_sim"])


class Unheard(Spelled):
    """No attention and no modules: a Fourier transform, or a product of tokens, mixes them."""

    def __init__(self, mixed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mixed = mixed
        self.ups = nn.ParameterList(torch.randn(D, 2 * D) / 4 for _ in range(DEPTH))
        self.downs = nn.ParameterList(torch.randn(2 * D, D) / 4 for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        self.states = []
        x = self.met(x)
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + self.mixed(x)
            x = self.met(x + (x @ up).relu() @ down)
        return x


MIXINGS = {"Fourier": lambda x: torch.fft.fft2(x).real / 8, "a product": lambda x: (x @ x.mT) @ x / 64}


@over("name", MIXINGS)
@torch.no_grad()
def test_a_block_begins_where_tokens_are_mixed_without_attention_too(name: str) -> None:
    torch.manual_seed(0)
    model = Unheard(MIXINGS[name]).eval()
    model(X)
    truth = [similarity(state) for state in model.states]
    assert ds.scan(model, X, attention=False)["t_sim"].tolist() == pytest.approx(truth, abs=1e-6)


@torch.no_grad()
def test_a_remedy_acts_on_the_stream_after_every_block(model: Spelled) -> None:
    plain = model(X)
    model.after = lambda x: x - x.mean(1, keepdim=True)
    truth = model(X)
    model.after = lambda x: x
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_out"):
        torch.testing.assert_close(model(X), truth)
        scan = ds.scan(model, X)
        assert scan["t_sim"][1:].max() < 1e-10
    assert torch.equal(model(X), plain)


@over("kind", [Pairs, TwoLists, Topped])
@torch.no_grad()
def test_a_remedy_on_the_last_block_alone_is_seen(kind: type[Spelled]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    before = ds.scan(model, X)
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), blocks=before.block_names[-1].split(" + ")):
        truth, found = similarity(model(X)), ds.scan(model, X)["t_sim"]
    torch.testing.assert_close(found[:-1], before["t_sim"][:-1])
    assert float(found[-1]) == pytest.approx(truth, abs=1e-6) and truth < 0.1 * float(before["t_sim"][-1])


@pytest.mark.parametrize("kind", [Pairs, TwoLists, Flat])
def test_a_forecast_follows_the_same_blocks(kind: type[Spelled]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    forecast, scan = ds.forecast(model, X), ds.scan(model, X)
    assert float((forecast.t_sim - scan["t_sim"]).abs().max()) < 0.08


def test_a_condition_that_comes_later_is_not_taken_for_the_stream() -> None:
    class Block(Stages.Block):
        def forward(self, condition: Tensor | None, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x if condition is None else x + condition)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Block() for _ in range(DEPTH))

        def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
            for layer in self.layers:
                x = layer(condition, x)
            return x

    model = Model().eval()
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_in"):
        model(X)
        fixed = model(X, X.flip(1))
        x = X
        for layer in model.layers:
            layer._forward_pre_hooks.clear()
            x = layer(X.flip(1), x - x.mean(1, keepdim=True))
    torch.testing.assert_close(fixed, x)


def test_block_in_of_a_block_that_is_no_module_is_refused() -> None:
    with (
        ds.fix_(model := Pairs().eval(), ds.remedies.DeEscalate(1.0), at="block_in"),
        pytest.raises(HookError, match="block_out"),
    ):
        model(X)


class Crossing(nn.Module):
    """An encoder and a decoder that looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(D, 2, 3, 2, 2 * D, 0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True)


@torch.no_grad()
def test_streams_are_measured_and_fixed_each_in_its_own_form() -> None:
    torch.manual_seed(0)
    model, target = Crossing().eval(), X[:, :5] + 0.1
    scan = ds.scan(model, (X, target))
    assert {name: one.depth for name, one in scan.streams.items()} == {"encoder": 3, "decoder": 2}
    assert (scan.streams["encoder"].causal, scan.streams["decoder"].causal) == (False, True)
    memory, states = model.transformer.encoder(X), [target]
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    for layer in model.transformer.decoder.layers:
        states.append(layer(states[-1], memory, tgt_mask=mask, tgt_is_causal=True))
    truth = [similarity(state) for state in states]
    assert scan.streams["decoder"]["t_sim"].tolist() == pytest.approx(truth, abs=1e-6)
    plain = model(X, target)
    with ds.fix_(model, ds.remedies.DeEscalate(1.0)):
        changed = target.clone()
        changed[:, -1] += 1.0
        torch.testing.assert_close(model(X, changed)[:, :-1], model(X, target)[:, :-1])  # no leak in the decoder
    assert torch.equal(model(X, target), plain)
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), stream="encoder") as fix:
        model(X, target)
        assert fix.blocks == [f"transformer.encoder.layers.{i}" for i in range(3)] and not fix.others
    with pytest.raises(UnknownNameError, match="decoder"):
        ds.scan(model, (X, target), stream="vision")
