"""The plain causal decoder, and language models as presets of the command line."""

import pytest
import torch
import torch.nn.functional as F

import depthscope as ds
from depthscope.errors import ShapeError, UnknownNameError, UsageError
from depthscope.models.random_inputs import random_inputs
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from loops import over

SIZES = {"vocabulary": 30, "tokens": 12, "depth": 2, "d": 16, "h": 2, "q": 32}
WORDS = torch.randint(0, 30, (3, 12), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_is_its_parts() -> None:
    model = ds.models.decoder(**SIZES)
    E = model.vocabulary.tables[0]
    Y = model.transformer(F.embedding(WORDS, E) * 4 + model.positions)
    found, memory = model(WORDS)
    assert memory is None
    torch.testing.assert_close(found, (Y @ E.T).log_softmax(-1))
    loss, _ = model(WORDS[:, :-1], targets=WORDS[:, 1:])
    torch.testing.assert_close(loss, -found[:, :-1].gather(-1, WORDS[:, 1:, None])[..., 0], rtol=1e-4, atol=1e-5)


@over("wiring", ["post_norm", "pre_norm", "resi_dual"])
@torch.no_grad()
def test_no_word_moves_an_earlier_one(wiring: str) -> None:
    model, other = ds.models.decoder(**SIZES, wiring=wiring), WORDS.clone()
    other[:, 7] = (other[:, 7] + 1) % 30
    difference = (model(WORDS)[0] - model(other)[0]).abs().amax((0, 2))
    assert float(difference[:7].max()) == 0 and float(difference[7:].min()) > 0


def test_checkpointing_and_dropout() -> None:
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = ds.models.decoder(**SIZES, checkpointing=checkpointing, dropout=0.2)
        model(WORDS, targets=WORDS)[0].mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_wrong_use() -> None:
    model = ds.models.decoder(**SIZES)
    with pytest.raises(ShapeError, match="at most 12 tokens, as many as it has positions; got 24"):
        model(torch.cat([WORDS, WORDS], 1))
    with pytest.raises(UsageError, match="got 30 in sequence 0 at place 0"):
        model(WORDS + 30 - WORDS[0, 0])
    with pytest.raises(UsageError, match="it has no memory; got list"):
        model(WORDS, [])
    with pytest.raises(UsageError, match="must be causal"):
        ds.models.decoder(**SIZES, causal=False)
    with pytest.raises(UsageError, match="tokens must be a whole number"):
        ds.models.decoder(**SIZES | {"tokens": 0})
    with pytest.raises(UnknownNameError, match="wiring"):
        ds.models.decoder(**SIZES, wirin="pre_norm")


@over("name", ["transformer_xl", "decoder"])
def test_presets(name: str) -> None:
    model, words = resolve(name, Sizes(depth=3, width=32, heads=2, tokens=10, batch=2))
    assert words.shape == (2, 10)
    scan = ds.scan(model, words)
    assert len(scan["t_sim"]) == 4 and len(scan["omega"]) == 3


def test_random_inputs_are_words_of_the_model() -> None:
    decoder = ds.models.decoder(vocabulary=9, tokens=12, depth=1, d=8, h=2)
    remembering = ds.models.transformer_xl(vocabulary=9, memory=4, depth=1, d=8, h=2)
    for model, n in ((decoder, 12), (remembering, 64)):
        words = random_inputs(model)
        assert words.dtype == torch.int64 and words.shape == (4, n) and int(words.max()) < 9
        assert model(words)[0].shape == (4, n, 9)
