"""paths, bounds and spectrum of one stream among several, and of blocks that are no modules."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import HookError, MaskError, UnknownNameError
from loops import over

D, HEADS, N = 16, 4, 7
torch.manual_seed(0)
X, Y = torch.randn(3, N, D), torch.randn(3, N + 2, D)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixed, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, X: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in self.mixed(self.norm(X)).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def network() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))


class Pairs(nn.Module):
    """Blocks that are no modules, with a norm and a matrix behind them."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Attention(), network()]) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 5)

    def forward(self, X: Tensor) -> Tensor:
        for attention, network in self.layers:  # type: ignore[misc]
            X = attention(X) + X
            X = network(X) + X
        return self.head(self.norm(X).mean(1))


class PairsPostNorm(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        parts = ([Attention(), nn.LayerNorm(D), network(), nn.LayerNorm(D)] for _ in range(depth))
        self.layers = nn.ModuleList(map(nn.ModuleList, parts))
        for attention, _, network_, _ in self.layers:  # type: ignore[misc]
            attention.norm, network_[0] = nn.Identity(), nn.Identity()

    def forward(self, X: Tensor) -> Tensor:
        for attention, norm_1, network, norm_2 in self.layers:  # type: ignore[misc]
            X = norm_1(X + attention(X))
            X = norm_2(X + network(X))
        return X


class Block(nn.Module):
    """The same parts in a module of their own."""

    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, X: Tensor) -> Tensor:
        if len(self.parts) == 2:
            attention, network = self.parts
            X = attention(X) + X
            return network(X) + X
        attention, norm_1, network, norm_2 = self.parts
        X = norm_1(X + attention(X))
        return norm_2(X + network(X))


def spread(model: nn.Module) -> nn.Module:
    """Norms with scales of their own, so that no norm can be taken for another."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
    return model.eval()


VERBS = {
    "secant": lambda *given, **chosen: ds.paths(*given, **chosen),
    "attention": lambda *given, **chosen: ds.paths(*given, form="attention", **chosen),
    "bounds": ds.bounds,
    "spectrum": ds.spectrum,
}


def numbers(found: Any) -> list[Tensor]:
    """What a record says, in numbers."""
    if isinstance(found, ds.Spectrum):
        return [found.margin, found.margin_apart, found.head_margins, found.hfc_lfc, found.response, found.factor]
    if isinstance(found, ds.Bounds):
        blocks = [
            [b.D, b.gamma, b.beta, b.log_in, b.log_out, b.log_bound, b.exponent, b.ffn_upper] for b in found.blocks
        ]
        return [torch.tensor(blocks), torch.tensor(found.pure.found), torch.tensor(found.skips.bound)]
    return [found.norm, found.share, found.residual, torch.tensor([found.output_residual, found.constant])]


def same(found: Any, truth: Any) -> None:
    for one, other in zip(numbers(found), numbers(truth), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def both(batch_first: bool) -> nn.Transformer:
    sizes = {"nhead": HEADS, "num_encoder_layers": 3, "num_decoder_layers": 2, "dim_feedforward": 32}
    return spread(nn.Transformer(D, **sizes, batch_first=batch_first))  # type: ignore[return-value,arg-type]


@over("verb", list(VERBS))
@over("batch_first", [False], long=[True])
def test_an_encoder_beside_a_decoder_is_the_encoder_alone(verb: str, batch_first: bool) -> None:
    model = both(batch_first)
    source, target = (X, Y) if batch_first else (X.transpose(0, 1), Y.transpose(0, 1))
    truth = VERBS[verb](model.encoder, source)
    same(VERBS[verb](model, (source, target), stream="encoder"), truth)
    same(VERBS[verb](model, (source, target)), truth)  # it has most blocks


@over("verb", list(VERBS))
def test_a_decoder_that_attends_twice_is_refused_with_the_stream_that_does_not(verb: str) -> None:
    model = spread(nn.Transformer(D, HEADS, 2, 3, 32, batch_first=True))
    with pytest.raises(HookError, match="attend once") as error:
        VERBS[verb](model, (X, Y), stream="decoder")
    assert "decoder.layers.0" in str(error.value) and 'stream="encoder"' in str(error.value)
    with pytest.raises(HookError, match='stream="encoder"'):
        VERBS[verb](model, (X, Y))
    with pytest.raises(UnknownNameError, match="encoder"):
        VERBS[verb](model, (X, Y), stream="middle")


@over("verb", list(VERBS))
@over("kind", [PairsPostNorm], long=[Pairs])
def test_blocks_that_are_no_modules_are_those_that_are(verb: str, kind: type[nn.Module]) -> None:
    model = spread(kind())
    truth = VERBS[verb](nn.Sequential(*map(Block, model.layers)).eval(), X)  # type: ignore[arg-type]
    same(VERBS[verb](model, X), truth)
    same(VERBS[verb](model, X, blocks=ds.scan(model, X).blocks), truth)


@over("verb", ["bounds", "spectrum"])
def test_padding_that_the_caller_names_is_left_out(verb: str) -> None:
    layer = nn.TransformerEncoderLayer(D, HEADS, 32, batch_first=True)
    model = spread(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    mask = torch.ones(3, N + 2)
    mask[:, N:] = 0
    padded = {"src": torch.cat([X, Y[:, :2]], 1), "src_key_padding_mask": mask == 0}
    found, truth = VERBS[verb](model, padded, mask=mask), VERBS[verb](model, X)
    if verb == "bounds":
        same(found, truth)
    else:
        torch.testing.assert_close(found.margin, truth.margin)
    with pytest.raises(MaskError, match=r"\(3, 9\)"):
        VERBS[verb](model, padded, mask=mask[:, 1:])


class Stages(nn.Module):
    """Two stages, the second half as long and twice as wide."""

    def __init__(self) -> None:
        super().__init__()
        layers = [[nn.TransformerEncoderLayer(d, HEADS, 32, batch_first=True) for _ in range(3)] for d in (D, 2 * D)]
        self.stages = nn.ModuleList(map(nn.ModuleList, layers))

    def forward(self, X: Tensor) -> Tensor:
        for layer in self.stages[0]:  # type: ignore[union-attr]
            X = layer(X)
        X = X.unflatten(1, (-1, 2)).flatten(2)
        for layer in self.stages[1]:  # type: ignore[union-attr]
            X = layer(X)
        return X


@pytest.mark.long
@over("verb", list(VERBS))
def test_one_stage_of_several_can_be_named(verb: str) -> None:
    model, tokens = spread(Stages()), torch.randn(2, 8, D)
    with pytest.raises(HookError, match=r'blocks="stages\.0"'):
        VERBS[verb](model, tokens)
    truth = VERBS[verb](nn.Sequential(*model.stages[0]).eval(), tokens)  # type: ignore[arg-type]
    same(VERBS[verb](model, tokens, blocks="stages.0"), truth)
    same(VERBS[verb](model, tokens, blocks="stages.0.*"), truth)
