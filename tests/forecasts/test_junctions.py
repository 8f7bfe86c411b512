"""One description of a block: what a wiring declares is what its code does, what laws find, and what is measured."""

import itertools

import pytest
import torch
from torch import Tensor

import depthscope as ds
from depthscope.junctions import POST_NORM, Junction, Junctions, declared
from depthscope.laws.through_design import laws_of_design
from depthscope.metrics import t_sim
from depthscope.models.block import Block
from depthscope.models.design import Design, streams_of
from depthscope.models.transformer import Transformer
from depthscope.models.wirings.post_norm import PostNorm
from depthscope.models.wirings.wiring import Wiring
from depthscope.registry import TABLES
from loops import at_pace

WIRINGS = sorted(TABLES["wiring"])
DESCRIBED = [name for name in WIRINGS if TABLES["wiring"][name].junctions(1, 1) is not None]
BY_START = {"hyper_connections": "pre_norm"}  # what has no law of its own, and what it is at the start
N, DEPTH, D = 16, 5, 96


def measured(design: Design, models: int = 6) -> Tensor:
    """The mean t_sim of a few models, after every block."""
    rows = []
    for seed in range(models):
        torch.manual_seed(seed)
        model = Transformer(design)
        X = torch.randn(4, N, D)
        streams = streams_of(model.beginning(X / X.square().mean(-1, keepdim=True).sqrt()))
        states = [streams[0]]
        for block in model:
            streams = streams_of(block(*streams))
            states.append(streams[0])
        rows.append(torch.stack([t_sim(X).mean() for X in states]))
    return torch.stack(rows).mean(0)


@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_by_sizes_is_by_laws_is_measured(wiring: str, pace: str) -> None:
    """Maps and laws differ by their tables (0.003). Six models of width 96 differ by chance, 0.05."""
    pairs = [*itertools.product((True, False), ("gelu", "relu", "swiglu"))]
    for output, activation in at_pace(pace, pairs, 6):
        choices = {"output": output, "activation": activation, "weights": "xavier"}
        start = BY_START.get(wiring, wiring)
        by_sizes = ds.forecast(depth=DEPTH, n=N, d=D, h=4, wiring=start, **choices).t_sim
        design = Design(DEPTH, D, 4, wiring=start, **choices)
        energies = [law.energies() for law in laws_of_design(design, N, t_sim=1 / N)]
        by_laws = torch.stack([(common / (common + centred)).mean() for common, centred in energies])
        found = measured(Design(DEPTH, D, 4, wiring=wiring, **choices))
        assert float((by_sizes - by_laws).abs().max()) < 0.003, choices
        assert float((by_sizes - found).abs().max()) < 0.05, choices


def test_gains_act_on_matrices_that_are_there() -> None:
    """DeepNorm without W_O: beta was applied to it as well, and the forecast said .505."""
    choices = {"d": 64, "h": 4, "weights": "xavier", "wiring": "deep_norm"}
    found = ds.forecast(depth=24, n=16, t_sim=0.5, **choices)
    with torch.no_grad():
        common, centred = laws_of_design(Design(24, **choices), 16, t_sim=0.5)[-1].energies()
    assert float(found.t_sim[-1]) == pytest.approx(float(common / (common + centred)), abs=0.003)
    assert float(found.t_sim[-1]) > 0.55
    assert declared("deep_norm", ("W", "W_1"))(24, 1).gains.keys() == {"W", "W_1"}


# the models


def described(junctions: Junctions, X: Tensor, SA, FFN, alpha: float) -> Tensor:
    """A block as its junctions have it."""

    def norm(flag: bool, x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:]) if flag else x

    def joined(j: Junction, x: Tensor, f, weight: float = 1.0) -> Tensor:
        branch = j.write * norm(j.normed_write, f(j.read * norm(j.normed_read, x)))
        return norm(j.normed_sum, j.skip * x + weight * branch + j.again * X)

    return joined(junctions.network, joined(junctions.attention, X, SA, alpha), FFN)


@pytest.mark.parametrize("wiring", DESCRIBED)
def test_a_block_is_what_its_wiring_declares(wiring: str) -> None:
    """Inner norms stand in the branches themselves, where fit_ puts them."""
    for index in (1, 3, 8):
        design = Design(8, 16, 2, wiring=wiring, alpha=0.7, output=True)
        block, X = Block(design, index).double(), torch.randn(5, 16, dtype=torch.float64)
        junctions = declared(wiring, design.matrices)(8, index)
        streams = (X, X.clone()) if junctions.side_stream else (X,)
        found = streams_of(block(*streams))[0]
        torch.testing.assert_close(found, described(junctions, X, block.attention, block.ffn, 0.7))
        assert {role: block.wiring.gain(role) for role in junctions.gains} == dict(junctions.gains)
        first = Transformer(design).beginning
        assert isinstance(first, torch.nn.LayerNorm) == junctions.normed_input


def test_a_wiring_that_joins_otherwise_must_declare_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws follow its code as long as it declares nothing."""

    class Halved(PostNorm):
        def join_2(self, Y: Tensor, F: Tensor) -> Tensor:
            return Y + F / 2

    assert Halved.junctions(4, 1) is None
    monkeypatch.setitem(TABLES["wiring"], "halved", Halved)
    sizes = {"depth": 6, "n": 8, "d": 32, "h": 2, "weights": "xavier", "wiring": "halved"}
    by_laws = ds.forecast(**sizes).t_sim
    half = Junction(write=0.5, normed_sum=True)
    Halved.junctions = staticmethod(lambda depth, index: Junctions(POST_NORM.attention, half))
    assert float((ds.forecast(**sizes).t_sim - by_laws).abs().max()) < 0.003
    assert float((ds.forecast(**sizes | {"wiring": "post_norm"}).t_sim - by_laws).abs().max()) > 0.01


def test_a_wiring_without_a_description_says_so() -> None:
    silent = [name for name in WIRINGS if name not in DESCRIBED]
    assert [name for name in silent if not TABLES["wiring"][name].no_law] == [] and not Wiring.no_law
