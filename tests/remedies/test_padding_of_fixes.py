"""With a remedy in place, tokens do not depend on padding: neither on what it holds, nor on whether it is there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import MaskError
from loops import over
from padded_models import PAD, SEEN, SPELLINGS, built, padded_ids, places

SITES = ("block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out")


@torch.no_grad()
def dependence(model: nn.Module, side: str) -> tuple[float, float]:
    """How far tokens move when what padding holds is changed, and when padding is taken away."""
    ids, tokens = padded_ids(side), places(side)
    found = model(ids)
    held = model.embed.weight[PAD].clone()
    model.embed.weight[PAD] = 5 * torch.randn_like(held)
    changed = model(ids)
    model.embed.weight[PAD] = held
    alone = [model(ids[i : i + 1, place])[0] for i, place in enumerate(tokens)]
    by_content = max(float((found - changed)[i, place].abs().max()) for i, place in enumerate(tokens))
    return by_content, max(float((found[i, p] - alone[i]).abs().max()) for i, p in enumerate(tokens))


@over("at", SITES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_at_every_site(at: str, side: str, causal: bool) -> None:
    model = built("sdpa" if side == "right" else "the smallest", causal=causal, depth=2)
    with ds.fix_(model, ds.remedies.DeEscalate(0.7), at=at) as fix:
        content, presence = dependence(model, side)
    assert content == 0.0 and presence < 1e-13
    assert any("padding was found by looking at attention" in note for note in fix.notes)


@over("spelling", list(SPELLINGS))
@over("seen", list(SEEN))
def test_in_every_spelling(spelling: str, seen: str) -> None:
    model = built(spelling, seen, depth=2)
    with ds.fix_(model, ds.remedies.DeEscalate(0.7)):
        content, presence = dependence(model, "left")
    assert content == 0.0 and presence < 1e-13


@over("remedy", [ds.remedies.ContraNorm(), ds.remedies.PairNorm(), ds.remedies.FeatScale(16)])
def test_with_other_remedies(remedy: Any) -> None:
    model = built(depth=2)
    with ds.fix_(model, remedy.double()):
        content, presence = dependence(model, "right")
    assert content == 0.0 and presence < 1e-12


def test_the_first_pass_need_not_be_padded() -> None:
    """Padding is looked for in every pass; a model may make no mask where there is none."""
    model = built(depth=2)
    with ds.fix_(model, ds.remedies.DeEscalate(0.7)):
        model(padded_ids("right").clamp(min=1))
        content, presence = dependence(model, "right")
    assert content == 0.0 and presence < 1e-13


class Plain(nn.Module):
    """Attention looks at everything, and padding is known to nobody but the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = built(depth=2)
        self.embed, self.blocks = self.inner.embed, self.inner.blocks

    def forward(self, ids: Tensor) -> Tensor:
        x, n = self.embed(ids), ids.shape[1]
        for block in self.blocks:
            x = block(x, torch.ones(1, 1, n, n, dtype=torch.bool))
        return x


@pytest.mark.parametrize("given", ["a tensor", "a function"])
def test_a_mask_of_the_users(given: str) -> None:
    model, ids = Plain(), padded_ids("right")
    tokens = ids.ne(PAD)
    X: list[Tensor] = []

    def see(_: nn.Module, args: tuple) -> None:
        X.append(args[0].clone())

    mask = tokens.long() if given == "a tensor" else lambda ids: ids.ne(PAD)
    model.blocks[1].register_forward_pre_hook(see)
    with torch.no_grad():
        model(ids)
        with ds.fix_(model, ds.remedies.DeEscalate(0.7), mask=mask):
            model(ids)
    means = [row[counts].mean(0) for row, counts in zip(X[0], tokens, strict=True)]
    truth = torch.stack([row - 0.7 * mean for row, mean in zip(X[0], means, strict=True)])  # x - tau mean of tokens
    torch.testing.assert_close(X[-1][tokens], truth[tokens])


def test_a_mask_of_a_causal_model_in_parts() -> None:
    """A tensor fits one batch; the trials before the first pass run on parts of it."""
    model, ids = built(causal=True, depth=2), torch.randint(1, 50, (3, 30), generator=torch.Generator().manual_seed(1))
    ids[1, 20:] = PAD
    with torch.no_grad():
        with ds.fix_(model, ds.remedies.DeEscalate(0.7)):
            truth = model(ids)
        with ds.fix_(model, ds.remedies.DeEscalate(0.7), mask=ids.ne(PAD)):
            assert torch.equal(model(ids)[ids.ne(PAD)], truth[ids.ne(PAD)])
            with pytest.raises(MaskError, match="mask= as a function of the model's arguments"):
                model(ids[:, :25])


def test_masks_that_are_none() -> None:
    model = built(depth=2)
    with pytest.raises(MaskError, match="must be a tensor"):
        ds.fix_(model, ds.remedies.DeEscalate(0.7), mask=[1, 0])  # type: ignore[arg-type]
    with ds.fix_(model, ds.remedies.DeEscalate(0.7), mask=lambda ids: None), pytest.raises(MaskError, match="NoneType"):
        model(padded_ids("right"))


def test_a_mask_of_unknown_sense_is_an_error_that_names_mask() -> None:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.linear(x).mean(1, keepdim=True)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Mixes() for _ in range(2))

        def forward(self, x: Tensor, pad_mask: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    X, pad = torch.randn(2, 6, 8), torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with ds.fix_(Model(), ds.remedies.DeEscalate(0.7), blocks="blocks.*", causal="no") as fix:
        with pytest.raises(MaskError, match=r"pad_mask may be a padding mask.*Pass mask="):
            fix.model(X, pad_mask=pad)
    with ds.fix_(Model(), ds.remedies.DeEscalate(0.7), blocks="blocks.*", mask=lambda x, pad_mask: ~pad_mask) as fix:
        assert fix.model(X, pad_mask=pad).shape == X.shape
