"""The maps of two numbers against models that are built and scanned, against the n x n form, and by their invariances."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import depthscope as ds
from depthscope.errors import UnknownNameError, UsageError
from depthscope.laws.through_design import laws_of_design
from depthscope.models.design import Design
from depthscope.models.transformer import Transformer
from depthscope.registry import TABLES
from depthscope.theory.kernels import kernel
from depthscope.theory.participation import participation
from depthscope.theory.stacks import SITES, overlaps_by_depth, similarity_by_depth
from depthscope.theory.two_numbers import (
    Overlaps,
    _participation,
    attended,
    de_escalated,
    hidden_overlaps,
    joined,
    network_gain,
    networked,
    normed,
    scaled,
    shifted,
    tokens_alike,
)
from loops import crossed, over

N, D = 24, 128
WIRINGS = [name for name, wiring in TABLES["wiring"].items() if wiring.junctions(1, 1) is not None]
S_1, S_2 = 2 / 5, 8 / 5  # d Var(W_1) and 4 d Var(W_2) of Xavier's law
CHOICES = {"d": D, "h": 4, "weights": "xavier", "output": True}
states = st.builds(tokens_alike, st.floats(0, 1), st.just(N), st.floats(0.01, 100))
activations = st.sampled_from(["relu", "gelu", "silu", "tanh", "swiglu"])


def two_numbers(wiring: str, activation: str, depth: int, **more) -> torch.Tensor:
    """The numbers of a Xavier design."""
    k = network_gain(activation, hidden_variance=S_1, s_2=S_2)
    numbers = {"k": k, "hidden_variance": S_1, "s_2": S_2, "score_variance": 1.0}
    numbers |= {"activation": activation, "wiring": wiring}
    return similarity_by_depth(depth=depth, n=N, **numbers | more)


@crossed("wiring, activation", sorted(WIRINGS), ["relu", "gelu", "swiglu"])
def test_it_is_what_laws_make_of_the_code_of_the_blocks(wiring: str, activation: str) -> None:
    """laws_of_design runs the models' own wirings; ReLU is a series there, and its closed form here."""
    design = Design(12, wiring=wiring, activation=activation, **CHOICES)
    with torch.no_grad():
        energies = [law.energies() for law in laws_of_design(design, N, t_sim=1 / N)]
    expected = torch.stack([(common / (common + centred)).mean() for common, centred in energies])
    assert float((two_numbers(wiring, activation, 12) - expected).abs().max()) < 0.003


def test_wirings_that_depend_on_depth_and_index() -> None:
    """LayerScale's factor at 20 and 30 blocks, Mix-LN's border, ReZero's nothing, Peri-LN's first norm."""
    for depth, factor in ((12, 0.1), (20, 1e-5), (30, 1e-6)):
        x = overlaps_by_depth(depth=depth, n=N, s_A=1.0, wiring="layer_scale")[1]
        assert x.q - 1 == pytest.approx(factor**2 / N, rel=1e-3)
    energies = [x.q for x in overlaps_by_depth(depth=8, n=N, s_A=1.0, k=1.0, wiring="mix_ln")]
    assert energies[:3] == pytest.approx([1, 1, 1]) and energies[3] > 1.5  # post-norm up to block 2, pre-norm after it
    still = overlaps_by_depth(depth=5, n=N, s_A=1.0, k=1.0, wiring="rezero")
    assert [x.q for x in still] == [1.0] * 6
    wide, unit = (similarity_by_depth(depth=5, n=N, s_A=1.0, k=0.5, q=q, wiring="peri_ln") for q in (25.0, 1.0))
    torch.testing.assert_close(wide, unit)


def test_biases_are_shared_by_all_tokens() -> None:
    numbers = {"s_A": 0.0, "k": 0.0, "alpha": 0.5, "b_A": 0.2, "b_F": 0.3, "wiring": "pre_norm"}
    x = overlaps_by_depth(depth=1, n=N, **numbers)[1]
    assert (x.p, x.D) == pytest.approx((0.25 * 0.2 + 0.3, 1.0))


def test_what_cannot_be_is_answered() -> None:
    for numbers, error in (
        ({"t_sim": math.nan}, UsageError),
        ({"foo": 1.0}, UnknownNameError),
        ({"alpha": torch.ones(2)}, UsageError),
    ):
        with pytest.raises(error):
            similarity_by_depth(depth=2, n=N, **numbers)
    for n in (0, 8.5):
        with pytest.raises(UsageError):
            similarity_by_depth(depth=2, n=n)


@over("tau", [0.2, 0.6])
def test_it_is_the_n_by_n_form_with_de_escalation(tau: float) -> None:
    found = ds.forecast(depth=12, n=N, activation="gelu", wiring="pre_norm", tau=tau, **CHOICES)
    assert float((two_numbers("pre_norm", "gelu", 12, tau=tau) - found.t_sim).abs().max()) < 1e-3


@over("wiring, activation", [("post_norm", "relu"), ("pre_norm", "gelu"), ("sandwich", "relu"), ("pre_norm", "swiglu")])
def test_models_that_are_built_do_this(wiring: str, activation: str) -> None:
    """Mean of four models of width 256, whose chance is about 0.02."""
    measured = []
    for seed in range(4):
        torch.manual_seed(seed)
        model = Transformer(Design(10, wiring=wiring, activation=activation, **CHOICES | {"d": 256}))
        measured.append(ds.scan(model, torch.randn(4, N, 256), metrics=["t_sim"], attention=False)["t_sim"])
    assert float((two_numbers(wiring, activation, 10) - torch.stack(measured).mean(0)).abs().max()) < 0.05


@crossed("site, wiring", SITES, ["post_norm", "pre_norm"])
def test_de_escalation_at_every_site(wiring: str, site: str) -> None:
    measured = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = Transformer(Design(6, wiring=wiring, **CHOICES))
        with ds.fix_(model, ds.remedies.DeEscalate(0.3), at=site):
            found = ds.scan(model, torch.randn(4, N, D), metrics=["t_sim"], attention=False)
            measured.append(found["t_sim"][:-1])
    inside = torch.stack(measured).mean(0)
    assert float((two_numbers(wiring, "relu", 6, tau=0.3, site=site)[:-1] - inside).abs().max()) < 0.05


@over("activation", ["relu", "gelu", "silu", "tanh", "identity"])
@over("variance", [0.1, 1.0, 4.0])
def test_the_table_is_the_kernel(activation: str, variance: float) -> None:
    for rho in (-0.2, 0.0, 0.3, 0.9, 0.9999):
        C = variance * torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64)
        whole, apart = hidden_overlaps(activation, variance, 1 - rho)
        assert whole == pytest.approx(float(kernel(activation, C)[0, 0]), rel=1e-9)
        assert whole - apart == pytest.approx(float(kernel(activation, C)[0, 1]), rel=1e-9, abs=1e-12)


def test_swiglu_is_a_product_of_kernels() -> None:
    C = 0.5 * torch.tensor([[1.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
    whole, apart = hidden_overlaps("swiglu", 0.5, 0.7)
    assert whole - apart == pytest.approx(float(kernel("silu", C)[0, 1] * C[0, 1]), rel=1e-9)


@over("e", [1e-18, 1e-12, 1e-7, 1e-6])
def test_nearly_equal_tokens_keep_their_precision(e: float) -> None:
    """kappa'(1) = 1 for ReLU: 1 - kappa(1 - e) = e - 2 sqrt 2 e^{3/2} / 3 pi."""
    assert 2 * hidden_overlaps("relu", 1.0, e)[1] == pytest.approx(e - 2**1.5 * e**1.5 / (3 * math.pi), rel=1e-6)
    assert hidden_overlaps("gelu", 1.0, e)[1] / e == pytest.approx(
        hidden_overlaps("gelu", 1.0, 1e-8)[1] / 1e-8, rel=1e-4
    )
    curve = overlaps_by_depth(depth=200, n=N, k=0.3)
    assert 0 < curve[-1].t_div(N) < 1e-50 and curve[-1].t_sim(N) == 1.0


@over("variance", [0.01, 0.3, 2.0, 9.0])
def test_participation_off_its_table(variance: float) -> None:
    assert _participation(40, variance) == pytest.approx(participation(40, variance), rel=2e-3)


def test_known_values() -> None:
    x = attended(tokens_alike(1 / 64, 64), n=64, s_A=2.0)
    assert x.p == pytest.approx(2 / 64) and x.D == 0.0  # uniform attention: the mean token, everywhere
    assert networked(Overlaps(0.0, 1.0), k=3.0).p == pytest.approx(3 / math.pi)  # kappa(0) = 1 / pi
    odds = [x.t_sim(64) / x.t_div(64) for x in overlaps_by_depth(depth=8, n=64)]
    torch.testing.assert_close(torch.tensor(odds[1:]) / torch.tensor(odds[:-1]), torch.full((8,), 2.0))
    assert shifted(Overlaps(0.0, 1.0), 0.5) == Overlaps(0.5, 1.0)


@given(states, activations, st.floats(0, 1), st.floats(0, 4), st.floats(0.05, 4))
def test_tokens_stay_tokens(x: Overlaps, activation: str, tau: float, score_variance: float, variance: float) -> None:
    """p <= q, and no t_sim below 0, through every map."""
    A = attended(x, n=N, s_A=1.3, score_variance=score_variance)
    F = networked(x, k=0.7, activation=activation, hidden_variance=variance)
    for y in (A, F, joined(x, A, weight=0.5), normed(x), de_escalated(x, n=N, tau=tau), shifted(x, 0.2)):
        assert y.D >= 0 and y.q >= y.p and y.t_sim(N) >= -1e-9 and y.t_sim(N) <= 1 + 1e-12


@given(states)
def test_tau_1_leaves_nothing_in_common(x: Overlaps) -> None:
    assert de_escalated(x, n=N, tau=1.0).t_sim(N) in (0.0, 1.0)  # 1: of equal tokens nothing is left at all
    assert de_escalated(x, n=N, tau=0.0).p == pytest.approx(x.p, abs=1e-9)


@given(states, st.floats(0.1, 10))
def test_size_does_not_matter(x: Overlaps, factor: float) -> None:
    y = scaled(x, factor)
    assert y.t_sim(N) == pytest.approx(x.t_sim(N)) and normed(y) == pytest.approx(normed(x), abs=1e-12)
    relu = networked(y, k=0.4), scaled(networked(x, k=0.4), factor)
    assert relu[0] == pytest.approx(relu[1], rel=1e-9)


@given(st.floats(0.01, 100))
def test_post_norm_forgets_the_size_of_its_first_branch_only(q: float) -> None:
    curve = similarity_by_depth(depth=4, n=N, q=q, k=0.2)
    torch.testing.assert_close(curve, similarity_by_depth(depth=4, n=N, k=0.2))  # attention without scores is linear


def test_depth_0_and_one_token() -> None:
    torch.testing.assert_close(similarity_by_depth(depth=0, n=8, t_sim=0.3), torch.tensor([0.3], dtype=torch.float64))
    assert similarity_by_depth(depth=3, n=1).tolist() == [1.0] * 4


@over(
    "numbers, error, message",
    [
        ({"wiring": "hyper_connections"}, UsageError, "hyper_connections: the wiring must declare its junctions"),
        ({"wiring": "pre_nrm"}, UnknownNameError, "Did you mean pre_norm"),
        ({"wiring": "b2t", "tau": 0.5, "site": "ffn_in"}, UsageError, "site must be block_out for blocks that add"),
        ({"site": "attn"}, UnknownNameError, "no site is called 'attn'"),
        ({"activation": "relo"}, UnknownNameError, "Did you mean relu"),
        ({"s_A": -1.0}, UsageError, "s_A must lie in"),
        ({"tau": 1.5}, UsageError, "tau must lie in"),
        ({"depth": 2.5}, UsageError, "a whole number of blocks; got 2.5"),
    ],
)
def test_wrong_use_is_answered(numbers: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        similarity_by_depth(**{"depth": 2, "n": 8} | numbers)
