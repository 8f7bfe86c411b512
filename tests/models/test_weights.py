"""Weight laws: the moments of many draws against the documented variance, and independent trials."""

import pytest
import torch

from depthscope.models import Block, Design
from depthscope.models.design import shelves
from depthscope.registry import TABLES
from loops import over

shelves()
LAWS = TABLES["weight law"]
ROLES = ("W_q", "W_k", "W", "W_O", "W_1", "W_2", "W_gate")
TRIALS, OUT, IN, H = 200, 20, 30, 4
each_law = over("name", sorted(LAWS))
each_role = over("role", ROLES)

# law -> role -> (shape of the law, variance of the weights, variance of the biases), as documented
DEFAULT = ("uniform", 1 / (3 * IN), 1 / (3 * IN))
DOCUMENTED = {
    "xavier": lambda role: ("uniform", 2 / (IN + OUT), 0),
    "torch_default": lambda role: DEFAULT,
    "unit_gain": lambda role: ("normal", 1 / IN, 0) if role == "W" else DEFAULT,
    "paper_literal": lambda role: ("normal", H / IN, 0) if role == "W" else DEFAULT,
    "paper_literal_he": lambda role: {
        "W": ("normal", H / IN, 0),
        "W_1": ("normal", 2 / IN, 0),
        "W_2": ("normal", 1 / IN, 0),
    }.get(role, DEFAULT),
    "bert": lambda role: ("normal", 0.02**2, 0),
}
KURTOSIS = {"uniform": 1.8, "normal": 3.0}


def draw(name, role, trials=TRIALS):
    weight, bias = torch.full((trials, OUT, IN), torch.nan), torch.full((trials, OUT), torch.nan)
    assert LAWS[name](weight, bias, role, H) is None, "a law fills in place"
    return weight.double(), bias.double()


def check_moments(values, shape, variance):
    """Mean, variance and kurtosis within five standard errors."""
    N, z = values.numel(), values / variance**0.5
    assert abs(z.mean()) < 5 / N**0.5
    assert abs(z.square().mean() - 1) < 5 * ((KURTOSIS[shape] - 1) / N) ** 0.5
    assert abs(z.pow(4).mean() - KURTOSIS[shape]) < 5 * (96 / N) ** 0.5  # Var z^4 = 105 - 9 for the normal
    if shape == "uniform":
        assert 0.98 * 3**0.5 < z.abs().max() <= 3**0.5 * (1 + 1e-6)


@each_law
@each_role
def test_the_moments_are_the_documented_ones(name, role):
    assert name in DOCUMENTED, f"{name} is new: write its variance in DOCUMENTED"
    shape, variance, bias_variance = DOCUMENTED[name](role)
    weight, bias = draw(name, role)
    check_moments(weight, shape, variance)
    if bias_variance:
        check_moments(bias, shape, bias_variance)
    else:
        assert (bias == 0).all()


@each_law
@each_role
def test_trials_are_independent(name, role):
    """Correlations between the trials' matrices are noise of size 1/sqrt(entries)."""
    weight, bias = draw(name, role, trials=12)
    off = torch.corrcoef(weight.flatten(1)) - torch.eye(12)
    assert 0 < off.abs().max() < 5 / (OUT * IN) ** 0.5
    if bias.any():
        assert len({tuple(row) for row in bias.tolist()}) == 12


@each_law
def test_no_bias_is_fine_and_a_seed_repeats_the_draw(name):
    first, again = torch.empty(OUT, IN), torch.empty(OUT, IN)
    for weight in (first, again):
        torch.manual_seed(7)
        LAWS[name](weight, None, "W", H)
    assert torch.equal(first, again)


def test_torch_default_is_what_nn_linear_draws():
    linear = [torch.nn.Linear(IN, OUT) for _ in range(TRIALS)]
    for drawn, made in zip(draw("torch_default", "W_1"), ("weight", "bias"), strict=True):
        truth = torch.stack([getattr(m, made) for m in linear]).detach().double()
        torch.testing.assert_close(drawn.var(), truth.var(), rtol=0.1, atol=0)  # 4,000 biases: 5 standard errors
        torch.testing.assert_close(drawn.abs().max(), truth.abs().max(), rtol=0.01, atol=0)


def test_xavier_is_torchs_xavier_uniform():
    drawn = draw("xavier", "W")[0]
    truth = torch.stack([torch.nn.init.xavier_uniform_(torch.empty(OUT, IN)) for _ in range(TRIALS)]).double()
    torch.testing.assert_close(drawn.var(), truth.var(), rtol=0.02, atol=0)
    torch.testing.assert_close(drawn.abs().max(), truth.abs().max(), rtol=0.001, atol=0)


@each_law
def test_the_docstring_says_the_law_in_one_line(name):
    doc = LAWS[name].__doc__
    assert len(doc.strip().splitlines()) == 1
    assert "variance" in doc or "standard deviation" in doc


# the block


@each_law
def test_a_block_gives_each_matrix_its_role_and_the_number_of_heads(name, monkeypatch):
    seen = {}

    def spy(weight, bias, role, h):
        seen[role] = (tuple(weight.shape), None if bias is None else tuple(bias.shape), h)

    monkeypatch.setitem(LAWS, name, spy)
    Block(Design(1, 12, 4, q=20, weights=name, activation="swiglu", output=True, bias=True))
    assert seen == {role: ((12, 12), (12,), 4) for role in ("W_q", "W_k", "W", "W_O")} | {
        "W_1": ((20, 12), (20,), 4),
        "W_gate": ((20, 12), (20,), 4),
        "W_2": ((12, 20), (12,), 4),
    }


@over("name, gain", [("unit_gain", 1.0), ("paper_literal", 8.0)])
def test_the_gain_of_the_values_is_the_theorys(name, gain):
    """E|X W|^2 = d sigma^2 |X|^2 for each of the d x d laws that the paper may mean."""
    block, X = Block(Design(1, 256, 8, weights=name)), torch.randn(64, 256)
    ratio = (block.attention.W(X).square().sum() / X.square().sum()).item()
    assert ratio == pytest.approx(gain, rel=0.05)


def test_paper_literal_he_keeps_the_energy_of_the_feed_forward():
    blocks, Y = [Block(Design(1, 128, 8, weights="paper_literal_he")) for _ in range(20)], torch.randn(64, 128)
    ratios = torch.stack([block.ffn(Y).square().sum() / Y.square().sum() for block in blocks])
    assert abs(ratios.mean() - 1) < 5 * ratios.std() / 20**0.5 < 0.1


def test_reset_draws_the_matrices_anew_and_leaves_the_norms():
    block = Block(Design(1, 12, 4, bias=True))
    with torch.no_grad():
        block.wiring.norm_1.weight.fill_(2.0)
    before = {name: value.clone() for name, value in block.named_parameters()}
    block.reset_parameters()
    for name, value in block.named_parameters():
        if "norm" in name:
            assert torch.equal(value, before[name]), name
        else:
            assert name == "attention.W.bias" or not (value == before[name]).any(), name  # that one is zero


def test_gradients_are_still_asked_for_after_a_draw():
    assert all(p.requires_grad and p.grad_fn is None for p in Block(Design(1, 12, 4)).parameters())
