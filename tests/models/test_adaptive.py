"""The tied vocabulary against torch's own adaptive softmax, and against sums over words."""

import pytest
import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.models.adaptive import TiedVocabulary
from loops import over

V, D, CUTS = 60, 8, (10, 25, 40)


def torchs_own(words: TiedVocabulary, div_value: float) -> nn.AdaptiveLogSoftmaxWithLoss:
    """torch's module with the weights of ours; its tails have a projection always, the identity where ours has none."""
    other = nn.AdaptiveLogSoftmaxWithLoss(D, V, list(CUTS), div_value=div_value, head_bias=True).double()
    with torch.no_grad():
        words.biases[0].normal_()  # torch's tails have none
        other.head.weight.copy_(torch.cat([words.tables[0], words.clusters]))
        other.head.bias.copy_(words.biases[0])
        for i, tail in enumerate(other.tail, 1):
            tail[1].weight.copy_(words.tables[i])
            tail[0].weight.copy_(torch.eye(D) if div_value == 1 else words.projections[i - 1])
    return other


@over("div_value", [1, 2])
def test_is_torchs_adaptive_softmax(div_value: int) -> None:
    words = TiedVocabulary(V, D, cutoffs=CUTS, div_value=div_value).double()
    other = torchs_own(words, div_value)
    Y = torch.randn(3, 7, D, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, V, (3, 7))
    torch.testing.assert_close(words.log_probabilities(Y), other.log_prob(Y.flatten(0, 1)).view(3, 7, V))
    loss = words.loss(Y, targets)
    torch.testing.assert_close(loss, -other(Y.flatten(0, 1), targets.flatten()).output.view(3, 7))
    other_loss = other(Y.flatten(0, 1), targets.flatten()).loss
    torch.testing.assert_close(*(torch.autograd.grad(x, Y)[0] for x in (loss.mean(), other_loss)))


@torch.no_grad()
def test_every_word_has_a_bias() -> None:
    """Literally: log p(w) = log p(cluster) + log p(w | cluster), each a softmax of y . E_w + b_w."""
    words = TiedVocabulary(V, D, cutoffs=CUTS).double()
    for b in words.biases:
        b.normal_()
    y = torch.randn(D).double()
    head = torch.cat([words.tables[0] @ y, words.clusters @ y]) + words.biases[0]
    expected = list(head[:10] - head.logsumexp(0))
    for i in (1, 2, 3):
        own = words.tables[i] @ y + words.biases[i]
        expected += list(head[10 + i - 1] - head.logsumexp(0) + own - own.logsumexp(0))
    torch.testing.assert_close(words.log_probabilities(y.unsqueeze(0))[0], torch.stack(expected))


@over("cutoffs", [CUTS, (), (60,), (59,)])
def test_probabilities_are_those_of_the_loss(cutoffs: tuple[int, ...]) -> None:
    words = TiedVocabulary(V, D, cutoffs=cutoffs).double()
    Y, targets = torch.randn(2, 40, D).double(), torch.randint(0, V, (2, 40))
    log_p = words.log_probabilities(Y)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2, 40).double())
    torch.testing.assert_close(words.loss(Y, targets), -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1))


@over("div_value", [1, 2])
def test_tokens_are_the_rows_of_the_tables(div_value: int) -> None:
    words = TiedVocabulary(V, D, cutoffs=CUTS, div_value=div_value)
    X = words(torch.arange(V).view(4, 15))
    rows: list[Tensor] = []
    for i, table in enumerate(words.tables):
        rows += list(table @ words.projections[i - 1] if i and div_value > 1 else table)
    torch.testing.assert_close(X.view(V, D), torch.stack(rows) * D**0.5)


def test_one_set_of_weights_learns_from_both_ends() -> None:
    words = TiedVocabulary(V, D, cutoffs=CUTS)
    tokens = torch.tensor([[0, 12, 30, 59]])
    words.loss(words(tokens).detach(), tokens).sum().backward()
    out = [table.grad.clone() for table in words.tables]
    words.zero_grad()
    words.loss(words(tokens), tokens).sum().backward()
    assert all(not torch.equal(a, table.grad) for a, table in zip(out, words.tables, strict=True))
    assert {name.split(".")[0] for name, _ in words.named_parameters()} == {"tables", "clusters", "biases"}


@over("div_value", [1, 4])
@torch.no_grad()
def test_sizes_at_the_start(div_value: int) -> None:
    torch.manual_seed(0)
    words = TiedVocabulary(4000, 256, cutoffs=(1000, 2000), div_value=div_value)
    X = words(torch.arange(4000))
    for part in (X[:1000], X[1000:2000], X[2000:]):
        assert float(part.var()) == pytest.approx(1, abs=0.1)
    assert float(words._logits(torch.randn(50, 256), 2).var()) == pytest.approx(1, abs=0.15)


@over("div_value", [1, 2])
@over("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_probabilities_of_narrow_logits_are_wide(dtype: torch.dtype, div_value: int) -> None:
    torch.manual_seed(0)
    words = TiedVocabulary(V, D, cutoffs=CUTS, div_value=div_value).to(dtype)
    Y, targets = 4 * torch.randn(2, 40, D).to(dtype), torch.randint(0, V, (2, 40))
    log_p, loss = words.log_probabilities(Y), words.loss(Y, targets)
    assert log_p.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2, 40), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1))


@over("div_value", [1, 2])
def test_under_autocast(div_value: int) -> None:
    words, ids = TiedVocabulary(V, D, cutoffs=CUTS, div_value=div_value), torch.arange(V).view(4, 15)
    with torch.autocast("cpu", torch.bfloat16):
        X = words(ids)
        loss = words.loss(X, ids)
    torch.testing.assert_close(X, words(ids), rtol=0.02, atol=0.05)
    loss.mean().backward()
    assert loss.dtype == torch.float32 and all(bool(p.grad.isfinite().all()) for p in words.parameters())


def test_small_vocabularies_are_plain() -> None:
    words = TiedVocabulary(100, D)
    assert words.clusters is None and len(words.tables) == 1
    Y = torch.randn(5, D)
    torch.testing.assert_close(words.log_probabilities(Y), (Y @ words.tables[0].T).log_softmax(-1))


@over(
    "settings, message",
    [
        ({"vocabulary": 0}, "vocabulary must be a whole number, 1 or more"),
        ({"cutoffs": (20, 10)}, "cutoffs must be whole numbers that rise"),
        ({"cutoffs": (0, 10)}, "cutoffs must be whole numbers that rise"),
        (
            {"cutoffs": CUTS, "div_value": 3},
            "every cluster must have a width of 1 or more; got d = 8 and div_value = 3",
        ),
        ({"div_value": 0}, "div_value must be a whole number"),
    ],
)
def test_wrong_settings(settings: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TiedVocabulary(**{"vocabulary": V, "d": D} | settings)


@torch.no_grad()
@over("cutoffs", [CUTS, ()])
def test_biases_can_start_at_the_frequencies(cutoffs: tuple[int, ...]) -> None:
    """A token of zeros says nothing, so every word has the share of its count."""
    words, counts = TiedVocabulary(V, D, cutoffs=cutoffs).double(), torch.randint(1, 50, (V,))
    words.start_at_(counts)
    torch.testing.assert_close(
        words.log_probabilities(torch.zeros(1, D).double())[0].exp(), counts / counts.sum().double()
    )
