"""Steps without a closed law: tokens are drawn from the law of their input, against the model itself."""

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.laws.draws import drawn
from depthscope.laws.law import Law
from depthscope.laws.nests import leaves, mapped
from loops import over

B, N, D = 2, 10, 48


def tokens(seed: int = 1) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(B, N, D, generator=chance) + 0.4 * torch.randn(D, generator=chance)


def matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * shape[-1] ** -0.5)


class Sorted(nn.Module):
    """Attention of which no law is known: a softmax over scores that were sorted on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = matrix(3 * D, D), matrix(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (x @ self.qkv.T).chunk(3, -1)
        scores = (q @ k.mT * D**-0.5).sort(-1).values
        return scores.softmax(-1) @ v @ self.out.T


class Experts(nn.Module):
    """Every token goes to the expert that it likes most."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.up, self.down = matrix(4, D), matrix(4, 2 * D, D), matrix(4, D, 2 * D)

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = (x @ self.router.T).softmax(-1).max(-1)
        hidden = torch.einsum("bnd,bnhd->bnh", x, self.up[chosen]).relu()
        return gate.unsqueeze(-1) * 2 * torch.einsum("bnh,bndh->bnd", hidden, self.down[chosen])


class Block(nn.Module):
    """Takes and returns its tokens in a dict."""

    def __init__(self, mixing: nn.Module) -> None:
        super().__init__()
        self.mixing, self.experts = mixing, Experts()
        self.first, self.second = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, states: dict[str, Tensor]) -> dict[str, Tensor]:
        x = states["x"]
        x = x + self.mixing(self.first(x))
        return {"x": x + self.experts(self.second(x))}


class Model(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(Sorted()) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        states = {"x": x}
        for layer in self.layers:
            states = layer(states)
        return states["x"]


class Pairs(nn.Module):
    """x = attn(x) + x; x = ff(x) + x, with nobody calling the pairs."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        heads = [nn.MultiheadAttention(D, 4, batch_first=True) for _ in range(depth)]
        networks = [nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D)) for _ in heads]
        self.layers = nn.ModuleList(nn.ModuleList(pair) for pair in zip(heads, networks, strict=True))
        self.norm = nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        for attend, network in self.layers:
            x = attend(x, x, x)[0] + x
            x = network(x) + x
        return self.norm(x)


def states(model: nn.Module, X: Tensor, taken: list[str]) -> Tensor:
    """t_sim of what enters modules, by the definition, (depth + 1,)."""
    seen: list[Tensor] = []

    def note(_: nn.Module, given: tuple) -> None:
        seen.append(next(x for x in leaves(given) if isinstance(x, Tensor)))

    handles = [model.get_submodule(name).register_forward_pre_hook(note) for name in taken]
    with torch.no_grad():
        result = model(X)
    for handle in handles:
        handle.remove()
    seen += [result] if len(seen) == len(taken) and not isinstance(model, Pairs) else []
    return torch.stack([(N * x.mean(1).square().sum(-1) / x.square().sum((1, 2))).mean() for x in seen]).double()


@over("followed", [False, True])
def test_draws_have_the_means_the_sizes_and_the_overlaps_of_their_law(followed: bool) -> None:
    X = tokens().double()
    X[:, 0] *= 20.0
    X[:, 1] = 0.0
    law = Law.of_tokens(X, followed)
    (found,) = drawn([law], B, [D], torch.Generator().manual_seed(0))
    torch.testing.assert_close(found @ found.mT / D, law.overlaps(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(Law.of_draws(found[None]).pair, law.pair, atol=1e-6, rtol=1e-6)


def test_two_laws_that_share_their_tokens_are_drawn_together() -> None:
    law = Law.of_tokens(tokens())
    X, Y = drawn([law, law.times(-2.0)], B, [D, D], torch.Generator().manual_seed(0))
    torch.testing.assert_close(Y, -2 * X)


def test_what_differs_from_draw_to_draw_is_not_known() -> None:
    fixed, chance = tokens().double(), torch.Generator().manual_seed(3)
    draws = torch.stack([fixed + torch.randn(B, N, D, generator=chance) for _ in range(64)])
    law = Law.of_draws(draws)
    torch.testing.assert_close(law.overlaps(), (draws @ draws.mT).mean(0) / D)
    own = law.gaussian() - Law.of_tokens(fixed).gaussian()
    torch.testing.assert_close(own, torch.eye(N, dtype=torch.float64).expand_as(own), atol=0.15, rtol=0)


def test_steps_without_a_law_are_forecast_within_their_band_and_named() -> None:
    torch.manual_seed(0)
    model, X = Model().eval(), tokens()
    found = ds.forecast(model, X)
    truth = states(model, X, [f"layers.{i}" for i in range(3)])
    assert float((found.t_sim - truth).abs().max()) < 0.05
    assert found.band is not None and bool(((truth >= found.band[0]) & (truth <= found.band[1])).all())
    said = [text for text in found.assumed if "drawn" in text]
    assert len(said) == 1 and "layers.0.mixing, layers.0.experts" in said[0] and "sort" in said[0]
    again = ds.forecast(model, X)
    assert torch.equal(again.t_sim, found.t_sim)  # draws are the same every time


def test_a_forecast_with_draws_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model, X = Model().eval(), tokens()
    before = model(X)
    random = torch.get_rng_state()
    ds.forecast(model, X)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(model(X), before)
    assert all("forward" not in vars(module) for module in model.modules())


def test_branches_in_lists_that_nobody_calls_are_forecast_at_the_stream() -> None:
    torch.manual_seed(0)
    model, X = Pairs().eval(), tokens()
    truth = states(model, X, ["layers.0.0", "layers.1.0", "layers.2.0", "norm"])
    found = ds.forecast(model, X)
    assert float((found.t_sim - truth).abs().max()) < 0.03
    assert not any("drawn" in text for text in found.assumed)


def test_a_step_between_blocks_that_has_no_law_is_told() -> None:
    class Broken(Model):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer({"x": x})["x"]
                x = x.sort(1).values
            return x

    with pytest.raises(ds.errors.ForecastError, match="sort"):
        ds.forecast(Broken(), tokens())


def test_nests_keep_their_form() -> None:
    value = {"a": [1, (2, 3)], "b": 4}
    assert mapped(lambda x: x, value) is value
    assert mapped(lambda x, y: x + y, value, value) == {"a": [2, (4, 6)], "b": 8}
    assert list(leaves(value)) == [1, 2, 3, 4]
