"""One answer for each token: its parts, what positions decide, what is refused, and that a scan reads it."""

import pytest
import torch
import torch.nn.functional as F

import depthscope as ds
from depthscope.errors import ShapeError, UnknownNameError, UsageError
from depthscope.models.random_inputs import random_inputs
from loops import over

SIZES = {"classes": 4, "depth": 2, "d": 8, "h": 2, "activation": "none"}
WORDS = torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(1))
POINTS = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_is_its_parts() -> None:
    model = ds.models.tagger(vocabulary=5, tokens=7, **SIZES)
    X = model.embed.weight[WORDS] + model.positions[:6]
    for block in model.transformer:  # attention, a residual connection, and the two norms that are left of a block
        X = block.wiring.norm_2(block.wiring.norm_1(X + block.attention(X)))
    torch.testing.assert_close(model(WORDS), F.linear(X, model.head.weight, model.head.bias))


@torch.no_grad()
def test_points_are_embedded_by_a_network_of_two_layers() -> None:
    model = ds.models.tagger(channels=2, **SIZES)
    first, _, second = model.embed
    X = F.linear(F.linear(POINTS, first.weight, first.bias).clamp_min(0), second.weight, second.bias)
    torch.testing.assert_close(model.tokens(POINTS), X)
    assert model(POINTS).shape == (3, 6, 4)


@torch.no_grad()
def test_without_positions_who_permutes_the_tokens_permutes_the_answers() -> None:
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    for model, inputs in (
        (ds.models.tagger(vocabulary=5, **SIZES), WORDS),
        (ds.models.tagger(channels=2, **SIZES), POINTS),
    ):
        torch.testing.assert_close(model(inputs[:, order]), model(inputs)[:, order])
    knows = ds.models.tagger(vocabulary=5, tokens=6, **SIZES)
    assert float((knows(WORDS[:, order]) - knows(WORDS)[:, order]).abs().max()) > 0.01


@torch.no_grad()
def test_without_positions_equal_words_have_equal_answers() -> None:
    scores = ds.models.tagger(vocabulary=5, **SIZES)(torch.tensor([[2, 4, 2, 1]]))
    torch.testing.assert_close(scores[:, 0], scores[:, 2])


@over(
    "choices, error, words",
    [
        ({}, UsageError, "words or points; got vocabulary None and channels None"),
        ({"vocabulary": 5, "channels": 2}, UsageError, "Give one of the two"),
        ({"vocabulary": 0}, UsageError, "vocabulary must be a whole number"),
        ({"vocabulary": 5, "classes": None}, UsageError, "classes must be a whole number"),
        ({"vocabulary": 5, "tokens": 1.5}, UsageError, "tokens must be a whole number"),
        ({"vocabulary": 5, "activation": "non"}, UnknownNameError, "Did you mean none"),
    ],
)
def test_what_cannot_be_built_is_refused(choices: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        ds.models.tagger(**SIZES | choices)


def test_inputs_that_do_not_fit_are_refused() -> None:
    reads, sees = ds.models.tagger(vocabulary=5, tokens=6, **SIZES), ds.models.tagger(channels=2, **SIZES)
    with pytest.raises(ShapeError, match=r"at most 6 tokens.*got 7"):
        reads(torch.zeros(1, 7, dtype=torch.int64))
    with pytest.raises(UsageError, match=r"0 \.\.\. 4.*got 5"):
        reads(torch.tensor([[5]]))
    with pytest.raises(ShapeError, match=r"\(B, n, 2\).*got \(3, 6, 3\)"):
        sees(torch.randn(3, 6, 3))
    with pytest.raises(ShapeError, match="tokens must be ids"):
        reads(POINTS)


@over("kind", [{"vocabulary": 5}, {"vocabulary": 5, "tokens": 4}, {"channels": 2}])
@over("wiring", ["post_norm", "pre_norm"])
def test_a_scan_reads_it_also_without_a_network(kind: dict, wiring: str) -> None:
    model = ds.models.tagger(**SIZES, **kind, wiring=wiring, output=True)
    inputs = random_inputs(model, n=6)
    seen = ds.scan(model, inputs)
    states = [model.tokens(inputs)]
    for block in model.transformer:
        states.append(block(states[-1]))
    truth = torch.stack([ds.metrics.t_div(X.detach()).mean() for X in states])
    torch.testing.assert_close(seen["t_div"], truth.to(seen["t_div"].dtype), rtol=1e-5, atol=1e-9)
    assert seen.head_counts == [2, 2]
