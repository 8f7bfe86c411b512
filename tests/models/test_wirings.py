"""What every wiring promises, also the one that is added tomorrow."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from depthscope._registry import TABLES
from depthscope.models import Block, Design, classic
from depthscope.models import wirings as folder
from depthscope.models.design import shelves
from depthscope.models.wirings._wiring import Wiring

shelves()
WIRINGS = TABLES["wiring"]
each_wiring = pytest.mark.parametrize("name", sorted(WIRINGS))


def block_of(name, **choices):
    return Block(Design(1, 8, 2, wiring=name, **choices)).double()


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@each_wiring
def test_the_last_step_is_the_output(name):
    block, X = block_of(name), randn(2, 5, 8)
    states = block.steps(X)
    assert torch.equal(list(states.values())[-1], block(X))
    assert len(states) >= 2
    assert all(state.shape == X.shape for state in states.values())


@each_wiring
def test_the_docstring_is_one_line_with_every_step(name):
    doc = WIRINGS[name].__doc__
    assert len(doc.splitlines()) == 1
    for letter in block_of(name).steps(randn(5, 8)):
        assert re.search(rf"\b{letter} = ", doc), f"{letter} is a step without a formula"


@each_wiring
def test_a_wiring_is_one_file_of_its_name(name):
    assert (Path(folder.__file__).parent / f"{name}.py").is_file()
    assert WIRINGS[name].__module__ == f"{folder.__name__}.{name}"
    assert issubclass(WIRINGS[name], Wiring)


@each_wiring
def test_each_branch_is_called_once_and_moves_the_output(name):
    block, X, calls = block_of(name), randn(5, 8), []

    def counted(branch):
        return lambda Y: calls.append(branch) or branch(Y)

    out = block.wiring(X, counted(block.attention), counted(block.ffn))
    assert calls == [block.attention, block.ffn]
    assert torch.equal(out, block(X))
    assert not torch.allclose(block.wiring(X, torch.zeros_like, block.ffn), out)
    assert not torch.allclose(block.wiring(X, block.attention, torch.zeros_like), out)


@each_wiring
def test_alpha_moves_the_output(name):
    one, X = block_of(name, alpha=1.0), randn(5, 8)
    two = block_of(name, alpha=2.0)
    two.load_state_dict(one.state_dict())
    assert not torch.allclose(one(X), two(X))


@each_wiring
def test_the_input_is_left_alone(name):
    block, X = block_of(name), randn(2, 5, 8)
    before = X.clone()
    states = block.steps(X)
    assert torch.equal(X, before)
    assert len({state.data_ptr() for state in states.values()}) == len(states)


@each_wiring
def test_the_ending_keeps_the_shape(name):
    ending = WIRINGS[name].ending(Design(1, 8, 2, wiring=name))
    assert isinstance(ending, nn.Module)
    assert ending(torch.randn(2, 5, 8)).shape == (2, 5, 8)


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
