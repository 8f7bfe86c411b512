"""What every wiring promises, also the one that is added tomorrow."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from depthscope.models import Block, Design, classic
from depthscope.models import wirings as folder
from depthscope.models.design import shelves, streams_of
from depthscope.models.wirings.wiring import Wiring
from depthscope.registry import TABLES
from loops import over

shelves()
WIRINGS = TABLES["wiring"]
each_wiring = over("name", sorted(WIRINGS))


def block_of(name, **choices):
    return Block(Design(1, 8, 2, wiring=name, **choices)).double()


def shaken(name, **choices):
    """A block whose norms and scalars are not those of the start, where some blocks are the identity."""
    block = block_of(name, **choices)
    with torch.no_grad():
        for parameter in block.wiring.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return block


def enter(name, X):
    """The streams that the first block of a model gets, the main one first."""
    return streams_of(WIRINGS[name].beginning(Design(1, 8, 2, wiring=name)).to(X)(X))


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@each_wiring
def test_the_last_step_is_the_output(name):
    block, X = shaken(name), randn(2, 5, 8)
    streams = enter(name, X)
    states, out = block.steps(*streams), streams_of(block(*streams))
    assert torch.equal(list(states.values())[-1], out[0])
    assert all(
        torch.equal(states[letter], stream) for letter, stream in zip(block.wiring.streams, out[1:], strict=True)
    )
    assert [stream.shape for stream in out] == [stream.shape for stream in streams]
    assert len(states) >= 2
    assert all(state.shape in (X.shape, streams[0].shape) for state in states.values())
    assert states.get(block.wiring.reads, X).shape == X.shape


@each_wiring
def test_the_docstring_is_one_line_with_every_step(name):
    doc = WIRINGS[name].__doc__
    assert len(doc.splitlines()) == 1
    doc += "".join(WIRINGS[other].__doc__ for other in WIRINGS if other in doc)  # a wiring may name one it is made of
    for letter in block_of(name).steps(*enter(name, randn(5, 8))):
        assert re.search(rf"\b{letter} = ", doc), f"{letter} is a step without a formula"


@each_wiring
def test_a_wiring_is_one_file_of_its_name(name):
    assert (Path(folder.__file__).parent / f"{name}.py").is_file()
    assert WIRINGS[name].__module__ == f"{folder.__name__}.{name}"
    assert issubclass(WIRINGS[name], Wiring)


@each_wiring
def test_each_branch_is_called_once_and_moves_the_output(name):
    block, calls = shaken(name), []
    streams = enter(name, randn(5, 8))

    def counted(branch):
        return lambda Y: calls.append(branch) or branch(Y)

    def run(SA, FFN):
        return streams_of(block.wiring(streams if len(streams) > 1 else streams[0], SA, FFN))

    out = run(counted(block.attention), counted(block.ffn))
    assert calls == [block.attention, block.ffn]
    for i, stream in enumerate(block(*streams) if len(streams) > 1 else [block(*streams)]):
        assert torch.equal(out[i], stream)
        assert not torch.allclose(run(torch.zeros_like, block.ffn)[i], stream)
        assert not torch.allclose(run(block.attention, torch.zeros_like)[i], stream)


@each_wiring
def test_alpha_moves_the_output(name):
    one, streams = shaken(name, alpha=1.0), enter(name, randn(5, 8))
    two = block_of(name, alpha=2.0)
    two.load_state_dict(one.state_dict())
    for a, b in zip(streams_of(one(*streams)), streams_of(two(*streams)), strict=True):
        assert not torch.allclose(a, b)


@each_wiring
def test_the_input_is_left_alone(name):
    block, X = block_of(name), randn(2, 5, 8)
    before, streams = X.clone(), enter(name, X)
    copies = [stream.clone() for stream in streams]
    states = block.steps(*streams)
    assert torch.equal(X, before)
    assert all(torch.equal(stream, copy) for stream, copy in zip(streams, copies, strict=True))
    assert len({state.data_ptr() for state in states.values()}) == len(states)


@each_wiring
def test_the_ending_keeps_the_shape(name):
    ending = WIRINGS[name].ending(Design(1, 8, 2, wiring=name))
    assert isinstance(ending, nn.Module)
    assert ending(*enter(name, torch.randn(2, 5, 8))).shape == (2, 5, 8)


def test_post_norm_ends_with_its_last_block_and_pre_norm_with_a_norm():
    X = torch.randn(2, 5, 8)
    post, pre = (classic(2, 8, 2, wiring=name) for name in ("post_norm", "pre_norm"))
    assert torch.equal(post(X), post.blocks[1](post.blocks[0](X)))
    Z = pre.blocks[1](pre.blocks[0](X))
    truth = (Z - Z.mean(-1, keepdim=True)) / (Z.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(pre(X), truth)


def test_with_silent_branches_post_norm_is_a_norm_and_pre_norm_the_identity():
    X = randn(5, 8)
    Y = block_of("post_norm").wiring(X, torch.zeros_like, torch.zeros_like)
    torch.testing.assert_close(Y.mean(-1), torch.zeros(5, dtype=X.dtype), atol=1e-12, rtol=0)
    torch.testing.assert_close(Y.square().mean(-1), torch.ones(5, dtype=X.dtype), atol=1e-4, rtol=0)
    assert torch.equal(block_of("pre_norm").wiring(X, torch.zeros_like, torch.zeros_like), X)


def test_a_new_wiring_needs_no_other_change(monkeypatch):
    class Fading(Wiring):
        """Y = X + alpha SA(X) / index,  Z = Y + FFN(Y)"""

        def __init__(self, design, index):
            super().__init__(design, index)
            self.index = index

        def steps(self, X, SA, FFN):
            Y = X + self.alpha / self.index * SA(X)
            return {"Y": Y, "Z": Y + FFN(Y)}

    monkeypatch.setitem(WIRINGS, "fading", Fading)
    model, X = classic(3, 8, 2, wiring="fading", alpha=0.5), torch.randn(5, 8)
    assert [block.wiring.index for block in model] == [1, 2, 3]
    assert isinstance(model.ending, nn.Identity)
    Y = X
    for index, block in enumerate(model, start=1):
        Y = Y + 0.5 / index * block.attention(Y)
        Y = Y + block.ffn(Y)
    torch.testing.assert_close(model(X), Y)


def test_a_wiring_without_steps_says_so(monkeypatch):
    monkeypatch.setitem(WIRINGS, "empty", type("Empty", (Wiring,), {}))
    with pytest.raises(NotImplementedError):
        block_of("empty")(randn(5, 8))
